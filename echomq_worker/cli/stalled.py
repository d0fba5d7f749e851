"""`queue stalled`: one pass of the counting sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from echomq_worker.cli.common import AsJson, Queue, Url, connected, prepared, print_lines, print_table, run_async

if TYPE_CHECKING:
    from echomq_worker.stalled import Swept


def stalled(
    queue: Queue,
    *,
    max_stalled: Annotated[
        int, typer.Option("--max-stalled", metavar="N", min=1, help="Bury a job that lost so many leases; 1: at once.")
    ] = 1,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Look at so many leases at most.")] = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Count a lost lease for each job whose lease ran out: it is dead at its Nth, and goes back to be claimed before.

    A running worker recovers by itself, and mostly sooner; see ECHOMQ_STALLED to have it count.
    """
    settings = prepared(url, queue)

    async def ask() -> Swept:
        from echomq_worker.stalled import Stalled

        async with connected(settings) as connector:
            return await Stalled(connector).check(queue, max_stalled, limit)

    swept = run_async(ask())
    rows = [(id, "pending") for id in swept.recovered] + [(id, "dead") for id in swept.dead]
    if as_json:
        print_lines({"id": id, "became": became} for id, became in rows)
    else:
        print_table(("id", "became"), rows)
