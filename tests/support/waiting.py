"""Waiting for a condition with a sentence and a deadline, never for a duration.

Source: style anchor 16.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

_POLL_S = 0.005


def _late(sentence: str, deadline_s: float, last: object) -> AssertionError:
    return AssertionError(f"not within {deadline_s:g} s: {sentence} (last seen: {last!r})")


@overload
async def wait_until(predicate: Callable[[], Awaitable[T]], sentence: str, deadline_s: float = 5.0) -> T: ...
@overload
async def wait_until(predicate: Callable[[], T], sentence: str, deadline_s: float = 5.0) -> T: ...
async def wait_until(predicate: Callable[[], Any], sentence: str, deadline_s: float = 5.0) -> Any:
    """Ask `predicate` (plain or async) every 5 ms until it is true and return its value.

    AssertionError with `sentence` and the last value when `deadline_s` seconds are over.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        value = predicate()
        seen = await value if inspect.isawaitable(value) else value
        if seen:
            return seen
        if time.monotonic() >= deadline:
            raise _late(sentence, deadline_s, seen)
        await asyncio.sleep(_POLL_S)


def wait_until_sync(predicate: Callable[[], T], sentence: str, deadline_s: float = 5.0) -> T:
    """The same for a test without an event loop; blocks."""
    deadline = time.monotonic() + deadline_s
    while True:
        seen = predicate()
        if seen:
            return seen
        if time.monotonic() >= deadline:
            raise _late(sentence, deadline_s, seen)
        time.sleep(_POLL_S)
