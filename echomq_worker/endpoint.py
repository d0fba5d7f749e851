"""Where a server is: its address, and redis-py's connections made to open our own protocol there.

Source: design section 4 (redis-py's own retries send a timed-out command again, so they are set to 0). Of redis-py this
uses TLS contexts and the opening of sockets; handshake, reading and writing are in `connection`.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import os
import re
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import redis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from echomq_worker.address import Address, Kind
from echomq_worker.errors import ConfigError, Unreachable
from echomq_worker.hostport import show_hostport

ProtocolFactory = Callable[[], asyncio.Protocol]

_IN_OPENSSL = re.compile(r" \(_ssl\.c:\d+\)")
_TLS_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
# Dead peers are noticed after 30 + 3 * 5 seconds of silence; not every platform has each of the three.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}


class Dialer(Protocol):
    """A redis-py connection that opens one of our protocols each time it is asked to connect."""

    factory: ProtocolFactory
    retry: Any
    host: str
    port: int

    async def connect(self) -> None:
        """Open the socket and TLS; raises the exceptions of redis-py."""


async def _open(opening: Coroutine[Any, Any, tuple[asyncio.Transport, asyncio.Protocol]], *, tcp: bool) -> None:
    transport, _ = await opening
    sock = transport.get_extra_info("socket")
    if tcp and sock is not None:
        _keep_alive(sock)


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


class _TcpDialer(Connection):
    factory: ProtocolFactory

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        await _open(loop.create_connection(self.factory, **self._connection_arguments()), tcp=True)


class _TlsDialer(SSLConnection):
    factory: ProtocolFactory

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        await _open(loop.create_connection(self.factory, **self._connection_arguments()), tcp=True)


class _UnixDialer(UnixDomainSocketConnection):
    factory: ProtocolFactory

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        await _open(loop.create_unix_connection(self.factory, self.path), tcp=False)


def _leave_the_handshake_to_us(_: object) -> None:
    """Stand in for redis-py's own handshake."""


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """A server's address and credentials. `safe` is the URL with secrets masked, `peer` is `host:port` or the path.

    Where the URL names sentinels, these are in `sentinels`, in the order in which to ask them, which changes; what it
    names itself is the first of them, and `at` makes the server that they name. So it is with the nodes of a cluster.
    """

    address: Address
    safe: str
    peer: str
    db: int
    username: str
    password: str
    dialer: Dialer
    sentinels: list[Endpoint]

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Read a URL; raises ConfigError, one line that never holds the password."""
        address = Address.parse(url)
        dialer = _dialer(address)
        peer = address.path if address.kind is Kind.UNIX else show_hostport(*address.hosts[0])
        made = cls(
            address=address,
            safe=address.safe,
            peer=peer,
            db=address.db,
            username=address.username,
            password=address.password,
            dialer=dialer,
            sentinels=[],
        )
        if address.kind is Kind.SENTINEL:
            asked = replace(made, db=0, username=address.sentinel_username, password=address.sentinel_password)
            made.sentinels.extend(replace(asked.at(*host), sentinels=[]) for host in address.hosts)
        return made

    def __repr__(self) -> str:
        return f"Endpoint({self.safe!r})"

    def at(self, host: str, port: int) -> Endpoint:
        """A server that this one has named: another address, the same credentials, the same TLS context."""
        dialer = copy.copy(self.dialer)
        dialer.host, dialer.port = host, port
        peer = show_hostport(host, port)
        return replace(self, safe=f"{self.safe}: {peer}", peer=peer, dialer=dialer)

    async def dial(self, factory: ProtocolFactory) -> None:
        """Connect once, socket and TLS; raises Unreachable."""
        made: list[asyncio.Protocol] = []

        def make() -> asyncio.Protocol:
            made.append(factory())
            return made[0]

        dialer = copy.copy(self.dialer)
        dialer.factory = make
        try:
            await dialer.connect()
        except RedisError as error:
            raise Unreachable(f"{self.safe}: {told(error)}") from error
        if not made:
            # We override a method of redis-py's connections that is not public, the one that opens the socket.
            raise ConfigError(
                f"redis-py {redis.__version__}: it does not open connections as expected, use another one"
            )

    def open_socket(self, timeout_s: float) -> socket.socket:
        """Connect once, socket and TLS, with the thread waiting; each step takes `timeout_s` at most.

        Raises Unreachable.
        """
        context = self.dialer.ssl_context.get() if isinstance(self.dialer, _TlsDialer) else None
        try:
            if self.address.kind is Kind.UNIX:
                return _opened_unix(self.address.path, timeout_s)
            host = self.dialer.host
            opened = socket.create_connection((host, self.dialer.port), timeout_s)
            try:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _keep_alive(opened)
                return opened if context is None else context.wrap_socket(opened, server_hostname=host)
            except BaseException:
                opened.close()
                raise
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"{self.safe}: {told(error)}") from error


def _opened_unix(path: str, timeout_s: float) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.settimeout(timeout_s)
        opened.connect(path)
    except BaseException:
        opened.close()
        raise
    return opened


def told(error: BaseException) -> str:
    """What an error says, on one line; without the place in OpenSSL's source that is part of what TLS says."""
    return " ".join(_IN_OPENSSL.sub("", str(error)).split())


def _check_files(address: Address) -> None:
    files = {name: str(address.tls[name]) for name in _TLS_FILES if address.tls is not None and name in address.tls}
    for name, path in files.items():
        if not os.access(path, os.R_OK):
            why = "it cannot be read" if Path(path).exists() else "it is not there"
            raise ConfigError(f"url {address.safe}: {name}: {why}, expected a path to a file of certificates or keys")
    if "ssl_keyfile" in files and "ssl_certfile" not in files:
        raise ConfigError(f"url {address.safe}: ssl_keyfile without ssl_certfile, expected both or none")


def _dialer(address: Address) -> Dialer:
    _check_files(address)
    settings: dict[str, Any] = {**(address.tls or {})}
    # redis-py would read what it tells the server about itself from the disk, in the event loop; older versions do not.
    if "driver_info" in inspect.signature(AbstractConnection.__init__).parameters:
        settings["driver_info"] = None
    kind: Callable[..., Any] = _TcpDialer if address.tls is None else _TlsDialer
    if address.kind is Kind.UNIX:
        kind, settings["path"] = _UnixDialer, address.path
    else:
        settings["host"], settings["port"] = address.hosts[0]
    try:
        dialer: Any = kind(
            **settings,
            # None of redis-py's time limits: we have one limit for connecting as a whole, and a watchdog for reading.
            socket_timeout=None,
            socket_connect_timeout=None,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=False,
            health_check_interval=0,
            redis_connect_func=_leave_the_handshake_to_us,
        )
        if address.tls is not None:
            # Reads the certificates now, so that a wrong path is reported at the start and not at a later reconnect.
            dialer.ssl_context.get()
    except (RedisError, OSError, ValueError, TypeError) as error:
        hint = " (is it the key, and the password, of that certificate?)" if "ssl_certfile" in settings else ""
        raise ConfigError(
            f"url {address.safe}: TLS options cannot be used: {type(error).__name__}: {told(error)}{hint}"
        ) from None
    made: Dialer = dialer
    return made
