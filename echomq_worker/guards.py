"""Guards of the verbs: what is refused before anything is sent.

Source: the seed "Scheduling & recurrence" (`when is_integer(…) and … >= 0`). As there, a bool is no
integer here.
"""

from __future__ import annotations

import json

from echomq_worker.errors import InvalidArgument, shown

# The most that one log line, or a job's progress, may have.
TEXT_BYTES = 1024 * 1024


def integer(name: str, value: object, *, at_least: int | None = None, at_most: int | None = None) -> int:
    """The value itself when it is an integer within the bounds that are given; InvalidArgument when not."""
    if isinstance(value, bool) or not isinstance(value, int):
        unit = " of ms since 1970" if name.endswith("at_ms") else " of milliseconds" if name.endswith("_ms") else ""
        raise InvalidArgument(f"{name} of type {type(value).__name__}: expected an integer{unit}")
    if at_least is not None and value < at_least:
        raise InvalidArgument(f"{name} {shown(value)}: expected {at_least} or more")
    if at_most is not None and value > at_most:
        raise InvalidArgument(f"{name} {shown(value)}: expected {at_most} or less")
    return value


def token_text(token: int | str) -> str:
    """A fencing token as the wire has it: the number of a plain claim, or `number:random` of one of our own.

    InvalidArgument for anything else.
    """
    if isinstance(token, str):
        number, colon, random = token.partition(":")
        if number.isascii() and number.isdigit() and (not colon or (random and ":" not in random)):
            return token
        raise InvalidArgument("token: expected a number, or number:random as a claim gave it")
    return str(integer("token", token))


def decimal(value: int) -> str:
    """An integer as the wire has it, also beyond the digits that `str` converts."""
    limit = 4_000
    return str(value) if value.bit_length() < limit else "inf" if value > 0 else "-inf"


def utf8(what: str, text: str) -> bytes:
    """A text as the wire has it; InvalidArgument, naming `what`, for one that UTF-8 cannot carry, or of over 1 MiB."""
    try:
        return _bounded(what, text.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what}: expected text that UTF-8 can carry, got a lone surrogate") from None


def progress_text(value: object) -> bytes:
    """A job's progress as its row has it: a text as it is, anything else as JSON; InvalidArgument where it has none."""
    if isinstance(value, str):
        return utf8("progress", value)
    try:
        written = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        raise InvalidArgument(f"progress: expected a text or a JSON value, got {type(value).__name__}") from None
    return _bounded("progress", written)


def _bounded(what: str, written: bytes) -> bytes:
    if len(written) > TEXT_BYTES:
        raise InvalidArgument(f"{what} of {len(written)} bytes: expected at most {TEXT_BYTES}")
    return written
