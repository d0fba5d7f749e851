"""Serve: the dashboard as a program: where it listens, who may come in there, and how it ends.

Source: issue "Made for the people who run it", A dashboard (loopback by default; on any other address it demands a
token or basic auth and refuses to start without).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echomq_worker.errors import ConfigError, shown
from echomq_worker.hostport import parse_hostport, show_hostport
from echomq_worker.probes.http import quiet_uvicorn
from echomq_worker.signals import heard
from echomq_worker.web.access import LOCAL_HOSTS, Access

if TYPE_CHECKING:
    from echomq_worker.connector import Connector
    from echomq_worker.web.app import Dashboard

_END_S = 3
_CONNECTIONS = 500


@dataclass(frozen=True, slots=True)
class Bind:
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, name: str = "--http") -> Bind:
        """`127.0.0.1:8080`, `localhost:0`, `[::1]:8080`. Raises ConfigError."""
        try:
            return cls(*parse_hostport(text))
        except ValueError as error:
            raise ConfigError(f"{name}={shown(text)}: {error}") from None

    @property
    def local(self) -> bool:
        """Whether this machine alone reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    def url(self, port: int) -> str:
        """What a browser is given."""
        return f"http://{show_hostport(self.host, port)}/"


def access_for(bind: Bind, token: str | None, user: str | None) -> Access:
    """Who may come in: with a token or a user whoever has it; without, whoever is on this machine. Raises ConfigError
    where other machines would reach it, and for both at once.
    """
    if token and user:
        raise ConfigError("token and user of the dashboard: expected one of them, not both")
    if token:
        return Access.by_token(token)
    if user:
        name, _, password = user.partition(":")
        return Access.by_password(name, password)
    if not bind.local:
        raise ConfigError(
            f"--http {bind.host}:{bind.port}: other machines reach it, expected a token (ECHOMQ_WEB_TOKEN, --token) "
            "or a user (ECHOMQ_WEB_USER, --user)"
        )
    return Access.anybody()


def hosts_for(bind: Bind, also: Collection[str]) -> Collection[str] | None:
    """The names to answer to: those of this machine where it listens there, any where it listens for others."""
    return (*LOCAL_HOSTS, bind.host, f"[{bind.host}]", *also) if bind.local else (tuple(also) or None)


async def serve(connector: Connector, dash: Dashboard, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until a signal comes; a second one does not wait for answers that are on their way."""
    import uvicorn

    class Server(uvicorn.Server):
        """Signals are the program's; streams are ended before connections are waited for."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            try:
                ready()
            except BaseException:
                # Who asked for it does not hear: it ends as it does at a signal, and uvicorn has nothing to trace.
                await self.shutdown(sockets)
                raise

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            dash.end_streams()
            await super().shutdown(sockets)

    quiet_uvicorn()
    config = uvicorn.Config(
        dash,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_END_S,
    )
    server = Server(config)

    def stop(_: object) -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    with heard(stop):
        await connector.open()
        await server.serve(sockets=[listening])
