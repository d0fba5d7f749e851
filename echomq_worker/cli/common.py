"""What the commands share: options, the connection, and how rows and JSON are printed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from echomq_worker.cli import Exit
from echomq_worker.errors import ConfigError

if TYPE_CHECKING:
    from echomq_worker.connector import Connector
    from echomq_worker.settings import Settings

T = TypeVar("T")

Url = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The Valkey; wins over ECHOMQ_URL.", show_default=False)
]
WireMode = Annotated[
    str | None,
    typer.Option(
        "--wire",
        metavar="WIRE",
        help="Scripts (4), commands of the module (6), or auto (ECHOMQ_WIRE).",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's branded id.")]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The lane: a branded id, or any text.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")]
Offset = Annotated[int, typer.Option("--offset", metavar="N", min=0, help="Pass over so many first.")]

_SHOWN_CHARACTERS = 40
_NOTHING = "-"


def say(text: str) -> None:
    """One line of output, controls made visible: what is shown may come from anywhere."""
    from echomq_worker.logs import clean

    sys.stdout.write(clean(text) + "\n")


def note(text: str) -> None:
    """One line for the person, beside the output: on stderr."""
    from echomq_worker.logs import clean

    sys.stderr.write(clean(text) + "\n")


def print_json(value: object) -> None:
    """One line of JSON in plain ASCII."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")


def print_lines(values: Iterable[object]) -> None:
    """A line of JSON for each."""
    for value in values:
        print_json(value)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns of text: aligned, two blanks between them; on a terminal a table that fits its width."""
    from echomq_worker.logs import clean

    cells = [tuple(_NOTHING if cell is None else clean(str(cell)) for cell in row) for row in rows]
    if sys.stdout.isatty():
        from echomq_worker.cli.tables import draw

        draw(tuple(headers), cells, nothing=_NOTHING)
        return
    texts = [tuple(headers), *cells]
    widths = [max(len(row[column]) for row in texts) for column in range(len(headers))]
    for row in texts:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is lost. Raises ConfigError where there is nobody to ask, Exit(1) for a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Expected --yes, as there is no terminal to ask on; nothing was changed")
    if not typer.confirm(question, err=True):
        note("nothing was changed")
        raise typer.Exit(Exit.FAILED)


def can_ask(*, yes: bool) -> None:
    """Raise ConfigError at once where `confirm` would have nobody to ask."""
    if not yes and not sys.stdin.isatty():
        raise ConfigError("no terminal to ask on: expected --yes; nothing was changed")


def number_or_none(name: str, text: str, *, at_least: int) -> int | None:
    """An argument that is an integer or the word `none`. Raises ConfigError."""
    if text.lower() == "none":
        return None
    if text.isascii() and text.isdecimal() and len(text) < 16 and int(text) >= at_least:
        return int(text)
    raise ConfigError(f"{name}={text[:40]!r}: expected an integer of at least {at_least}, or none")


def yes_no(value: object) -> str:
    """A truth for a person."""
    return "yes" if value else "no"


def moment(ms: float | None) -> str | None:
    """ISO 8601 of ms since 1970; None for None and 0; the number itself where no calendar reaches."""
    from datetime import UTC, datetime

    if not ms:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(int(ms)) if abs(ms) != float("inf") else str(ms)


def as_text(payload: bytes | None) -> str | None:
    r"""Payload bytes for JSON or a person: their text, what is not UTF-8 as `\xff`."""
    return None if payload is None else payload.decode("utf-8", "backslashreplace")


def read_payload(given: str) -> bytes:
    """The bytes of a PAYLOAD argument: `-` is standard input to its end, anything else is itself."""
    if given != "-":
        return os.fsencode(given)
    if sys.stdin.isatty():
        note("reading the payload from the terminal; end with Ctrl-D")
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise ConfigError(f"standard input: {error.strerror or error}, expected the payload there") from None


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run one command's coroutine to its end."""
    return asyncio.run(coroutine)


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Connector]:
    """A connection as the settings say. Raises ConfigError without a URL, and what `connect` raises."""
    from echomq_worker.connector import connect

    async with connect(
        settings.require_url(),
        wire_version=settings.wire_version,
        wire=settings.wire,
        connect_timeout_ms=settings.connect_timeout_ms,
        command_timeout_ms=settings.command_timeout_ms,
        name="echomq-cli",
    ) as connector:
        yield connector


def settings_for(url: str | None, **flags: object) -> Settings:
    """The settings with the flags of a command over them. Raises ConfigError."""
    from echomq_worker.settings import load_settings

    if url is not None and _has_password(url):
        note("warning: --url shows its password to everybody who can list processes, ECHOMQ_URL does not")
    return load_settings({"url": url, **flags})


def _has_password(url: str) -> bool:
    from urllib.parse import parse_qs, urlsplit

    try:
        parts = urlsplit(url)
        return bool(parts.password) or any("password" in name for name in parse_qs(parts.query))
    except ValueError:
        # Whoever reads the value next reports what is wrong with it.
        return False


def prepared(url: str | None, *queues: str) -> Settings:
    """The settings of a command on queues; a wrong name is refused before anything else. Raises ConfigError,
    InvalidQueueName.
    """
    from echomq_worker.keyspace import check_queue

    for queue in queues:
        check_queue(queue)
    return settings_for(url)


def at_ms(text: str, name: str = "--at") -> int:
    """The moment that `name` has, in ms since 1970: an integer, or ISO 8601 with a zone. Raises ConfigError."""
    from datetime import datetime

    try:
        if text.lstrip("-").isdecimal() and text.isascii():
            return int(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        shown = repr(text[:_SHOWN_CHARACTERS])
        raise ConfigError(f"{name}={shown}: expected ms since 1970 or ISO 8601, such as 2030-01-31T08:00:00Z") from None
    if moment.tzinfo is None:
        raise ConfigError(f"{name}={text!r}: expected a time zone, such as {text}Z or {text}+01:00")
    return round(moment.timestamp() * 1000)
