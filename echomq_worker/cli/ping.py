"""`ping`: is the server there, does it take our login, is it of our wire version? Cheap enough for every container.

Source: issue "A worker that runs jobs", Container; user-needs 100 (under 100 ms of CPU, no import of the application).
The server is asked over bare sockets, see `bare`: the client library and the settings model take ten times as long to
import as this takes to run. That is also why this module, alone beside `settings`, reads the environment.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from urllib.parse import SplitResult, unquote, urlsplit

from echomq_worker.cli.bare import Login, Moved, ask, context_for, not_alone, probe, why
from echomq_worker.errors import ConfigError, Unreachable

DEFAULT_TIMEOUT_MS = 2_000
DAY_MS = 86_400_000
_DEFAULT_VERSION = "echomq:3.0.0"
_MOST_DIGITS = 20
_FLAGS = ("--url", "--timeout-ms")


def quick_ping(arguments: Sequence[str]) -> int | None:
    """Ping with the arguments of the command line; None when they, or the URL, are more than this can read."""
    if len(arguments) % 2 or any(flag not in _FLAGS for flag in arguments[::2]):
        return None
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    timeout = given.get("--timeout-ms", str(DEFAULT_TIMEOUT_MS))
    url = given.get("--url") or os.environ.get("ECHOMQ_URL") or ""
    if not (is_number(timeout) and 0 < int(timeout) <= DAY_MS):
        return None
    version = os.environ.get("ECHOMQ_WIRE_VERSION") or _DEFAULT_VERSION
    parts = _simple(url)
    if parts is None:
        return _any(url, version, int(timeout) / 1000)
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    started = time.perf_counter()
    try:
        _ask(parts, version, int(timeout) / 1000, where=where)
    except OSError as error:
        raise Unreachable(f"{where}: {why(error)}") from None
    except UnicodeError:
        raise Unreachable(f"{where}: no such host") from None
    report(where, (time.perf_counter() - started) * 1000)
    return 0


def _any(url: str, version: str, timeout_s: float) -> int | None:
    """The same for a URL of any kind, which takes longer to read; None where another has to say what is wrong."""
    from echomq_worker.address import Address

    try:
        address = Address.parse(url)
        context = context_for(address)
    except (ConfigError, OSError, ValueError, KeyError):
        return None
    started = time.perf_counter()
    try:
        where = probe(address, context, version, timeout_s)
    except OSError as error:
        raise Unreachable(f"{address.safe}: {why(error)}") from None
    except UnicodeError:
        raise Unreachable(f"{address.safe}: no such host") from None
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
    readable = parts.scheme == "redis" and parts.hostname and port != 0 and (not database or is_number(database))
    return parts if readable else None


def is_number(text: str) -> bool:
    """Whether `int` reads it: digits of other scripts, and thousands of digits, raise there."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _ask(parts: SplitResult, version: str, timeout_s: float, *, where: str) -> None:
    """Raises OSError, and what `bare.ask` raises."""
    user, password = unquote(parts.username or ""), None if parts.password is None else unquote(parts.password)
    login = Login(user, password, int(parts.path.strip("/") or 0) if parts.scheme == "redis" else 0)
    with _connect(parts, timeout_s) as connection:
        try:
            ask(connection, login, version, where)
        except Moved:
            raise not_alone(where) from None


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


def slow_ping(url: str | None, timeout_ms: int) -> None:
    """The same through the connector, which says what is wrong with a URL. Raises what the connector raises."""
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
