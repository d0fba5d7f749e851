"""`lane …`: the lanes of a queue.

Source: issue "Every control" (lanes), protocol section 5. A group is a branded id, or any text, which names the lane of
`Lanes.group_for` of that text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from echomq_worker.cli import Exit
from echomq_worker.cli.bar import progress_bar
from echomq_worker.cli.common import (
    AsJson,
    Group,
    JobId,
    Queue,
    Url,
    Yes,
    can_ask,
    confirm,
    connected,
    note,
    number_or_none,
    prepared,
    print_lines,
    print_table,
    run_async,
    say,
    yes_no,
)
from echomq_worker.errors import ConfigError

if TYPE_CHECKING:
    from echomq_worker.lanes import Lanes
    from echomq_worker.metrics import LaneView

T = TypeVar("T")


def lane_app() -> typer.Typer:
    """The commands of `lane`."""
    app = typer.Typer(
        help="Lanes: the groups of a queue.", epilog="Example: echomq-worker lane list emails", no_args_is_help=False
    )
    app.callback()(lambda: None)
    app.command("list", epilog="Example: echomq-worker lane list emails")(list_lanes)
    app.command("id", epilog="Example: echomq-worker lane id tenant-7")(lane_id)
    app.command("pause", epilog="Example: echomq-worker lane pause emails tenant-7")(pause)
    app.command("resume", epilog="Example: echomq-worker lane resume emails tenant-7")(resume)
    app.command("limit", epilog="Example: echomq-worker lane limit emails tenant-7 5")(limit)
    app.command("weight", epilog="Example: echomq-worker lane weight emails tenant-7 3")(weight)
    app.command("reassign", epilog="Example: echomq-worker lane reassign emails ID tenant-8")(reassign)
    app.command("drain", epilog="Example: echomq-worker lane drain emails tenant-7 --yes")(drain)
    app.command("reap", epilog="Example: echomq-worker lane reap emails tenant-7")(reap)
    return app


def list_lanes(queue: Queue, *, url: Url = None, as_json: AsJson = False) -> None:
    """List the lanes of a queue. What waits and is in hand, limit, weight, whether it is paused, and served."""
    settings = prepared(url, queue)

    async def ask() -> list[LaneView]:
        from echomq_worker.metrics import Metrics

        async with connected(settings) as connector:
            return await Metrics(connector).lanes(queue)

    views = run_async(ask())
    if as_json:
        print_lines(map(asdict, views))
        return
    rows = [
        (view.group, view.depth, view.active, view.limit, view.weight, yes_no(view.paused), yes_no(view.on_ring))
        for view in views
    ]
    print_table(("group", "waiting", "active", "limit", "weight", "paused", "served"), rows)


def lane_id(group: Group) -> None:
    """Print the branded id of a lane that is named by any text. Lists, metrics and the dashboard show lanes by it."""
    say(_lane(group))


def pause(queue: Queue, group: Group, *, url: Url = None) -> None:
    """Serve a lane no more until it is resumed. Its jobs wait, what is in hand goes on."""
    lane = _lane(group)
    _ask(url, queue, lambda lanes: lanes.pause(queue, lane))
    say("paused")


def resume(queue: Queue, group: Group, *, url: Url = None) -> None:
    """Serve a lane again."""
    lane = _lane(group)
    _ask(url, queue, lambda lanes: lanes.resume(queue, lane))
    say("resumed")


def limit(
    queue: Queue,
    group: Group,
    n: Annotated[
        str, typer.Argument(metavar="N|none", help="Jobs in hand at a time, over all workers; none: no limit.")
    ],
    *,
    url: Url = None,
) -> None:
    """Limit how many jobs of a lane are in hand at a time. 0 holds it."""
    lane, most = _lane(group), number_or_none("N", n, at_least=0)
    _ask(url, queue, lambda lanes: lanes.limit(queue, lane, most))
    say("no limit" if most is None else f"at most {most} at a time")


def weight(
    queue: Queue,
    group: Group,
    w: Annotated[int, typer.Argument(metavar="W", min=1, max=1_000_000, help="Jobs served in its turn; 1 is usual.")],
    *,
    url: Url = None,
) -> None:
    """Serve so many jobs of a lane in its turn. The others get one."""
    lane = _lane(group)
    _ask(url, queue, lambda lanes: lanes.weight(queue, lane, w))
    say(f"{w} per turn")


def reassign(queue: Queue, id: JobId, group: Group, *, url: Url = None) -> None:
    """Move a pending job to another lane. Exit code 1 for a job that is gone or not pending."""
    lane = _lane(group)
    answer = _ask(url, queue, lambda lanes: lanes.reassign(queue, id, lane))
    if answer in {"not_found", "not_pending"}:
        if answer == "not_found":
            note(f"{id}: no such job in {queue} (job list shows those that there are)")
        else:
            note(f"{id}: not pending in {queue} (job show says where it is; only a pending job changes its lane)")
        raise typer.Exit(Exit.FAILED)
    say("reassigned" if answer == "reassigned" else "it is there already")


def drain(queue: Queue, group: Group, *, yes: Yes = False, url: Url = None) -> None:
    """Delete every waiting job of a lane; what is in hand goes on."""
    lane, settings = _lane(group), prepared(url, queue)
    can_ask(yes=yes)
    depth = _ask(url, queue, lambda lanes: lanes.depth(queue, lane))
    confirm(f"Delete {depth} waiting jobs of the lane {group} of {queue}?", yes=yes)

    async def run() -> int:
        from echomq_worker.lanes import Lanes

        async with connected(settings) as connector:
            with progress_bar(f"drain {group}") as bar:
                return await Lanes(connector).drain(queue, lane, progress=bar)

    say(f"{run_async(run())} deleted")


def reap(
    queue: Queue,
    group: Group,
    *,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1_000, help="At most so many.")] = 100,
    url: Url = None,
) -> None:
    """Put jobs of a lane whose lease is over back to it."""
    lane = _lane(group)
    say(f"{_ask(url, queue, lambda lanes: lanes.reap_group(queue, lane, limit))} put back")


def _lane(group: str) -> str:
    from echomq_worker.identity import group_for, is_branded

    if not group:
        raise ConfigError("GROUP='': expected a branded id, or a text that is not empty")
    return group if is_branded(group) else group_for(group)


def _ask(url: str | None, queue: str, verb: Callable[[Lanes], Awaitable[T]]) -> T:
    """One verb of Lanes over a connection of its own."""
    settings = prepared(url, queue)

    async def run() -> T:
        from echomq_worker.lanes import Lanes

        async with connected(settings) as connector:
            return await verb(Lanes(connector))

    return run_async(run())
