"""`job cancel`: ask for the end of one job."""

from __future__ import annotations

from typing import Annotated

import typer

from echomq_worker.cli import Exit
from echomq_worker.cli.common import JobId, Queue, Url, connected, note, prepared, run_async, say


def cancel(
    queue: Queue,
    id: JobId,
    *,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it stands in the job's last error.")
    ] = "by an operator",
    url: Url = None,
) -> None:
    """Ask for a job's end.

    It is removed where it does not run, and asked where it does. One that has ended: exit code 1.
    """
    from echomq_worker.cancel import Answer, Cancel

    settings = prepared(url, queue)

    async def ask() -> Answer:
        async with connected(settings) as connector:
            return await Cancel(connector).request(queue, id, reason)

    match run_async(ask()):
        case "gone":
            note(f"{id}: no such job in {queue}; a completed job has no row (job list shows those that there are)")
            raise typer.Exit(Exit.FAILED)
        case "ended":
            note(f"{id}: it is dead already (dead requeue gives it a new life, dead delete takes it away)")
            raise typer.Exit(Exit.FAILED)
        case answer:
            say(answer)
