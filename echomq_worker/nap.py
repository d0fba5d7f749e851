"""A wait that somebody else may end early: what every loop does between two passes.

Source: design section 3 (rhythm and pass apart; cancelled only while parked).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from echomq_worker.clock import Clock


class Nap:
    """One sleeper, any number of wakers. A wake that comes before the sleep ends it at once; wakes do not add up."""

    __slots__ = ("_end", "_waiter", "_woken")

    def __init__(self) -> None:
        self._end: Callable[[], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._woken = False

    def wake(self) -> None:
        """End the wait that is on, or the next one."""
        self._woken = True
        self._rise()
        if self._end is not None:
            self._end()

    async def sleep(self, clock: Clock, ms: float) -> bool:
        """Wait for `ms` milliseconds on `clock`, or until woken. Answers whether it was woken."""
        timer = clock.call_later(ms, self._rise)
        try:
            return await self.wait()
        finally:
            timer.cancel()

    async def wait(self) -> bool:
        """Wait until woken, however long that takes. Answers whether it was woken."""
        # A bare future: a cancel scope and a cancelled sleep cost ten times as much, once or twice per claim.
        if not self._woken:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._take()

    async def until(self, wait: Callable[[], Awaitable[object]], end: Callable[[], None]) -> bool:
        """Wait for `wait()`, which is never begun after a wake; one that comes meanwhile calls `end`, which makes it
        return. Answers whether it was woken.

        Errors of the wait come through.
        """
        if not self._woken:
            self._end = end
            try:
                await wait()
            finally:
                self._end = None
        return self._take()

    def _rise(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self) -> bool:
        woken, self._woken = self._woken, False
        return woken
