"""Commands as bytes for the wire, packed by hiredis.

Source: issue "Faster than every peer" (commands packed once).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import hiredis

from echomq_worker.errors import InvalidArgument


class Packed(NamedTuple):
    """The last `size` arguments of a command, as bytes for the wire: many that are alike are packed faster at once."""

    size: int
    data: bytes


def pack(command: Sequence[Any]) -> bytes:
    """A command as bytes for the wire; raises InvalidArgument for what is not bytes, text, int or float, or Packed."""
    arguments = tuple(command)
    if arguments and isinstance(arguments[-1], Packed):
        *first, rest = arguments
        return b"*%d%b%b" % (len(first) + rest.size, pack(first).removeprefix(b"*%d" % len(first)), rest.data)
    if not arguments:
        raise InvalidArgument("command: it is empty, expected a name and its arguments")
    try:
        return cast("bytes", hiredis.pack_command(arguments))
    except (TypeError, ValueError):
        place = next((i for i, value in enumerate(arguments) if not _can_be_sent(value)), 0)
        raise InvalidArgument(
            f"command {str(arguments[0])[:20]}: argument {place} is {type(arguments[place]).__name__}, "
            "expected bytes, text that encodes as UTF-8, int or float"
        ) from None


def pack_publish(channel: str, texts: Sequence[str]) -> bytes:
    """`PUBLISH channel text` for each text as bytes for the wire: in half the time of packing each by itself."""
    if not "".join(texts).isascii():
        return b"".join([pack(("PUBLISH", channel, text)) for text in texts])
    head = f"*3\r\n$7\r\nPUBLISH\r\n${len(channel.encode())}\r\n{channel}\r\n$"
    return "".join([f"{head}{len(text)}\r\n{text}\r\n" for text in texts]).encode()


def _can_be_sent(value: object) -> bool:
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    return isinstance(value, (bytes, int, float, memoryview)) and not isinstance(value, bool)
