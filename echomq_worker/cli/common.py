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

from echomq_worker.errors import ConfigError

if TYPE_CHECKING:
    from echomq_worker.connector import Connector
    from echomq_worker.settings import Settings

T = TypeVar("T")

Url = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The Valkey; wins over ECHOMQ_URL.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]


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


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns of text, aligned, two blanks between them; the last is as long as it is."""
    from echomq_worker.logs import clean

    texts = [tuple(headers), *(tuple("-" if cell is None else clean(str(cell)) for cell in row) for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(headers))]
    for row in texts:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def as_text(payload: bytes | None) -> str | None:
    r"""Payload bytes for JSON or a person: their text, what is not UTF-8 as `\xff`."""
    return None if payload is None else payload.decode("utf-8", "backslashreplace")


def read_payload(given: str) -> bytes:
    """The bytes of a PAYLOAD argument: `-` is standard input to its end, anything else is itself."""
    if given != "-":
        return os.fsencode(given)
    if sys.stdin.isatty():
        note("reading the payload from the terminal; end with Ctrl-D")
    return sys.stdin.buffer.read()


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
        connect_timeout_ms=settings.connect_timeout_ms,
        command_timeout_ms=settings.command_timeout_ms,
        name="echomq-cli",
    ) as connector:
        yield connector


def settings_for(url: str | None, **flags: object) -> Settings:
    """The settings with the flags of a command over them. Raises ConfigError."""
    from echomq_worker.settings import load_settings

    return load_settings({"url": url, **flags})


def at_ms(text: str) -> int:
    """The moment that `--at` names, in ms since 1970: an integer, or ISO 8601 with a zone. Raises ConfigError."""
    from datetime import datetime

    if text.lstrip("-").isdecimal() and text.isascii():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--at={text!r}: expected ms since 1970 or ISO 8601, such as 2030-01-31T08:00:00Z") from None
    if moment.tzinfo is None:
        raise ConfigError(f"--at={text!r}: expected a time zone, such as {text}Z or {text}+01:00")
    return round(moment.timestamp() * 1000)
