"""`dead …`: the jobs that were given up.

Source: issue "Every control" (requeue and delete of many dead jobs by filter, retention).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from echomq_worker.cli import Exit
from echomq_worker.cli.bar import progress_bar
from echomq_worker.cli.common import (
    AsJson,
    JobId,
    Limit,
    Offset,
    Queue,
    Url,
    Yes,
    can_ask,
    confirm,
    connected,
    note,
    prepared,
    print_json,
    run_async,
    say,
)
from echomq_worker.cli.hints import with_next_step
from echomq_worker.cli.job import print_jobs, print_log, print_row
from echomq_worker.errors import ConfigError

if TYPE_CHECKING:
    from echomq_worker.dead import DeadFilter, Handled
    from echomq_worker.rows import JobView
    from echomq_worker.settings import Settings

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Only these.", show_default=False)]
OlderThan = Annotated[
    int | None,
    typer.Option("--older-than-ms", metavar="MS", min=0, help="Minted so long ago or longer.", show_default=False),
]
WithError = Annotated[
    str | None, typer.Option("--error", metavar="TEXT", help="With TEXT in the last error.", show_default=False)
]
AtMost = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=1, help="At most so many, the oldest first.", show_default=False),
]
Every = Annotated[bool, typer.Option("--all", help="Every dead job of the queue.")]


def dead_app() -> typer.Typer:
    """The commands of `dead`."""
    app = typer.Typer(help="Dead jobs.", epilog="Example: echomq-worker dead list emails", no_args_is_help=False)
    app.callback()(lambda: None)
    app.command("list", epilog="Example: echomq-worker dead list emails --limit 10")(list_dead)
    app.command("show", epilog="Example: echomq-worker dead show emails ID")(show)
    app.command("requeue", epilog="Example: echomq-worker dead requeue emails --error Timeout --limit 100")(requeue)
    app.command("delete", epilog="Example: echomq-worker dead delete emails --older-than-ms 604800000")(delete)
    app.command("trim", epilog="Example: echomq-worker dead trim emails --max-count 10000 --yes")(trim)
    return app


def list_dead(queue: Queue, *, limit: Limit = 50, offset: Offset = 0, url: Url = None, as_json: AsJson = False) -> None:
    """List dead jobs with the reason of their death. The newest mint comes first."""
    settings = prepared(url, queue)

    async def ask() -> list[JobView]:
        from echomq_worker.jobs import Jobs

        async with connected(settings) as connector:
            with progress_bar(queue, counted=False):
                return await Jobs(connector).browse(queue, "dead", limit=limit + 1, offset=offset)

    print_jobs(run_async(ask()), limit, as_json=as_json)


def show(queue: Queue, id: JobId, *, url: Url = None, as_json: AsJson = False) -> None:
    """Show a dead job's row and log. Exit code 1 where the job is not dead."""
    settings = prepared(url, queue)

    async def ask() -> tuple[JobView | None, list[str]]:
        from echomq_worker.jobs import Jobs

        async with connected(settings) as connector:
            jobs = Jobs(connector)
            return await jobs.get(queue, id), await jobs.get_job_logs(queue, id)

    view, lines = run_async(ask())
    if view is None or view.state != "dead":
        note(f"{id}: no such dead job in {queue} (job show says where it is)")
        raise typer.Exit(Exit.FAILED)
    print_row(view, as_json=as_json, log=lines)
    if not as_json:
        print_log(lines)


def requeue(
    queue: Queue,
    ids: Ids = None,
    *,
    older_than_ms: OlderThan = None,
    error: WithError = None,
    limit: AtMost = None,
    every: Every = False,
    force: Annotated[bool, typer.Option("--force", help="Also parents whose children are still out.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Give dead jobs a new life, with nothing held against them.

    Which: ids, what the options choose, or --all. One that is refused, or an id that is not dead: exit code 1.
    """
    settings = prepared(url, queue)
    chosen = _filter(ids, older_than_ms, error, limit, every=every)

    async def run() -> Handled:
        from echomq_worker.admin import Admin

        async with connected(settings) as connector:
            with progress_bar(f"requeue {queue}") as bar:
                return await Admin(connector).requeue_dead(queue, chosen, force=force, progress=bar)

    _tell(run_async(run()), "requeued", ids, as_json=as_json)


def delete(
    queue: Queue,
    ids: Ids = None,
    *,
    older_than_ms: OlderThan = None,
    error: WithError = None,
    limit: AtMost = None,
    every: Every = False,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Delete dead jobs: ids, what the options choose, or --all. An id that is not dead: exit code 1."""
    settings = prepared(url, queue)
    chosen = _filter(ids, older_than_ms, error, limit, every=every)
    can_ask(yes=yes)
    if not yes:
        confirm(f"Delete {run_async(_count(settings, queue, chosen))} dead jobs of {queue}?", yes=yes)

    async def run() -> Handled:
        from echomq_worker.admin import Admin

        async with connected(settings) as connector:
            with progress_bar(f"delete {queue}") as bar:
                return await Admin(connector).delete_dead(queue, chosen, progress=bar)

    _tell(run_async(run()), "deleted", ids, as_json=as_json)


def trim(
    queue: Queue,
    *,
    max_age_ms: Annotated[
        int | None,
        typer.Option("--max-age-ms", metavar="MS", min=0, help="Those minted longer ago.", show_default=False),
    ] = None,
    max_count: Annotated[
        int | None,
        typer.Option("--max-count", metavar="N", min=0, help="The oldest above so many.", show_default=False),
    ] = None,
    yes: Yes = False,
    url: Url = None,
) -> None:
    """Delete dead jobs above an age, a count, or both. The age counts from when the id was minted."""
    settings = prepared(url, queue)
    if max_age_ms is None and max_count is None:
        raise ConfigError("--max-age-ms, --max-count: expected at least one of them")
    can_ask(yes=yes)
    confirm(f"Trim the dead jobs of {queue}?", yes=yes)

    async def run() -> int:
        from echomq_worker.admin import Admin

        async with connected(settings) as connector:
            with progress_bar(f"trim {queue}") as bar:
                return await Admin(connector).trim_dead(queue, max_age_ms=max_age_ms, max_count=max_count, progress=bar)

    say(f"{run_async(run())} deleted")


def _filter(
    ids: list[str] | None, older_than_ms: int | None, error: str | None, limit: int | None, *, every: bool
) -> DeadFilter:
    from echomq_worker.dead import DeadFilter

    chosen = bool(ids) or older_than_ms is not None or error is not None or limit is not None
    if not every and not chosen:
        raise ConfigError("no dead jobs chosen: expected ids, --older-than-ms, --error or --limit, or --all")
    if every and chosen:
        raise ConfigError("--all: expected neither ids nor --older-than-ms, --error or --limit with it")
    return DeadFilter(ids=ids or None, older_than_ms=older_than_ms, error=error, limit=limit)


async def _count(settings: Settings, queue: str, chosen: DeadFilter) -> int:
    from echomq_worker.admin import Admin

    async with connected(settings) as connector:
        with progress_bar(f"look at {queue}") as bar:
            return await Admin(connector).count_dead(queue, chosen, progress=bar)


def _tell(handled: Handled, what: str, ids: list[str] | None, *, as_json: bool) -> None:
    """How many, and why the others were not; exit code 1 where something that was named was not done."""
    if as_json:
        print_json({what: handled.done, "refused": handled.refused})
    else:
        say(f"{handled.done} {what}")
        for id, why in handled.refused.items():
            note(f"{id}: {with_next_step(why)}")
    if handled.refused or (ids and handled.done < len(set(ids))):
        if not as_json and not handled.refused:
            note("the others are not dead (job show says where they are)")
        raise typer.Exit(Exit.FAILED)
