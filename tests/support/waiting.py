"""Waiting for a condition with a sentence and a deadline, never for a duration.

Source: style anchor 16. Nobody else in the tests sleeps (tests/unit/test_gates.py): where a duration is the scenario
itself it has a name here, that of a handler's work or of time that has to pass on a clock which no test can move.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, overload

T = TypeVar("T")

_POLL_S = 0.005
# A deadline is there for what never comes. Nothing is asserted by it: a machine may stand still, or be shared.
PATIENCE_S = 60.0


def _late(sentence: str, deadline_s: float, last: object) -> AssertionError:
    return AssertionError(f"not within {deadline_s:g} s: {sentence} (last seen: {last!r})")


@overload
async def wait_until(predicate: Callable[[], Awaitable[T]], sentence: str, deadline_s: float = PATIENCE_S) -> T: ...
@overload
async def wait_until(predicate: Callable[[], T], sentence: str, deadline_s: float = PATIENCE_S) -> T: ...
async def wait_until(predicate: Callable[[], Any], sentence: str, deadline_s: float = PATIENCE_S) -> Any:
    """Ask `predicate` (plain or async) every 5 ms until it is true and return its value.

    AssertionError with `sentence` and the last value when `deadline_s` seconds are over.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        # Before it is asked: whoever stood still past the deadline looks once more.
        late = time.monotonic() >= deadline
        value = predicate()
        seen = await value if inspect.isawaitable(value) else value
        if seen:
            return seen
        if late:
            raise _late(sentence, deadline_s, seen)
        await asyncio.sleep(_POLL_S)


def wait_until_sync(predicate: Callable[[], T], sentence: str, deadline_s: float = PATIENCE_S) -> T:
    """The same for a test without an event loop; blocks."""
    deadline = time.monotonic() + deadline_s
    while True:
        late = time.monotonic() >= deadline
        seen = predicate()
        if seen:
            return seen
        if late:
            raise _late(sentence, deadline_s, seen)
        time.sleep(_POLL_S)


async def in_time(scenario: Coroutine[Any, Any, T]) -> T:
    """For what a test runs on a loop of its own: the limit of time of a test does not reach into uvloop."""
    return await asyncio.wait_for(scenario, PATIENCE_S)


async def never_ends() -> None:
    """What a handler does that waits to be cancelled."""
    await asyncio.Event().wait()


async def works_for(ms: float) -> None:
    """What a coroutine does whose work takes so long."""
    await asyncio.sleep(ms / 1000)


def works_plainly_for(ms: float) -> None:
    """The same for what blocks its thread, be that the event loop's."""
    time.sleep(ms / 1000)


async def passes(ms: float, what: str) -> None:
    """So much time passes on the real clock. `what` says why no condition tells that it is over."""
    assert what
    await asyncio.sleep(max(0.0, ms) / 1000)


async def passes_until(at_s: float, what: str) -> None:
    """The same until a moment, in seconds since 1970."""
    await passes((at_s - time.time()) * 1000, what)


def passes_plainly(ms: float, what: str) -> None:
    """The same without an event loop; blocks."""
    assert what
    time.sleep(ms / 1000)


async def turns(count: int = 5) -> None:
    """So many turns of the event loop: whatever is ready by now has run."""
    for _ in range(count):
        await asyncio.sleep(0)
