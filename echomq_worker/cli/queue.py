"""`queue stats`: how many jobs are where."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from echomq_worker.cli.common import AsJson, Url, connected, print_json, print_table, run_async, settings_for


def queue_app() -> typer.Typer:
    """The commands of `queue`."""
    app = typer.Typer(help="Queues.", no_args_is_help=False)
    app.callback()(lambda: None)
    app.command("stats")(stats)
    return app


def stats(
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE...", help="The queues' names.")],
    *,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Count the jobs of each queue by state, and what it has completed and buried so far.

    ready: could be claimed now, flat pending and lanes together. An autoscaler reads that one.
    """
    settings = settings_for(url)

    async def ask() -> list[dict[str, Any]]:
        from echomq_worker.jobs import Jobs

        async with connected(settings) as connector:
            jobs = Jobs(connector)
            found = []
            for queue in queues:
                counts = await jobs.counts(queue)
                totals = asdict(await jobs.metrics(queue))
                found.append({"queue": queue, "ready": counts.ready, **asdict(counts), **totals})
            return found

    rows = run_async(ask())
    if as_json:
        print_json(rows)
        return
    print_table(tuple(rows[0]), [tuple(map(_shown, row.values())) for row in rows])


def _shown(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        # Lanes: how many jobs in how many.
        return f"{sum(value.values())} in {len(value)}" if value else 0
    return value
