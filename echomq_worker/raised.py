"""Raised: what a handler raised, read without asking it: its class, what it holds, its cause, its trace.

Source: issue "A worker that runs jobs" (a handler does not end the worker). An exception is an object of the user's,
and any attribute of it may be a property that raises: `isinstance` asks for `__class__`, a log line for
`__traceback__`. What the interpreter itself has stored is still there, and the descriptors of BaseException read it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeGuard, TypeVar

E = TypeVar("E")

_GROUP: Any = BaseExceptionGroup
_BASE: Any = BaseException


def is_a(error: object, *classes: type[E]) -> TypeGuard[E]:
    """As `isinstance`, for any object: by its type, whatever it says itself. Raises what a class of `classes` raises
    that has its own idea of subclasses.
    """
    return issubclass(type(error), classes)


def inside(error: BaseException) -> tuple[BaseException, ...]:
    """What a group holds; nothing for any other exception."""
    if not is_a(error, BaseExceptionGroup):
        return ()
    held: tuple[BaseException, ...] = _GROUP.exceptions.__get__(error)
    return held


def sole(error: BaseException) -> BaseException:
    """The one exception that a group, or a group in a group, holds; the exception itself where there are several."""
    held = inside(error)
    while len(held) == 1:
        error = held[0]
        held = inside(error)
    return error


def walk(error: BaseException) -> Iterator[BaseException]:
    """The exception, and all that it holds where it is a group, in order."""
    waiting = [error]
    while waiting:
        error = waiting.pop()
        yield error
        waiting.extend(reversed(inside(error)))


def cause_of(error: BaseException) -> BaseException | None:
    """What it was raised from."""
    found: BaseException | None = _BASE.__cause__.__get__(error)
    return found


def trace_of(error: BaseException) -> TracebackType | None:
    """The frames that it came through."""
    found: TracebackType | None = _BASE.__traceback__.__get__(error)
    return found


def with_trace(error: BaseException, trace: TracebackType) -> BaseException:
    """The same exception with other frames."""
    _BASE.with_traceback(error, trace)
    return error


def interrupts(error: BaseException) -> bool:
    """Whether somebody has pressed Ctrl-C. Who listens for the signal, as a worker does, has it raise nothing."""
    return is_a(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def say(tell: Callable[..., object], event: str, error: BaseException | None, /, **fields: Any) -> None:
    """Write a line with the trace of `error`. Where that cannot be made the line says so: it is the user's code that
    tells what led to it, and none of it may end a loop.
    """
    try:
        tell(event, exc_info=error, **fields)
    except BaseException as trouble:
        if error is None or interrupts(trouble):
            raise
        tell(event, trace="cannot be read", **fields)
