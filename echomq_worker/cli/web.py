"""`web`: the dashboard.

Source: issue "Made for the people who run it", A dashboard.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer

from echomq_worker.cli import Exit
from echomq_worker.cli.common import Url, connected, note, run_async, say, settings_for
from echomq_worker.errors import ConfigError

if TYPE_CHECKING:
    import socket

    from pydantic import SecretStr

    from echomq_worker.settings import Settings
    from echomq_worker.web.access import Access
    from echomq_worker.web.serve import Bind

DEFAULT = "127.0.0.1:8080"


Http = Annotated[str, typer.Option("--http", metavar="HOST:PORT", help="Where to listen.")]
Token = Annotated[
    str | None,
    typer.Option("--token", metavar="TOKEN", help="Ask for this token (ECHOMQ_WEB_TOKEN).", show_default=False),
]
User = Annotated[
    str | None,
    typer.Option("--user", metavar="NAME:PASSWORD", help="Ask for this login (ECHOMQ_WEB_USER).", show_default=False),
]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Show everything, change nothing.")]
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="QUEUE", help="Show it before it is found; repeat for more.", show_default=False),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host", metavar="HOST", help="Answer under this name too; repeat for more.", show_default=False
    ),
]


def web(
    *,
    http: Http = DEFAULT,
    token: Token = None,
    user: User = None,
    read_only: ReadOnly = False,
    queue: Queues = None,
    allow_host: AllowHost = None,
    url: Url = None,
) -> None:
    """Serve the dashboard until a signal comes. On an address that others reach it asks for a token or a login.

    It needs the extra `web`.
    """
    from echomq_worker.keyspace import check_queue
    from echomq_worker.web.serve import Bind, access_for, hosts_for

    for name in queue or ():
        check_queue(name)
    for host in allow_host or ():
        _check_host(host)
    bind = Bind.parse(http)
    if token == "" or user == "":
        raise ConfigError("--token and --user: expected a secret, got nothing")
    settings = settings_for(url)
    shown = token is not None or user is not None
    if not shown:
        token, user = _secret(settings.web_token), _secret(settings.web_user)
    access = access_for(bind, token, user)
    from echomq_worker.address import Address

    Address.parse(settings.require_url())
    _check_extra()
    if shown:
        note("warning: --token and --user are seen by everybody who can list processes, ECHOMQ_WEB_TOKEN and _USER not")
    from echomq_worker.logs import configure_logging
    from echomq_worker.probes.http import bind as listen

    configure_logging(settings.log_format, settings.log_level)
    hosts = hosts_for(bind, allow_host or ())
    with listen(http) as listening:
        run_async(_serve(settings, bind, listening, access, read_only=read_only, queues=queue or (), hosts=hosts))
    raise typer.Exit(Exit.OK)


async def _serve(
    settings: Settings,
    bind: Bind,
    listening: socket.socket,
    access: Access,
    *,
    read_only: bool,
    queues: list[str] | tuple[str, ...],
    hosts: Collection[str] | None,
) -> None:
    from echomq_worker.web import dashboard
    from echomq_worker.web.serve import serve

    where = bind.url(listening.getsockname()[1])
    async with connected(settings) as connector:
        dash = dashboard(connector, access=access, read_only=read_only, queues=queues, hosts=hosts)
        words = {"anybody": "for this machine", "token": "for who has the token", "password": "for who has the login"}
        line = f"dashboard on {where} {words[access.kind]}{', read only' if read_only else ''}; Ctrl-C ends it"
        await serve(connector, dash, listening, lambda: say(line))


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()


def _check_host(host: str) -> None:
    if not host or not host.isascii() or not host.isprintable() or any(sign in host for sign in " /@\\"):
        raise ConfigError("--allow-host: expected the name of a host, such as jobs.example.com")


def _check_extra() -> None:
    from importlib.util import find_spec

    from echomq_worker.web import MISSING

    if any(find_spec(name) is None for name in ("starlette", "uvicorn", "jinja2")):
        raise ConfigError(MISSING)
