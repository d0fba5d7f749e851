"""Time as a value that is passed in: the `Clock` protocol and the system's own clock.

Source: design section 1 (no value has a clock of its own). Leases and delays are priced on the server's TIME; this is
the host's clock, for minting ids, for repeats (the seeds price them on the host) and for waiting.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

_NS_PER_MS = 1_000_000


class Clock(Protocol):
    """What the package asks of time. The tests' own clock is not part of the package."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970-01-01T00:00:00Z; may step back."""

    def monotonic_ms(self) -> float:
        """Milliseconds since an arbitrary moment; never steps back, comparable within one process only."""

    async def sleep_ms(self, ms: float) -> None:
        """Return after `ms` milliseconds; zero or less gives the event loop one turn. Cancellation goes through."""


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
