"""`queue …`: what is where, and the verbs over a whole queue.

Source: issue "Every control" (the operator plane, the read plane, audit).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echomq_worker.cli import Exit
from echomq_worker.cli.bar import progress_bar
from echomq_worker.cli.common import (
    AsJson,
    Queue,
    Url,
    Yes,
    can_ask,
    confirm,
    connected,
    moment,
    note,
    number_or_none,
    prepared,
    print_lines,
    print_table,
    run_async,
    say,
    settings_for,
    yes_no,
)
from echomq_worker.cli.stalled import stalled
from echomq_worker.errors import ConfigError, StateRefused

if TYPE_CHECKING:
    from echomq_worker.admin import Admin
    from echomq_worker.audit import Finding
    from echomq_worker.metrics import Limits, Stats
    from echomq_worker.rows import Counts
    from echomq_worker.settings import Settings


def queue_app() -> typer.Typer:
    """The commands of `queue`."""
    app = typer.Typer(help="Queues.", epilog="Example: echomq-worker queue stats emails", no_args_is_help=False)
    app.callback()(lambda: None)
    app.command("stats", epilog="Example: echomq-worker queue stats emails reports --json")(stats)
    app.command("list", epilog="Example: echomq-worker queue list")(list_queues)
    app.command("pause", epilog="Example: echomq-worker queue pause emails")(pause)
    app.command("resume", epilog="Example: echomq-worker queue resume emails")(resume)
    app.command("drain", epilog="Example: echomq-worker queue drain emails --schedule")(drain)
    app.command("obliterate", epilog="Example: echomq-worker queue obliterate emails --yes")(obliterate)
    app.command("limit", epilog="Example: echomq-worker queue limit emails 20")(limit)
    app.command("rate", epilog="Example: echomq-worker queue rate emails 100 1000")(rate)
    app.command("audit", epilog="Example: echomq-worker queue audit emails --repair")(audit)
    app.command("stalled", epilog="Example: echomq-worker queue stalled emails --max-stalled 3 --yes")(stalled)
    return app


def stats(
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE", help="The queues' names.")],
    *,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Count the jobs of each queue by state.

    Also what it has completed and buried so far, and what is late. `ready` could be claimed now, flat pending and
    lanes together: an autoscaler reads that one.
    """
    settings = prepared(url, *queues)

    async def ask() -> list[tuple[str, Stats]]:
        from echomq_worker.metrics import Metrics

        async with connected(settings) as connector:
            metrics = Metrics(connector)
            rows: list[tuple[str, Stats]] = []
            with progress_bar("queues") as bar:
                for name in queues:
                    rows.append((name, await metrics.stats(name)))
                    bar(len(rows), len(queues))
            return rows

    found = run_async(ask())
    if as_json:
        print_lines(_facts(name, one) for name, one in found)
        return
    rows = [_row(name, one) for name, one in found]
    print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])


def _facts(queue: str, one: Stats) -> dict[str, Any]:
    return {
        "queue": queue,
        "ready": one.counts.ready,
        **asdict(one.counts),
        **asdict(one.totals),
        **asdict(one.limits),
        "oldest_pending_age_ms": one.oldest_pending_age_ms,
        "expired_leases": one.expired_leases,
        "next_due_ms": one.next_due_ms,
    }


def _row(queue: str, one: Stats) -> dict[str, object]:
    counts = one.counts
    return {
        "queue": queue,
        "ready": counts.ready,
        "pending": counts.pending,
        "active": counts.active,
        "scheduled": counts.scheduled,
        "dead": counts.dead,
        "repeats": counts.repeats,
        "paused": yes_no(counts.paused),
        "lanes": f"{sum(counts.lanes.values())} in {len(counts.lanes)}" if counts.lanes else 0,
        "completed": one.totals.completed,
        "failed": one.totals.failed,
        "limit": _ceilings(one.limits),
        "oldest ms": one.oldest_pending_age_ms,
        "expired": one.expired_leases,
        "next due": moment(one.next_due_ms),
    }


def _ceilings(limits: Limits) -> str | None:
    words = [] if limits.concurrency is None else [f"{limits.concurrency} at a time"]
    if limits.rate is not None and limits.window_ms:
        words.append(f"{limits.rate} per {limits.window_ms} ms")
    return ", ".join(words) or None


def list_queues(*, url: Url = None, as_json: AsJson = False) -> None:
    """List every queue that has a key on the server. It looks at all keys once, in small steps."""
    settings = settings_for(url)

    async def ask() -> list[tuple[str, Counts]]:
        from echomq_worker.metrics import Metrics

        async with connected(settings) as connector:
            metrics = Metrics(connector)
            with progress_bar("keys") as bar:
                names = await metrics.queues(progress=bar)
            found: list[tuple[str, Counts]] = []
            with progress_bar("queues") as bar:
                for name in names:
                    found.append((name, await metrics.counts(name)))
                    bar(len(found), len(names))
            return found

    names = ("queue", "ready", "active", "scheduled", "dead", "repeats", "paused")
    rows = [
        (queue, counts.ready, counts.active, counts.scheduled, counts.dead, counts.repeats, counts.paused)
        for queue, counts in run_async(ask())
    ]
    if as_json:
        print_lines(dict(zip(names, row, strict=True)) for row in rows)
        return
    print_table(names, [(*row[:-1], yes_no(row[-1])) for row in rows])


def pause(queue: Queue, *, url: Url = None) -> None:
    """Claim nothing of the queue until it is resumed. What is in hand goes on, and jobs may still be enqueued."""
    _change(url, queue, lambda admin: admin.pause(queue))
    say("paused")


def resume(queue: Queue, *, url: Url = None) -> None:
    """Serve the queue again."""
    _change(url, queue, lambda admin: admin.resume(queue))
    say("resumed")


def limit(
    queue: Queue,
    n: Annotated[
        str, typer.Argument(metavar="N|none", help="Jobs in hand at a time, over all workers; none: no limit.")
    ],
    *,
    url: Url = None,
) -> None:
    """Limit how many jobs are in hand at a time. It holds over all workers of the queue."""
    most = number_or_none("N", n, at_least=1)
    _change(url, queue, lambda admin: admin.set_concurrency(queue, most))
    say("no limit" if most is None else f"at most {most} at a time")


def rate(
    queue: Queue,
    most: Annotated[str, typer.Argument(metavar="MAX|none", help="Jobs claimed in each window; none: no limit.")],
    window_ms: Annotated[
        int | None, typer.Argument(metavar="WINDOW_MS", help="The window in milliseconds.", show_default=False)
    ] = None,
    *,
    url: Url = None,
) -> None:
    """Limit how many jobs are claimed in each window of time. It holds over all workers of the queue."""
    count = number_or_none("MAX", most, at_least=1)
    if count is None and window_ms is not None:
        raise ConfigError(f"WINDOW_MS={window_ms}: expected none with MAX=none")
    if count is not None and (window_ms is None or window_ms < 1):
        given = "WINDOW_MS" if window_ms is None else f"WINDOW_MS={window_ms}"
        raise ConfigError(f"{given}: expected an integer of at least 1 (milliseconds)")
    _change(url, queue, lambda admin: admin.set_rate(queue, count, window_ms))
    say("no limit" if count is None else f"at most {count} per {window_ms} ms")


def drain(
    queue: Queue,
    *,
    schedule: Annotated[bool, typer.Option("--schedule", help="The scheduled jobs too.")] = False,
    yes: Yes = False,
    url: Url = None,
) -> None:
    """Delete every waiting job, flat and of lanes. What is in hand, dead jobs and repeats stay."""
    settings = prepared(url, queue)
    can_ask(yes=yes)
    counts = run_async(_counts(settings, queue))
    what = f"{counts.ready} waiting jobs" + (f" and {counts.scheduled} scheduled ones" if schedule else "")
    confirm(f"Delete {what} of {queue}?", yes=yes)

    async def run() -> int:
        from echomq_worker.admin import Admin

        async with connected(settings) as connector:
            with progress_bar(f"drain {queue}") as bar:
                return await Admin(connector).drain(queue, schedule=schedule, progress=bar)

    say(f"{run_async(run())} deleted")


def obliterate(
    queue: Queue,
    *,
    force: Annotated[bool, typer.Option("--force", help="Also with jobs in hand.")] = False,
    yes: Yes = False,
    url: Url = None,
) -> None:
    """Delete a paused queue whole. Every job, repeats, limits and counts: no key of it is left. One that is not paused,
    or has jobs in hand without --force, is refused: exit code 1.
    """
    settings = prepared(url, queue)
    can_ask(yes=yes)
    counts = run_async(_counts(settings, queue))
    if not counts.paused:
        raise StateRefused(f"EMQSTATE not paused: {queue}, expected echomq-worker queue pause {queue} before")
    if counts.active and not force:
        raise StateRefused(f"EMQSTATE active jobs present: {counts.active} in {queue}, expected --force")
    parts = f"{counts.ready} waiting, {counts.scheduled} scheduled, {counts.active} active, {counts.dead} dead"
    confirm(f"Delete the queue {queue} whole ({parts}, {counts.repeats} repeats)?", yes=yes)

    async def run() -> None:
        from echomq_worker.admin import Admin

        async with connected(settings) as connector:
            with progress_bar(f"obliterate {queue}") as bar:
                await Admin(connector).obliterate(queue, force=force, progress=bar)

    run_async(run())
    say("obliterated")


def audit(
    queue: Queue,
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what was found, after asking.")] = False,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List what in the queue does not agree with the rest. Exit code 1 where something was found and not mended."""
    settings = prepared(url, queue)
    if repair:
        can_ask(yes=yes)
    findings = run_async(_look(settings, queue))
    if as_json:
        print_lines(_told(one) for one in findings)
    elif findings:
        print_table(("what", "where", "detail"), [(one.kind, one.name, one.detail) for one in findings])
    else:
        say("nothing found")
    if not findings:
        return
    if not repair:
        raise typer.Exit(Exit.FAILED)
    confirm(f"Mend {len(findings)} of {queue}?", yes=yes)
    mended = run_async(_mend(settings, queue, findings))
    note(f"{len(mended)} of {len(findings)} mended")
    if len(mended) < len(findings):
        raise typer.Exit(Exit.FAILED)


def _told(one: Finding) -> dict[str, str]:
    return {"kind": one.kind, "name": one.name, "detail": one.detail}


async def _look(settings: Settings, queue: str) -> list[Finding]:
    from echomq_worker.audit import Audit

    async with connected(settings) as connector:
        with progress_bar(f"audit {queue}") as bar:
            return await Audit(connector).audit(queue, progress=bar)


async def _mend(settings: Settings, queue: str, findings: list[Finding]) -> list[Finding]:
    from echomq_worker.audit import Audit

    async with connected(settings) as connector:
        with progress_bar(f"repair {queue}") as bar:
            return await Audit(connector).repair(queue, findings, progress=bar)


async def _counts(settings: Settings, queue: str) -> Counts:
    from echomq_worker.metrics import Metrics

    async with connected(settings) as connector:
        return await Metrics(connector).counts(queue)


def _change(url: str | None, queue: str, verb: Callable[[Admin], Coroutine[Any, Any, None]]) -> None:
    """One verb of Admin over a connection of its own."""
    settings = prepared(url, queue)

    async def run() -> None:
        from echomq_worker.admin import Admin

        async with connected(settings) as connector:
            await verb(Admin(connector))

    run_async(run())
