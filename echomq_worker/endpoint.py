"""Where the server is: a URL checked and taken apart, and redis-py's connections made to open our own protocol.

Source: design section 4 (redis-py's own retries send a timed-out command again, so they are set to 0). Of redis-py this
uses the reading of URLs, TLS contexts and the opening of sockets; handshake, reading and writing are in `connection`.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from echomq_worker.errors import ConfigError, Unreachable

ProtocolFactory = Callable[[], asyncio.Protocol]

_SCHEMES = ("redis", "rediss", "unix")
# Schemes of several hosts: each of them is read as the plain URL of one.
_OF_SEVERAL = ("redis+cluster", "rediss+cluster")
_COMMON_OPTIONS = frozenset({"db", "username", "password"})
_TLS_OPTIONS = frozenset(
    {
        "ssl_ca_certs",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_ciphers",
        "ssl_keyfile",
        "ssl_min_version",
        "ssl_password",
    }
)
# A misspelt `password` is no option, and its value a password all the same.
_SHOWN_OPTIONS = (_COMMON_OPTIONS | _TLS_OPTIONS) - {"password", "ssl_password"}
_MASK = "***"
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
    """A server's address and credentials. `safe` is the URL with secrets masked, `peer` is `host:port` or the path."""

    safe: str
    peer: str
    db: int
    username: str
    password: str
    dialer: Dialer

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Read `redis://`, `rediss://` or `unix://`; raises ConfigError, one line that never holds the password."""
        scheme = _check_shape(url)
        safe = mask(url)
        _check_options(url, scheme, safe)
        try:
            settings: dict[str, Any] = {**parse_url(url)}
        except ValueError:
            _refuse(safe, "an option has a value that cannot be read, expected such as ?db=0")
        settings.pop("connection_class", None)
        username, password = str(settings.pop("username", "")), str(settings.pop("password", ""))
        db = _database(url, scheme, safe, settings.pop("db", 0))
        dialer = _dialer(scheme, safe, settings)
        peer = str(settings["path"]) if scheme == "unix" else f"{settings['host']}:{settings.get('port', 6379)}"
        return cls(safe=safe, peer=peer, db=db, username=username, password=password, dialer=dialer)

    def __repr__(self) -> str:
        return f"Endpoint({self.safe!r})"

    def at(self, host: str, port: int) -> Endpoint:
        """A server that this one has named: another address, the same credentials, the same TLS context."""
        dialer = copy.copy(self.dialer)
        dialer.host, dialer.port = host, port
        peer = f"{host}:{port}"
        return replace(self, safe=f"{self.safe}: {peer}", peer=peer, dialer=dialer)

    async def dial(self, factory: ProtocolFactory) -> None:
        """Connect once, socket and TLS; raises Unreachable."""
        self.dialer.factory = factory
        try:
            await self.dialer.connect()
        except RedisError as error:
            raise Unreachable(f"{self.safe}: {' '.join(str(error).split())}") from error


def mask(url: str) -> str:
    """The URL with passwords replaced by `***`, fit for logs; `***` alone where its parts cannot be told apart."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return _MASK
    if parts.scheme not in (*_SCHEMES, *_OF_SEVERAL) or _torn(parts):
        return _MASK
    login, at, host = parts.netloc.rpartition("@")
    if ":" in login:
        login = f"{login.partition(':')[0]}:{_MASK}"
    query = "&".join(
        f"{quote(name)}={quote(value, safe='/:') if name in _SHOWN_OPTIONS else _MASK}"
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
    )
    return f"{parts.scheme}://{login}{at}{host}{parts.path}{'?' if query else ''}{query}"


def _torn(parts: SplitResult) -> bool:
    """Whether a `/`, `?` or `#` that should have been escaped may have torn the password out of its place."""
    return bool(parts.fragment) or "@" in parts.path or "@" in parts.query


def _refuse(safe: str, why: str) -> NoReturn:
    raise ConfigError(f"url {safe}: {why}") from None


def _check_shape(url: object) -> str:
    # A '/', '?' or '#' in a password that is not escaped ends the host part early, and then the parts hold pieces of
    # the password: until the shape is known to be right, no piece of the URL is quoted.
    if not isinstance(url, str) or not url:
        raise ConfigError("url: expected a text such as redis://host:6379/0, got none")
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ConfigError("url: holds a space or a control character, expected such as redis://host:6379/0")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(
            "url: the host or port cannot be read, expected such as redis://user:password@host:6379/0 "
            "with / ? # @ : and % in user and password written as %2F %3F %23 %40 %3A %25"
        ) from None
    if parts.scheme not in _SCHEMES or not url.lower().startswith(f"{parts.scheme}://"):
        raise ConfigError("url: expected a scheme of redis://, rediss:// or unix://")
    if _torn(parts) or "#" in url:
        raise ConfigError("url: a / ? # or @ in user, password and path must be written as %2F %3F %23 or %40")
    if port == 0:
        raise ConfigError("url: port 0, expected 1 to 65535")
    if parts.scheme == "unix" and not parts.path.strip("/"):
        raise ConfigError("url: no socket path, expected such as unix:///run/valkey.sock?db=0")
    if parts.scheme != "unix" and not parts.hostname:
        raise ConfigError("url: no host, expected such as redis://host:6379/0")
    return parts.scheme


def _check_options(url: str, scheme: str, safe: str) -> None:
    known = _COMMON_OPTIONS | (_TLS_OPTIONS if scheme == "rediss" else frozenset())
    for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if name not in known:
            _refuse(safe, f"unknown option {name!r}, expected one of {', '.join(sorted(known))}")


def _database(url: str, scheme: str, safe: str, db: object) -> int:
    path = urlsplit(url).path.strip("/")
    if scheme != "unix" and path and not (path.isascii() and path.isdigit()):
        _refuse(safe, f"database {path[:20]!r}, expected a number of 0 or more")
    if not isinstance(db, int) or db < 0:
        _refuse(safe, f"database {db}, expected a number of 0 or more")
    return db


def _dialer(scheme: str, safe: str, settings: dict[str, Any]) -> Dialer:
    # What it would tell the server about itself is read from the disk, in the event loop; older ones do not have this.
    if "driver_info" in inspect.signature(AbstractConnection.__init__).parameters:
        settings = {**settings, "driver_info": None}
    kinds: dict[str, Callable[..., Any]] = {"redis": _TcpDialer, "rediss": _TlsDialer, "unix": _UnixDialer}
    try:
        dialer: Any = kinds[scheme](
            **settings,
            # No time limits of redis-py: connecting has one for all of it, reading has a watchdog.
            socket_timeout=None,
            socket_connect_timeout=None,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=False,
            health_check_interval=0,
            redis_connect_func=_leave_the_handshake_to_us,
        )
        if scheme == "rediss":
            # Reads the certificates now, so that a wrong path is told at once and not at every reconnect.
            dialer.ssl_context.get()
    except (RedisError, OSError, ValueError, TypeError) as error:
        _refuse(safe, f"TLS options cannot be used: {type(error).__name__}: {' '.join(str(error).split())}")
    made: Dialer = dialer
    return made
