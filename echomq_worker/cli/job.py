"""`job …`: single jobs, their rows and logs, and what an operator does to them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from echomq_worker.cli import Exit
from echomq_worker.cli.bar import progress_bar
from echomq_worker.cli.cancel import cancel
from echomq_worker.cli.common import (
    AsJson,
    JobId,
    Limit,
    Offset,
    Queue,
    Url,
    Yes,
    as_text,
    can_ask,
    confirm,
    connected,
    moment,
    note,
    prepared,
    print_json,
    print_lines,
    print_table,
    read_payload,
    run_async,
    say,
)

if TYPE_CHECKING:
    from echomq_worker.jobs import Jobs
    from echomq_worker.rows import JobView

T = TypeVar("T")


def job_app() -> typer.Typer:
    """The commands of `job`."""
    app = typer.Typer(help="Single jobs.", epilog="Example: echomq-worker job show emails ID", no_args_is_help=False)
    app.callback()(lambda: None)
    app.command("show", epilog="Example: echomq-worker job show emails ID --json")(show)
    app.command("list", epilog="Example: echomq-worker job list emails --state scheduled --limit 10")(list_jobs)
    app.command("cancel", epilog="Example: echomq-worker job cancel exports ID --reason 'no longer wanted'")(cancel)
    app.command("remove", epilog="Example: echomq-worker job remove emails ID --yes")(remove)
    app.command("reprocess", epilog="Example: echomq-worker job reprocess emails ID")(reprocess)
    app.command("update", epilog="""Example: echomq-worker job update emails ID '{"to": "ada@example.com"}'""")(update)
    app.command("progress", epilog="Example: echomq-worker job progress emails ID 50")(progress)
    app.command("logs", epilog="Example: echomq-worker job logs emails ID --limit 20")(logs)
    app.command("log", epilog="Example: echomq-worker job log emails ID 'looked at by hand' --keep 100")(log)
    return app


def show(queue: Queue, id: JobId, *, url: Url = None, as_json: AsJson = False) -> None:
    """Show a job's row, its payload included. A job that has completed has no row: exit code 1."""
    view = _ask(url, queue, lambda jobs: jobs.get(queue, id))
    if view is None:
        raise _gone(queue, id)
    print_row(view, as_json=as_json)


def list_jobs(
    queue: Queue,
    *,
    state: Annotated[
        str, typer.Option("--state", metavar="STATE", help="pending (flat), active, scheduled or dead.")
    ] = "pending",
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="GROUP",
            help="The pending jobs of this lane: a branded id, or any text.",
            show_default=False,
        ),
    ] = None,
    limit: Limit = 50,
    offset: Offset = 0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List jobs of one state, the newest first. Of scheduled and active ones the latest due or deadline comes first."""
    from echomq_worker.cli.jsonl import lane_of

    # Any text: what is no state is refused there, in one line.
    chosen: Any = state
    lane = lane_of(group)
    views = _ask(url, queue, lambda jobs: jobs.browse(queue, chosen, group=lane, limit=limit + 1, offset=offset))
    print_jobs(views, limit, as_json=as_json)


def remove(
    queue: Queue,
    id: JobId,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Also one in a worker's hands, or a child of a flow; that counts as dead.")
    ] = False,
    yes: Yes = False,
    url: Url = None,
) -> None:
    """Delete a job with its log, wherever it is. Refused while a worker has it in hand. That, and a job that is gone:
    exit code 1.
    """
    from echomq_worker.identity import check_id

    prepared(url, queue)
    check_id(id)
    can_ask(yes=yes)
    confirm(f"Delete {id} of {queue}?", yes=yes)
    if not _ask(url, queue, lambda jobs: jobs.remove_job(queue, id, force=force)):
        raise _gone(queue, id)
    say("removed")


def reprocess(
    queue: Queue,
    id: JobId,
    *,
    force: Annotated[bool, typer.Option("--force", help="Also a parent whose children are still out.")] = False,
    url: Url = None,
) -> None:
    """Give a dead job a new life. It is back in pending or its lane, with nothing held against it. A job that is gone,
    or not dead: exit code 1.
    """
    if not _ask(url, queue, lambda jobs: jobs.reprocess(queue, id, force=force)):
        raise _gone(queue, id)
    say("pending")


def update(
    queue: Queue,
    id: JobId,
    payload: Annotated[
        str, typer.Argument(metavar="PAYLOAD|-", help="The new payload, sent as it is; - reads standard input.")
    ],
    *,
    url: Url = None,
) -> None:
    """Give a job another payload. A handler that runs already keeps what it has. A job that is gone: exit code 1."""
    prepared(url, queue)
    content = read_payload(payload)
    if not _ask(url, queue, lambda jobs: jobs.update_data(queue, id, content)):
        raise _gone(queue, id)
    say("updated")


def progress(
    queue: Queue,
    id: JobId,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Any text, such as 50.")],
    *,
    url: Url = None,
) -> None:
    """Write a job's progress, and tell those who listen. A job that is gone: exit code 1."""
    if not _ask(url, queue, lambda jobs: jobs.update_progress(queue, id, value)):
        raise _gone(queue, id)
    say("written")


def logs(
    queue: Queue,
    id: JobId,
    *,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many lines.", show_default=False)
    ] = None,
    offset: Offset = 0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print a job's log, the oldest line first. A job that is gone: exit code 1."""

    async def both(jobs: Jobs) -> tuple[list[str], JobView | None]:
        return await jobs.get_job_logs(queue, id, limit=limit, offset=offset), await jobs.get(queue, id)

    lines, view = _ask(url, queue, both)
    if view is None and not lines:
        raise _gone(queue, id)
    if as_json:
        print_lines(lines)
    else:
        print_log(lines)


def log(
    queue: Queue,
    id: JobId,
    line: Annotated[str, typer.Argument(metavar="LINE", help="The line.")],
    *,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=1, help="The newest lines that stay.", show_default=False)
    ] = None,
    url: Url = None,
) -> None:
    """Append a line to a job's log, and print how many it has. A job that is gone: exit code 1."""
    count = _ask(url, queue, lambda jobs: jobs.add_log(queue, id, line, keep=keep))
    if count is None:
        raise _gone(queue, id)
    say(str(count))


def print_jobs(views: Sequence[JobView], limit: int, *, as_json: bool) -> None:
    """The first `limit` jobs as a table, or a line of JSON each; a note on stderr where that is not all of them."""
    more, views = len(views) > limit, views[:limit]
    if as_json:
        print_lines(_facts(view) for view in views)
    else:
        _print_table(views)
    if more:
        note(f"there are more than these {limit}: --limit and --offset show them")


def _print_table(views: Sequence[JobView]) -> None:
    rows = [
        (view.id, view.state, view.attempts, view.failures, view.group, moment(view.score), view.last_error)
        for view in views
    ]
    print_table(("id", "state", "attempts", "failures", "group", "due or deadline", "last error"), rows)


def print_row(view: JobView, *, as_json: bool, log: Sequence[str] | None = None) -> None:
    """One job with all that is known of it, and with its log where that was asked for."""
    facts = _facts(view)
    del facts["score"]
    if as_json:
        print_json(facts if log is None else {**facts, "log": list(log)})
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        if value is not None:
            say(f"{name.ljust(width)}  {value}")


def print_log(lines: Sequence[str]) -> None:
    """A log, a line each."""
    for line in lines:
        say(line)


def _facts(view: JobView) -> dict[str, Any]:
    score = view.score if math.isfinite(view.score) else str(view.score)
    return {**asdict(view), "payload": as_text(view.payload), "minted_at": moment(view.minted_at), "score": score}


def _gone(queue: str, id: str) -> typer.Exit:
    note(f"{id}: no such job in {queue}; a completed job has no row (job list shows those that there are)")
    return typer.Exit(Exit.FAILED)


def _ask(url: str | None, queue: str, verb: Callable[[Jobs], Awaitable[T]]) -> T:
    """One verb of Jobs over a connection of its own."""
    settings = prepared(url, queue)

    async def run() -> T:
        from echomq_worker.jobs import Jobs

        async with connected(settings) as connector:
            with progress_bar(queue, counted=False):
                return await verb(Jobs(connector))

    return run_async(run())
