"""Begun: a coroutine whose first step runs at once, and which is awaited later.

Source: issue "Faster than every peer" (pickup). What a loop sends when it is told of something leaves before the loop
itself has woken up: that takes a turn of the event loop, and most of a tenth of a millisecond in a process that idled.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class Begun(Generic[R]):
    """Await it once, for what the coroutine returns or raises. Its first step runs here, outside of any task: up to its
    first wait it may use no timeout and no cancel scope.
    """

    __slots__ = ("_asked", "_coroutine", "_error")

    def __init__(self, coroutine: Coroutine[Any, Any, R]) -> None:
        self._coroutine = coroutine
        self._asked: Any = None
        self._error: Exception | None = None
        try:
            self._asked = coroutine.send(None)
        except Exception as error:  # noqa: BLE001 - whoever awaits it is told; a StopIteration is its value
            self._error = error

    def __await__(self) -> Generator[Any, Any, R]:
        """What it waits for first was asked for already; from there on it is as if it had been awaited all along."""
        try:
            if self._error is not None:
                raise self._error
            asked, waits = self._asked, True
            while waits:
                try:
                    yield asked
                    waits = False
                except BaseException as thrown:  # noqa: BLE001 - what it waits for has raised, or it is cancelled
                    asked = self._coroutine.throw(thrown)
        except StopIteration as stop:
            value: R = stop.value
            return value
        return (yield from self._coroutine.__await__())
