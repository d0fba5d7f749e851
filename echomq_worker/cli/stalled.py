"""`queue stalled`: one pass of the counting sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from echomq_worker.cli.bar import progress_bar
from echomq_worker.cli.common import (
    AsJson,
    Queue,
    Url,
    Yes,
    can_ask,
    confirm,
    connected,
    prepared,
    print_lines,
    print_table,
    run_async,
)

if TYPE_CHECKING:
    from echomq_worker.settings import Settings
    from echomq_worker.stalled import Swept


def stalled(
    queue: Queue,
    *,
    max_stalled: Annotated[
        int, typer.Option("--max-stalled", metavar="N", min=1, help="Bury a job that lost so many leases; 1: at once.")
    ] = 1,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Look at so many leases at most.")] = 100,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Count a lost lease for each job whose lease ran out.

    At its Nth lost lease it is dead; before that it goes back to be claimed. A running worker recovers by itself, and
    mostly sooner; see ECHOMQ_STALLED to have it count.
    """
    settings = prepared(url, queue)
    can_ask(yes=yes)
    if not yes:
        over = min(limit, run_async(_expired(settings, queue)))
        fate = "each is dead" if max_stalled == 1 else f"one is dead that has lost {max_stalled}"
        confirm(f"Count a lost lease for {over} jobs of {queue}; {fate}?", yes=yes)

    async def ask() -> Swept:
        from echomq_worker.stalled import Stalled

        async with connected(settings) as connector:
            with progress_bar(f"stalled {queue}", counted=False):
                return await Stalled(connector).check(queue, max_stalled, limit)

    swept = run_async(ask())
    rows = [(id, "pending") for id in swept.recovered] + [(id, "dead") for id in swept.dead]
    if as_json:
        print_lines({"id": id, "became": became} for id, became in rows)
    else:
        print_table(("id", "became"), rows)


async def _expired(settings: Settings, queue: str) -> int:
    from echomq_worker.metrics import Metrics

    async with connected(settings) as connector:
        return await Metrics(connector).expired_leases(queue)
