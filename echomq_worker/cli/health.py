"""`health`: does the worker of this container work? Cheap enough to be asked every few seconds.

Source: issue "Made for the people who run it" (exit 0 / 1, under 100 ms of CPU, imports no handler code), user-needs
100. It asks the worker's own port over a bare socket, for the same reasons as `ping`; where there is none it asks the
server, as `ping` does.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

from echomq_worker.cli.ping import DAY_MS, DEFAULT_TIMEOUT_MS, is_number
from echomq_worker.errors import ConfigError, EchoMQError, Unreachable
from echomq_worker.hostport import asked_at, parse_hostport, show_hostport

_MOST_BYTES = 1 << 20
_OK = 200


def quick_health(arguments: Sequence[str]) -> int | None:
    """The exit code for the arguments of the command line; None when they are more than this can read."""
    live, values = "--live" in arguments, [word for word in arguments if word != "--live"]
    if len(values) % 2 or any(flag not in {"--http", "--url", "--timeout-ms"} for flag in values[::2]):
        return None
    given = dict(zip(values[::2], values[1::2], strict=True))
    timeout = given.get("--timeout-ms", str(DEFAULT_TIMEOUT_MS))
    if not (is_number(timeout) and 0 < int(timeout) <= DAY_MS):
        return None
    return check(given.get("--http"), given.get("--url"), int(timeout), live=live)


def check(http: str | None, url: str | None, timeout_ms: int, *, live: bool) -> int:
    """0 or 1, and a line that says why. `http` wins over `url`, both over ECHOMQ_HTTP, that over ECHOMQ_URL.

    Raises ConfigError where nobody is named, or in a way that cannot be read.
    """
    at = http or (None if url else os.environ.get("ECHOMQ_HTTP"))
    try:
        return _ask_worker(at, timeout_ms, live=live) if at else _ask_server(url, timeout_ms)
    except ConfigError:
        raise
    except EchoMQError as error:
        from echomq_worker.cli import say_error

        say_error(str(error))
        return 1


def _ask_server(url: str | None, timeout_ms: int) -> int:
    if not (url or os.environ.get("ECHOMQ_URL")):
        raise ConfigError(
            "neither --http (ECHOMQ_HTTP) nor --url (ECHOMQ_URL) is set: expected the worker's or the server's"
        )
    from echomq_worker.cli.ping import quick_ping, slow_ping

    arguments = ["--timeout-ms", str(timeout_ms), *(("--url", url) if url else ())]
    if quick_ping(arguments) is None:
        slow_ping(url, timeout_ms)
    return 0


def _ask_worker(at: str, timeout_ms: int, *, live: bool) -> int:
    path = "/livez" if live else "/readyz"
    try:
        host, port = parse_hostport(at)
        if port == 0:
            raise ValueError("expected the port that the worker listens on, not 0")  # noqa: TRY301 - one line for both
    except ValueError as error:
        raise ConfigError(f"--http (ECHOMQ_HTTP) {at[:60]!a}: {error}") from None
    where = f"http://{show_hostport(asked_at(host), port)}{path}"
    try:
        status, body = _get(asked_at(host), port, path, timeout_ms / 1000)
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise Unreachable(f"{where}: {why} (does the worker run with --http or ECHOMQ_HTTP there?)") from None
    except UnicodeError:
        raise Unreachable(f"{where}: no such host") from None
    if status != _OK:
        raise Unreachable(f"{where}: {_why(body) or f'answers {status}, expected {_OK}'}")
    sys.stdout.write(f"{'alive' if live else 'ready'}: {where}\n")
    return 0


def _get(host: str, port: int, path: str, timeout_s: float) -> tuple[int, bytes]:
    """Status and body of one page. Raises OSError; for what is no HTTP too."""
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode("ascii"))
        answer = b""
        while len(answer) < _MOST_BYTES and (chunk := connection.recv(1 << 16)):
            answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise OSError("no HTTP is spoken there")
    return int(words[1]), body


def _why(body: bytes) -> str | None:
    """What a probe's JSON says."""
    import json

    try:
        said = json.loads(body)
        why = said.get("why") or (f"processes {said['silent']} do not answer" if said.get("silent") else None)
    except (ValueError, AttributeError):
        return None
    return None if why is None else str(why)
