"""Patience: a limit of time that does not count what this process itself has kept from being seen.

Source: design section 3 (Outage): a handler that blocks the event loop for longer than a limit has what was answered
meanwhile lie unread; that is no outage. Who comes late to judge waits again for as long as it is late.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# A loop is never quite punctual; and what lies in a socket is read before that is over.
PUNCTUAL_S = 0.05


def again_s(late_s: float, limit_s: float) -> float:
    """How long to wait for an answer whose time was up `late_s` ago, seen only now: as long, the limit at most."""
    return max(PUNCTUAL_S, min(late_s, limit_s))


@asynccontextmanager
async def within(limit_s: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, raises TimeoutError; where the loop was blocked when the time was up it is longer, once."""
    loop = asyncio.get_running_loop()
    until = loop.time() + limit_s
    async with asyncio.timeout(None) as limit:

        def judge() -> None:
            late_s = loop.time() - until
            limit.reschedule(loop.time() + (again_s(late_s, limit_s) if late_s > PUNCTUAL_S else 0.0))

        timer = loop.call_at(until, judge)
        try:
            yield
        finally:
            timer.cancel()
