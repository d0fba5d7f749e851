"""The command line's shape: which commands there are. What they do is in a module each, imported when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from echomq_worker.cli.acl import acl
from echomq_worker.cli.check import check
from echomq_worker.cli.common import Url
from echomq_worker.cli.conformance import conformance
from echomq_worker.cli.dead import dead_app
from echomq_worker.cli.enqueue import enqueue
from echomq_worker.cli.events import events
from echomq_worker.cli.flow import flow_app
from echomq_worker.cli.job import job_app
from echomq_worker.cli.lane import lane_app
from echomq_worker.cli.native import native_app
from echomq_worker.cli.ping import DAY_MS, DEFAULT_TIMEOUT_MS, slow_ping
from echomq_worker.cli.queue import queue_app
from echomq_worker.cli.repeat import repeat_app
from echomq_worker.cli.shape import add_run, bare_app, carry_out
from echomq_worker.cli.top import top
from echomq_worker.cli.web import web
from echomq_worker.errors import ConfigError


def make_app() -> typer.Typer:
    """All commands."""
    app = bare_app()
    add_run(app)
    app.command("demo", epilog="Example: echomq-worker demo")(demo)
    app.command("enqueue", epilog="""Example: echomq-worker enqueue emails '{"to": "ada@example.com"}'""")(enqueue)
    app.add_typer(repeat_app(), name="repeat")
    app.add_typer(queue_app(), name="queue")
    app.add_typer(job_app(), name="job")
    app.add_typer(dead_app(), name="dead")
    app.add_typer(lane_app(), name="lane")
    app.add_typer(flow_app(), name="flow")
    app.add_typer(native_app(), name="native")
    app.command("top", epilog="Example: echomq-worker top emails reports")(top)
    app.command("events", epilog="Example: echomq-worker events emails --json | jq .event")(events)
    app.command("web", epilog="Example: echomq-worker web --http 127.0.0.1:8080 --read-only")(web)
    app.command("check", epilog="Example: echomq-worker check app:worker")(check)
    app.command("acl", epilog="Example: echomq-worker acl worker --queue emails")(acl)
    app.command("conformance", epilog="Example: echomq-worker conformance --only retry --verbose")(conformance)
    app.command("ping", epilog="Example: echomq-worker ping --timeout-ms 1000")(ping)
    app.command("health", epilog="Example: echomq-worker health --http 127.0.0.1:9000")(health)
    return app


def run_app(arguments: Sequence[str]) -> int:
    """Run one command line; see `carry_out`."""
    return carry_out(make_app(), arguments)


def demo() -> None:
    """Watch a dozen jobs live, on a private Valkey. A worker runs them; what becomes of each is told (under 20 s)."""
    from echomq_worker.cli.demo import run_demo

    raise typer.Exit(run_demo())


def ping(
    *,
    url: Url = None,
    timeout_ms: Annotated[
        int, typer.Option("--timeout-ms", metavar="MS", help="The limit for connecting, and for the answer.")
    ] = DEFAULT_TIMEOUT_MS,
) -> None:
    """Ask the server for a pong. It is reachable, takes the login and has the wire version: for health checks."""
    slow_ping(url, timeout_ms)


def health(
    *,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="HOST:PORT", help="Where the worker answers; wins over ECHOMQ_HTTP.", show_default=False
        ),
    ] = None,
    url: Url = None,
    live: Annotated[bool, typer.Option("--live", help="Ask whether it lives, not whether it works.")] = False,
    timeout_ms: Annotated[
        int, typer.Option("--timeout-ms", metavar="MS", help="The limit for connecting, and for the answer.")
    ] = DEFAULT_TIMEOUT_MS,
) -> None:
    """Ask the worker whether it works: 0 or 1, for containers. Without --http and ECHOMQ_HTTP the server is asked."""
    from echomq_worker.cli.health import check as check_health

    if not 0 < timeout_ms <= DAY_MS:
        raise ConfigError(f"--timeout-ms={str(timeout_ms)[:40]}: expected an integer from 1 to {DAY_MS} (milliseconds)")
    raise typer.Exit(check_health(http, url, timeout_ms, live=live))
