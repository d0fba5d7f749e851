"""Time as a value that is passed in: the `Clock` protocol and the system's own clock.

Source: design section 1 (no value has a clock of its own). Leases and delays are priced on the server's TIME; this is
the host's clock, for minting ids, for repeats (the seeds price them on the host) and for waiting.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

_NS_PER_MS = 1_000_000
# An event loop whose timer counts whole milliseconds may wake a sleeper this much too early.
_EARLY_MS = 2.0
_EARLY_PART = 1 / 200


class Timer(Protocol):
    """What will be called later."""

    def cancel(self) -> object:
        """Do not call it; after it was called nothing happens."""


class Clock(Protocol):
    """What the package asks of time. The tests' own clock is not part of the package."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970-01-01T00:00:00Z; may step back."""

    def monotonic_ms(self) -> float:
        """Milliseconds since an arbitrary moment; never steps back, comparable within one process only."""

    async def sleep_ms(self, ms: float) -> None:
        """Return after `ms` milliseconds; zero or less gives the event loop one turn. Cancellation goes through."""

    def call_later(self, ms: float, callback: Callable[[], object], /) -> Timer:
        """Call `callback` on the running event loop after `ms` milliseconds, in a later turn also for zero or less."""
        ...


class SystemClock:
    """The host's clocks and the event loop's timer."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970-01-01T00:00:00Z."""
        return time.time_ns() // _NS_PER_MS

    def monotonic_ms(self) -> float:
        """Milliseconds of the host's monotonic clock."""
        return time.monotonic_ns() / _NS_PER_MS

    async def sleep_ms(self, ms: float) -> None:
        """Sleep on the running event loop for `ms` milliseconds; zero or less yields once."""
        await asyncio.sleep(ms / 1000)

    def call_later(self, ms: float, callback: Callable[[], object], /) -> Timer:
        """A timer of the running event loop."""
        return asyncio.get_running_loop().call_later(max(0.0, ms / 1000), callback)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Moments of a monotonic clock, `period_ms` apart and counted from `origin_ms`.

    Loops of one process that count from the same moment wake together, and what they send leaves in one write; another
    process counts from another moment.
    """

    origin_ms: float
    period_ms: int

    @classmethod
    def of(cls, clock: Clock, period_ms: int, origin_ms: float | None = None) -> Self:
        """Counted from `origin_ms`, or from now."""
        return cls(clock.monotonic_ms() if origin_ms is None else origin_ms, period_ms)

    @property
    def early_ms(self) -> float:
        """Who wakes so much before a moment has not woken before it, and need not wait for it."""
        return min(_EARLY_MS, self.period_ms * _EARLY_PART)

    def after(self, now_ms: float) -> float:
        """The next moment for who acts at `now_ms`: at most a period away (and what it is early)."""
        passed = math.floor((now_ms + self.early_ms - self.origin_ms) / self.period_ms)
        return self.origin_ms + (passed + 1) * self.period_ms
