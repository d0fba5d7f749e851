"""`job show` and `job list`: rows as they stand."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echomq_worker.cli import Exit
from echomq_worker.cli.common import (
    AsJson,
    Queue,
    Url,
    as_text,
    connected,
    note,
    print_json,
    print_table,
    run_async,
    say,
    settings_for,
)

if TYPE_CHECKING:
    from echomq_worker.rows import JobView


def job_app() -> typer.Typer:
    """The commands of `job`."""
    app = typer.Typer(help="Single jobs.", no_args_is_help=False)
    app.callback()(lambda: None)
    app.command("show")(show)
    app.command("list")(list_jobs)
    return app


def show(
    queue: Queue,
    id: Annotated[str, typer.Argument(metavar="ID", help="The job's branded id.")],
    *,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show a job's row, its payload included. A job that has completed has no row: exit code 1."""
    settings = settings_for(url)

    async def ask() -> JobView | None:
        from echomq_worker.jobs import Jobs

        async with connected(settings) as connector:
            return await Jobs(connector).get(queue, id)

    view = run_async(ask())
    if view is None:
        note(f"{id}: no such job in {queue}; a completed job has no row")
        raise typer.Exit(Exit.FAILED)
    facts = _facts(view)
    del facts["score"]
    if as_json:
        print_json(facts)
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        if value is not None:
            say(f"{name.ljust(width)}  {value}")


def list_jobs(
    queue: Queue,
    *,
    state: Annotated[
        str, typer.Option("--state", metavar="STATE", help="pending (flat), active, scheduled or dead.")
    ] = "pending",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = 50,
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=0, help="Pass over so many first.")] = 0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List jobs of one state, the newest first (scheduled, active: the latest due or deadline first)."""
    settings = settings_for(url)

    async def ask() -> list[JobView]:
        from echomq_worker.jobs import Jobs

        async with connected(settings) as connector:
            # Any text: what is no state is refused there, in one line.
            chosen: Any = state
            return await Jobs(connector).browse(queue, chosen, limit=limit, offset=offset)

    views = run_async(ask())
    if as_json:
        print_json([_facts(view) for view in views])
        return
    rows = [
        (view.id, view.state, view.attempts, view.failures, view.group, _moment(view.score), view.last_error)
        for view in views
    ]
    print_table(("id", "state", "attempts", "failures", "group", "due or deadline", "last error"), rows)


def _facts(view: JobView) -> dict[str, Any]:
    return {**asdict(view), "payload": as_text(view.payload), "minted_at": _moment(view.minted_at)}


def _moment(ms: float) -> str | None:
    """ISO 8601 of ms since 1970; None for 0; the number itself where no calendar reaches."""
    if not ms:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(int(ms))
