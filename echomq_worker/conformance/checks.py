"""Checks: how a scenario says what it expects, and what it found instead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, TypeVar

from echomq_worker.errors import EchoMQError, NoTwin

T = TypeVar("T")

_SHOWN = 600
_POLL_S = 0.005
PATIENCE_S = 5.0
"""How long a scenario waits for what another process, or the server's clock, brings."""


class Broken(EchoMQError):
    """A scenario found something else than its contract says."""


class NotApplicable(EchoMQError):
    """The server lacks what the scenario is about; the text says what."""


class Between:
    """Equal to any number of low..high: a moment that was read between two readings of the server's clock."""

    __slots__ = ("high", "low")

    def __init__(self, low: float, high: float) -> None:
        self.low = low
        self.high = high

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and self.low <= other <= self.high

    def __hash__(self) -> int:
        return hash((self.low, self.high))

    def __repr__(self) -> str:
        return f"{self.low:.0f}..{self.high:.0f}"


def same(found: object, expected: object, what: str) -> None:
    """Raise Broken unless both are equal. Of two dicts only what differs is told."""
    if found == expected:
        return
    if isinstance(found, dict) and isinstance(expected, dict):
        found, expected = _different(found, expected), _different(expected, found)
    raise Broken(f"{what}: found {_shown(found)}, expected {_shown(expected)}")


def holds(truth: object, what: str) -> None:
    """Raise Broken unless it is true."""
    if not truth:
        raise Broken(f"{what}: it is not so")


async def refused(kind: type[EchoMQError], verb: Awaitable[object], what: str, *, text: str | None = None) -> None:
    """Raise Broken unless the verb raises this very refusal, with this text where one is given."""
    try:
        answer = await verb
    except NoTwin:
        # This is no refusal by the server: nothing was sent.
        raise
    except EchoMQError as error:
        same(type(error).__name__, kind.__name__, f"{what}: the refusal")
        if text is not None:
            same(str(error), text, f"{what}: the refusal's text")
        return
    raise Broken(f"{what}: found the answer {_shown(answer)}, expected a refusal, {kind.__name__}")


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    """Wait for what another process or the server's clock brings. Raises Broken when it does not come."""
    deadline = monotonic() + PATIENCE_S
    while not await condition():
        if monotonic() > deadline:
            raise Broken(f"{what}: it did not come within {PATIENCE_S:g} s")
        await asyncio.sleep(_POLL_S)


async def comes(coming: Awaitable[T], what: str) -> T:
    """What is awaited. Raises Broken when it does not come."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await coming
    except TimeoutError:
        raise Broken(f"{what}: none came within {PATIENCE_S:g} s") from None


def _different(one: dict[Any, Any], other: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in one.items() if key not in other or value != other[key]}


def _shown(value: object) -> str:
    text = ascii(value) if not isinstance(value, dict) else _dict(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _dict(value: dict[Any, Any]) -> str:
    return "{" + ", ".join(f"{key}: {_shown(item)}" for key, item in sorted(value.items(), key=str)) + "}"
