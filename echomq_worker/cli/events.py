"""`events`: follow what becomes of jobs, live."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from echomq_worker.cli.common import Url, connected, note, prepared, print_json, run_async, say

if TYPE_CHECKING:
    from echomq_worker.events import Event

_NAME_WIDTH = 10


def events(
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE", help="The queues' names.")],
    *,
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help="End after so many events.", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines; that is what a pipe gets in any case.")
    ] = False,
    url: Url = None,
) -> None:
    """Follow the events of one queue or more, live.

    What is published from now on, at most once each, until interrupted. Nothing is kept for who is not
    connected; what a job has come to is in its row.
    """
    settings = prepared(url, *queues)
    lines = as_json or not sys.stdout.isatty()

    async def follow() -> None:
        from echomq_worker.events import Events

        async with connected(settings) as connector, Events(connector).subscribe(*queues) as stream:
            note(f"following {', '.join(queues)}; delivery is at most once")
            gaps, told = 0, 0
            async for event in stream:
                if stream.gaps > gaps:
                    gaps = stream.gaps
                    note("the connection was lost and made again: events may be missing here")
                _show(event, as_json=lines)
                told += 1
                if told == limit:
                    return

    run_async(follow())


def _show(event: Event, *, as_json: bool) -> None:
    if as_json:
        own = {"queue": event.queue, "event": event.name, "job": event.job}
        print_json({**own, **event.fields, **own})
    else:
        said = "  ".join(f"{name}={text}" for name, text in event.fields.items())
        at = time.strftime("%H:%M:%S")
        say(f"{at}  {event.queue}  {event.name.ljust(_NAME_WIDTH)}  {event.job}  {said}".rstrip())
    sys.stdout.flush()
