"""What a handler did, as a value; the exceptions by which it steers; and an exception as a row may keep it.

Source: design sections 1 and 2 (the decision is a value, built without I/O, sent by somebody else), protocol section 4
(complete, retry, delay; "dead at once" is a retry with max_attempts 1). An error that a verdict carries always has a
UTF-8 form and a bounded length, whatever the handler raised: a verdict that cannot be sent would hold up all others.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Literal, TypeAlias, cast

from echomq_worker.errors import InvalidArgument, shown
from echomq_worker.raised import inside, walk

ERROR_LIMIT = 1000

_LARGEST_MS = 2**53 - 1
_CUT = "…"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_UNREADABLE = "(its text cannot be read)"
_NAMELESS = "Exception"
_LEAVES = 5


@dataclass(frozen=True, slots=True)
class Complete:
    """The job is done. `result` goes to a flow parent."""

    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The job failed: `delay_ms` later it comes back, or it dies when that was its last attempt.

    `error` becomes the row's `last_error`; it is kept as `clean` gives it.
    """

    delay_ms: int | None
    error: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", clean(self.error))


@dataclass(frozen=True, slots=True)
class DelayTo:
    """Back to the schedule, not a failure: `value` ms from now (`in`, on the server's clock) or since 1970 (`at`)."""

    mode: Literal["in", "at"]
    value: int


@dataclass(frozen=True, slots=True)
class Bury:
    """The job is dead at once. `error` becomes the row's `last_error`; it is kept as `clean` gives it."""

    error: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", clean(self.error))


Verdict: TypeAlias = Complete | RetryLater | DelayTo | Bury


class Retry(Exception):
    """Raised by a handler: this run failed; try again after `delay_ms` (0 or more; None: the handler's own policy).

    `reason` becomes the row's `last_error`. InvalidArgument for a delay that is not an integer of 0..2^53-1.
    """

    def __init__(self, delay_ms: int | None = None, reason: str = "") -> None:
        if delay_ms is not None:
            delay_ms = _checked_ms(delay_ms, 0, "Retry delay_ms")
        self.delay_ms = delay_ms
        self.reason = clean(reason)
        super().__init__(self.delay_ms, self.reason)

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Done:
    """Answered by a batch handler for one job: it is done. `result` is what the parent of a flow gets to read of it,
    anything that JSON holds; of a job that is nobody's child it is not kept.
    """

    result: object = None


class Delay(Exception):
    """Raised by a handler: not now, and not a failure. Back to the schedule for `ms`, or until `at_ms` (since 1970).

    A moment that has passed is due at once, as in the seeds. InvalidArgument unless exactly one of the two is given, as
    an integer within +-(2^53-1).
    """

    def __init__(self, ms: int | None = None, *, at_ms: int | None = None) -> None:
        if (ms is None) == (at_ms is None):
            raise InvalidArgument("Delay: expected either ms or at_ms")
        if ms is not None:
            ms = _checked_ms(ms, -_LARGEST_MS, "Delay ms")
        if at_ms is not None:
            at_ms = _checked_ms(at_ms, -_LARGEST_MS, "Delay at_ms")
        self.ms = ms
        self.at_ms = at_ms
        super().__init__(ms)

    def __reduce__(self) -> tuple[partial[Delay], tuple[()]]:
        # Two arguments of which one may be given: an exception's own way would give none and fail in a process pool.
        return partial(type(self), self.ms, at_ms=self.at_ms), ()

    def __str__(self) -> str:
        return f"for {self.ms} ms" if self.at_ms is None else f"until {self.at_ms} ms"


class Reject(Exception):
    """Raised by a handler: this job will never succeed, it is dead at once. `reason` becomes its `last_error`."""

    def __init__(self, reason: str) -> None:
        self.reason = clean(reason)
        super().__init__(self.reason)


def describe(exc: BaseException) -> str:
    """`TypeName: text` for the row's `last_error`, as `clean` gives it; never raises, also when `str(exc)` does.

    A group of exceptions is followed by the first five that it holds.
    """
    name, text = "", _UNREADABLE
    with suppress(BaseException):
        name = _plain(type(exc).__name__).strip()
    with suppress(BaseException):
        text = _text(exc)
    return clean(f"{name or _NAMELESS}: {text}" if text else name or _NAMELESS)


def clean(text: object) -> str:
    """A text of one line, printable, with a UTF-8 form, of at most ERROR_LIMIT characters. Never raises.

    White space becomes a space; terminal escapes, other control characters and lone surrogates become U+FFFD; what is
    cut off leaves an ellipsis.
    """
    plain = _UNREADABLE
    with suppress(BaseException):
        plain = _plain(text)
    if not plain.isprintable():
        plain = "".join(map(_printable, plain))
    kept = plain.strip()
    return kept if len(plain) <= ERROR_LIMIT else kept[: ERROR_LIMIT - len(_CUT)] + _CUT


def _text(exc: BaseException) -> str:
    text = clean(str(exc))
    if inside(exc):
        leaves = islice((one for one in walk(exc) if not inside(one)), _LEAVES)
        return f"{text}: {'; '.join(map(describe, leaves))}"
    return text


def _plain(value: object) -> str:
    # A subclass of str may have any behaviour; its slice, taken by str itself, has none. A text of many megabytes is
    # cut before anything else looks at it.
    return str.__getitem__(str(value), slice(ERROR_LIMIT + 1))


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else _REPLACEMENT


def _checked_ms(value: object, least: int, what: str) -> int:
    kind = type(value)
    # A subclass of int may have any behaviour; its number, taken by int itself, has none.
    number = int.__index__(cast("int", value)) if issubclass(kind, int) and kind is not bool else None
    if number is None or not least <= number <= _LARGEST_MS:
        raise InvalidArgument(f"{what} {shown(value)}: expected an integer of milliseconds, {least}..2^53-1")
    return number
