"""Pump: fires due repeats, delivers the reports of flows and promotes, once per tick or earlier when it has reason to.

Source: design section 3 (Pump), seeds ("The cadence is the Pump's"), decisions P1 to P3, protocol section 6. Any number
of Pumps may run on one queue: the script fires an occurrence once for the whole fleet, and a report that is delivered
twice counts once. Every repeat is priced on the host clock, as the seed has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import anyio

from echomq_worker.calendars import Calendars
from echomq_worker.clock import Clock, Rhythm
from echomq_worker.connector import Wire
from echomq_worker.dead import Retention
from echomq_worker.degraded import FAULTS, Degraded
from echomq_worker.identity import Mint
from echomq_worker.keyspace import Keys
from echomq_worker.logs import Logger
from echomq_worker.nap import Nap
from echomq_worker.outbox import BATCH as OUTBOX_BATCH
from echomq_worker.outbox import deliver
from echomq_worker.script import evaluate, evaluate_many

BATCH = 100
# However often it is poked, a Pump looks at most this often in a tick.
_LOOKS_A_TICK = 20


@dataclass(frozen=True, slots=True)
class Tick:
    """What one pass did: occurrences that it enqueued, due jobs that it released, when the next repeat is due, in ms
    since 1970 on the host clock (None: nothing is registered), dead jobs that it deleted, and reports of flows that it
    delivered; whether `more` of these are there.
    """

    fired: int
    promoted: int
    next_due_ms: int | None
    trimmed: int = 0
    delivered: int = 0
    more: bool = False


class Pump:
    """The Pump of one queue. `beat()` is one bounded tick, `run()` repeats it."""

    __slots__ = (
        "_calendars",
        "_clock",
        "_degraded",
        "_keys",
        "_log",
        "_mint",
        "_nap",
        "_poked",
        "_promote_batch",
        "_retention",
        "_rhythm",
        "_stopping",
        "_tick_ms",
        "_wire",
    )

    def __init__(  # noqa: PLR0913 - each of them by name, most with a default
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
        log: Logger | None = None,
        origin_ms: float | None = None,
    ) -> None:
        """`origin_ms`: from when all loops of the process count beats and ticks."""
        self._wire = wire
        self._keys = keys
        self._clock = clock
        self._mint = mint
        self._tick_ms = tick_ms
        self._rhythm = Rhythm.of(clock, tick_ms, origin_ms)
        self._promote_batch = promote_batch
        self._degraded = degraded
        self._retention = retention
        self._log = log
        self._calendars = Calendars(wire, keys, mint=mint, log=log)
        self._nap = Nap()
        self._poked = False
        self._stopping = False

    def stop(self) -> None:
        """End `run` after the tick that is on. Twice is fine."""
        self._stopping = True
        self._nap.wake()

    def poke(self) -> None:
        """A child of a flow has ended here: its report need not wait for the tick."""
        if not self._poked:
            self._poked = True
            self._nap.wake()

    async def beat(self) -> Tick:
        """Fire what is due, at most 100 repeats, promote one batch, deliver for half a tick at most, and trim the dead
        set where it is kept short.

        Raises WireError, ServerError.
        """
        keys = self._keys
        now = self._clock.now_ms()
        with anyio.CancelScope(shield=True):
            due, head, calendar, reports, promoted = await evaluate_many(
                self._wire,
                [("promote", (keys.schedule, keys.pending), (keys.base, self._promote_batch))],
                beside=[
                    ("ZRANGEBYSCORE", keys.repeat, "-inf", now, "LIMIT", 0, BATCH),
                    ("ZRANGE", keys.repeat, 0, 0, "WITHSCORES"),
                    ("ZRANGE", keys.cron, 0, 0, "WITHSCORES"),
                    ("LRANGE", keys.outbox, 0, OUTBOX_BATCH - 1),
                ],
            )
            for reply in (due, head, calendar, reports, promoted):
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
            struck = await self._calendars.beat(calendar, now)
            delivered, more = await self._deliver(reports)
            trimmed = 0 if self._retention is None else await self._retention.beat()
        return Tick(fired + struck.fired, promoted, _earliest(next_due, struck.next_due), trimmed, delivered, more)

    async def _deliver(self, reports: list[bytes]) -> tuple[int, bool]:
        """How many reports reached their parents, and whether there may be more."""
        keys, told = self._keys, 0
        until = self._clock.monotonic_ms() + self._tick_ms / 2
        while reports:
            done = await deliver(self._wire, keys, reports)
            told += done.told
            if done.aside and self._log is not None:
                self._log.warning("flow reports set aside", queue=keys.queue, count=done.aside, key=keys.malformed)
            if len(reports) < OUTBOX_BATCH:
                break
            if self._stopping or self._clock.monotonic_ms() >= until:
                return told, True
            reports = await self._wire.call("LRANGE", keys.outbox, 0, OUTBOX_BATCH - 1)
        return told, False

    async def run(self) -> None:
        """Tick until stopped. A due repeat does not wait for the tick; a wire error waits on the degraded curve."""
        while not self._stopping:
            self._poked, began_ms = False, self._clock.monotonic_ms()
            try:
                tick = await self.beat()
            except FAULTS as error:
                await self._nap.sleep(self._clock, self._degraded.fail(error, self._nap.wake))
                continue
            self._degraded.good()
            wait_ms = max(1.0, self._rhythm.after(began_ms) - self._clock.monotonic_ms())
            if tick.next_due_ms is not None:
                wait_ms = min(wait_ms, max(1, tick.next_due_ms - self._clock.now_ms()))
            if tick.more:
                wait_ms = 1
            await self._nap.sleep(self._clock, wait_ms)
            if self._poked and not self._stopping:
                gap_ms = self._tick_ms / _LOOKS_A_TICK - (self._clock.monotonic_ms() - began_ms)
                if gap_ms > 0:
                    await self._nap.sleep(self._clock, gap_ms)


def _earliest(*scores: bytes) -> int | None:
    """The lowest score of both registries; None where there is none, or never due: a foreign client may write `inf`."""
    run_at = min(float(score or "inf") for score in scores)
    return int(run_at) if math.isfinite(run_at) else None
