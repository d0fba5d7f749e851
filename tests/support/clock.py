"""A clock that stands still until a test moves it. Not part of the package, so production cannot reach it.

Source: style anchor 11; satisfies `echomq_worker.clock.Clock`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

# 2026-01-01T00:00:00Z: later than the ids' epoch, so that ids can be minted.
START_MS = 1_767_225_600_000


class ManualClock:
    """Wall and monotonic time that move only by `advance` (both) and `set` (the wall clock alone, also backwards)."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._wall_ms = now_ms
        self._monotonic_ms = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970."""
        return self._wall_ms

    def monotonic_ms(self) -> float:
        """Milliseconds since the clock was made, moved by `advance` only."""
        return self._monotonic_ms

    @property
    def sleepers(self) -> int:
        """How many sleep now; a test waits for it before it advances."""
        return sum(not future.done() for _, _, future in self._sleepers)

    def set(self, now_ms: int) -> None:
        """Step the wall clock to `now_ms`, as an operator or NTP does; wakes nobody."""
        self._wall_ms = now_ms

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass and wake whoever has slept long enough, earliest first."""
        if ms < 0:
            raise ValueError(f"ms: {ms}, expected 0 or more; set() steps the wall clock back")
        self._wall_ms += ms
        self._monotonic_ms += ms
        while self._sleepers and self._sleepers[0][0] <= self._monotonic_ms:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)

    async def sleep_ms(self, ms: float) -> None:
        """Return once `advance` has let `ms` milliseconds pass; zero or less gives the loop one turn."""
        if ms <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic_ms + ms, next(self._order), future))
        await future

    def call_later(self, ms: float, callback: Callable[[], object], /) -> asyncio.Future[None]:
        """A timer that `advance` runs; zero or less is the next turn of the loop."""
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: None if done.cancelled() else callback())
        if ms <= 0:
            future.set_result(None)
        else:
            heapq.heappush(self._sleepers, (self._monotonic_ms + ms, next(self._order), future))
        return future
