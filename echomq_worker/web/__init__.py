"""Web: the dashboard, as a program of its own (`echomq-worker web`) or mounted into an application.

Source: issue "Made for the people who run it", A dashboard. What it needs is in the extra `web`, and imported when a
dashboard is made: nothing of it costs a worker or a producer anything.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from echomq_worker.errors import ConfigError
from echomq_worker.web.access import LOCAL_HOSTS, Access

if TYPE_CHECKING:
    from echomq_worker.connector import Wire
    from echomq_worker.web.app import Dashboard

__all__ = ["LOCAL_HOSTS", "Access", "dashboard"]

MISSING = "the dashboard needs starlette and jinja2: pip install 'echomq-worker[web]'"


def dashboard(
    wire: Wire | str,
    *,
    access: Access,
    read_only: bool = False,
    queues: Collection[str] = (),
    hosts: Collection[str] | None = None,
    secret: bytes | None = None,
    label: str | None = None,
    title: str = "echomq",
) -> Dashboard:
    """An ASGI application with the pages of docs/dashboard.md, to be served by itself or mounted below any path.

    `wire`: a connector, a pool, or a URL, for which a connection is made when the first page is asked for. `access`:
    who may come in; there is no default, `Access.anybody()` says that something before it decides. `queues`: shown
    before the first look at the server has found them. `hosts`: the names under which it may be asked for (None: any).
    `secret`: 16 bytes or more that sign sessions and forms, the same in each process that serves it; random without.
    `label`: what the pages call the server (default: its URL, secrets masked).

    Raises ConfigError where the extra is not installed, and for a URL that cannot be used; InvalidQueueName.
    """
    try:
        from echomq_worker.web.app import make_dashboard
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"starlette", "jinja2", "markupsafe"}:
            raise
        raise ConfigError(MISSING) from None
    return make_dashboard(
        wire,
        access=access,
        read_only=read_only,
        queues=queues,
        hosts=hosts,
        secret=secret,
        label=label,
        title=title,
    )
