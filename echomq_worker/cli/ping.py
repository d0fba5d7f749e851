"""`ping`: is the server there, does it take our login, is it of our wire version? Cheap enough for every container.

Source: issue "A worker that runs jobs", Container; user-needs 100 (under 100 ms of CPU, no import of the application).
A plain `redis://` or `unix://` URL is asked over a bare socket: the client library and the settings model take ten
times as long to import as this takes to run. That is also why this module, alone beside `settings`, reads the
environment.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import IO
from urllib.parse import SplitResult, unquote, urlsplit

from echomq_worker.errors import AuthenticationFailed, ConfigError, FenceRefused, Unavailable, Unreachable

DEFAULT_TIMEOUT_MS = 2_000
DAY_MS = 86_400_000
_DEFAULT_VERSION = "echomq:3.0.0"
_FENCE_KEY = "{emq}:version"
_LOGIN_REFUSALS = ("NOAUTH", "WRONGPASS", "NOPERM")
_FLAGS = ("--url", "--timeout-ms")


def quick_ping(arguments: Sequence[str]) -> int | None:
    """Ping with the arguments of the command line; None when they, or the URL, are more than this can read."""
    if len(arguments) % 2 or any(flag not in _FLAGS for flag in arguments[::2]):
        return None
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    timeout = given.get("--timeout-ms", str(DEFAULT_TIMEOUT_MS))
    url = given.get("--url") or os.environ.get("ECHOMQ_URL") or ""
    parts = _simple(url)
    if parts is None or not (timeout.isascii() and timeout.isdigit() and 0 < int(timeout[:20]) <= DAY_MS):
        return None
    version = os.environ.get("ECHOMQ_WIRE_VERSION") or _DEFAULT_VERSION
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    started = time.perf_counter()
    try:
        ask(parts, version, int(timeout) / 1000, where=where)
    except OSError as error:
        raise Unreachable(f"{where}: {error.strerror or str(error) or type(error).__name__}") from None
    except UnicodeError:
        raise Unreachable(f"{where}: no such host") from None
    report(where, (time.perf_counter() - started) * 1000)
    return 0


def report(where: str, took_ms: float) -> None:
    """The line of a ping that was answered."""
    sys.stdout.write(f"pong from {where} in {took_ms:.1f} ms\n")


def _simple(url: str) -> SplitResult | None:
    """The parts of a `redis://` or `unix://` URL without options and in one obvious reading, else None."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    plain = not (parts.query or parts.fragment or "@" in parts.path) and url.isprintable() and " " not in url
    if not plain:
        return None
    if parts.scheme == "unix":
        return parts if parts.path.strip("/") and not parts.netloc else None
    database = parts.path.strip("/")
    readable = parts.scheme == "redis" and parts.hostname and port != 0 and (not database or database.isdigit())
    return parts if readable else None


def ask(parts: SplitResult, version: str, timeout_s: float, *, where: str) -> None:
    """Log in, PING, and compare the fence. Raises OSError, AuthenticationFailed, Unavailable, FenceRefused."""
    commands: list[tuple[str, ...]] = []
    if parts.password is not None:
        user = (unquote(parts.username),) if parts.username else ()
        commands.append(("AUTH", *user, unquote(parts.password)))
    # A user may be without SELECT, as long as it is database 0.
    if parts.scheme == "redis" and int(parts.path.strip("/") or 0):
        commands.append(("SELECT", parts.path.strip("/")))
    commands += [("PING",), ("GET", _FENCE_KEY)]
    with _connect(parts, timeout_s) as connection, connection.makefile("rb") as replies:
        connection.sendall(b"".join(map(_packed, commands)))
        for command in commands[:-1]:
            _reply(replies, command[0], where)
        found = _reply(replies, "GET", where)
    # Absent is a fresh store: the first worker claims it, a probe does not.
    if found is not None and found != version.encode("utf-8", "surrogateescape"):
        raise FenceRefused(version, found.decode("utf-8", "backslashreplace"))


def _connect(parts: SplitResult, timeout_s: float) -> socket.socket:
    if parts.scheme == "unix":
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout_s)
            connection.connect(unquote(parts.path))
        except OSError:
            connection.close()
            raise
        return connection
    return socket.create_connection((parts.hostname or "", parts.port or 6379), timeout=timeout_s)


def _packed(command: Sequence[str]) -> bytes:
    words = [word.encode() for word in command]
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)])


def _reply(replies: IO[bytes], command: str, where: str) -> bytes | None:
    line = replies.readline()
    kind, rest = line[:1], line[1:].rstrip(b"\r\n")
    if not line.endswith(b"\r\n") or kind not in {b"+", b"-", b"$"}:
        raise Unreachable(f"{where}: {command}: the connection ended, or this is no Valkey")
    if kind == b"-":
        text = rest.decode("utf-8", "backslashreplace")
        if text.startswith(_LOGIN_REFUSALS):
            raise AuthenticationFailed(f"{where}: {command}: {text}")
        if text.startswith("MOVED"):
            raise ConfigError(f"{where}: this is a node of a cluster, expected a URL of redis+cluster:// for it")
        raise Unavailable(f"{where}: {command}: {text}")
    if kind == b"+":
        return rest
    if not rest.isdigit():
        return None
    return replies.read(int(rest) + 2)[:-2]


def slow_ping(url: str | None, timeout_ms: int) -> None:
    """The same through the connector, for URLs with TLS or options. Raises what the connector raises."""
    import asyncio

    from echomq_worker.connector import connect
    from echomq_worker.settings import load_settings

    settings = load_settings({"url": url})

    async def through_connector() -> None:
        started = time.perf_counter()
        async with connect(
            settings.require_url(),
            wire_version=settings.wire_version,
            connect_timeout_ms=timeout_ms,
            command_timeout_ms=timeout_ms,
            name="echomq-ping",
        ) as connector:
            await connector.call("PING")
            report(connector.url_safe, (time.perf_counter() - started) * 1000)

    if not 0 < timeout_ms <= DAY_MS:
        raise ConfigError(f"--timeout-ms={str(timeout_ms)[:40]}: expected an integer from 1 to {DAY_MS} (milliseconds)")
    asyncio.run(through_connector())
