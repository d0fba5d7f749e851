"""Pump: fires due repeats and promotes, once per tick or earlier when a repeat is due earlier.

Source: design section 3 (Pump), seeds ("The cadence is the Pump's"), decisions P1 to P3. Any number of Pumps may run
on one queue: the script fires an occurrence once for the whole fleet. Every repeat is priced on the host clock, as
the seed has it.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

import anyio

from echomq_worker.clock import Clock
from echomq_worker.connector import Wire
from echomq_worker.dead import Retention
from echomq_worker.degraded import Degraded
from echomq_worker.errors import ServerError, WireError
from echomq_worker.identity import Mint
from echomq_worker.keyspace import Keys
from echomq_worker.nap import Nap
from echomq_worker.script import evaluate, evaluate_many

BATCH = 100


@dataclass(frozen=True, slots=True)
class Tick:
    """What one pass did: occurrences that it enqueued, due jobs that it released, when the next repeat is due, in ms
    since 1970 on the host clock (None: nothing is registered), and dead jobs that it deleted.
    """

    fired: int
    promoted: int
    next_due_ms: int | None
    trimmed: int = 0


class Pump:
    """The Pump of one queue. `beat()` is one bounded tick, `run()` repeats it."""

    __slots__ = (
        "_clock",
        "_degraded",
        "_keys",
        "_mint",
        "_nap",
        "_promote_batch",
        "_retention",
        "_stopping",
        "_tick_ms",
        "_wire",
    )

    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        *,
        clock: Clock,
        mint: Mint,
        tick_ms: int,
        promote_batch: int,
        degraded: Degraded,
        retention: Retention | None = None,
    ) -> None:
        self._wire = wire
        self._keys = keys
        self._clock = clock
        self._mint = mint
        self._tick_ms = tick_ms
        self._promote_batch = promote_batch
        self._degraded = degraded
        self._retention = retention
        self._nap = Nap()
        self._stopping = False

    def stop(self) -> None:
        """End `run` after the tick that is on. Twice is fine."""
        self._stopping = True
        self._nap.wake()

    async def beat(self) -> Tick:
        """Fire what is due, at most 100 repeats, promote one batch, and trim the dead set where it is kept short.

        Raises WireError, ServerError.
        """
        keys = self._keys
        now = self._clock.now_ms()
        with anyio.CancelScope(shield=True):
            # Both are queued in one turn of the event loop, so they leave in one write.
            (due, head), (promoted,) = await asyncio.gather(
                self._wire.pipeline(
                    [
                        ("ZRANGEBYSCORE", keys.repeat, "-inf", now, "LIMIT", 0, BATCH),
                        ("ZRANGE", keys.repeat, 0, 0, "WITHSCORES"),
                    ]
                ),
                evaluate_many(
                    self._wire, [("promote", (keys.schedule, keys.pending), (keys.base, self._promote_batch))]
                ),
            )
            for reply in (due, head, promoted):
                if isinstance(reply, Exception):
                    raise reply
            next_due = head[1] if head else b""
            fired = 0
            if due:
                pairs = [word for name in due for word in (name, self._mint.next())]
                *answers, next_due = await evaluate(
                    self._wire, "repeat_fire", (keys.repeat, keys.pending), (keys.base, now, *pairs)
                )
                fired = answers.count(b"fired")
            trimmed = 0 if self._retention is None else await self._retention.beat()
        return Tick(fired, promoted, _run_at(next_due), trimmed)

    async def run(self) -> None:
        """Tick until stopped. A due repeat does not wait for the tick; a wire error waits on the degraded curve."""
        while not self._stopping:
            try:
                tick = await self.beat()
            except (WireError, ServerError) as error:
                await self._nap.sleep(self._clock, self._degraded.fail(error))
                continue
            self._degraded.good()
            wait_ms: float = self._tick_ms
            if tick.next_due_ms is not None:
                wait_ms = min(wait_ms, max(1, tick.next_due_ms - self._clock.now_ms()))
            await self._nap.sleep(self._clock, wait_ms)


def _run_at(score: bytes) -> int | None:
    """The lowest score of the registry; None where it is empty, or never due (a foreign client may write `inf`)."""
    run_at = float(score or "inf")
    return int(run_at) if math.isfinite(run_at) else None
