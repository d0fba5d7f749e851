"""Depths: how many jobs stand where on the server, read when somebody asks for metrics, and not more often than it
may cost.

Source: issue "Made for the people who run it" (pending, scheduled, active, dead, expired leases per queue and lane;
oldest pending age); decision 0030. One reading at a time; the next one comes after a second at the earliest, and after
ten times what the last one took, so that ever so many lanes never cost more than a tenth of a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from echomq_worker.clock import Clock
from echomq_worker.connector import Wire
from echomq_worker.errors import EchoMQError, WireError
from echomq_worker.logs import clean, get_logger
from echomq_worker.metrics import LaneView, Metrics
from echomq_worker.probes import instruments as i
from echomq_worker.probes.snapshot import Snapshot

LARGEST_LANES = 20
_FRESH_MS = 1_000
_SHARE = 10
# Prometheus gives up after ten seconds unless it is told otherwise.
_LIMIT_S = 3.0
_LABEL_CHARACTERS = 80


class Depths:
    """The queues of one worker, read over its own connection."""

    __slots__ = ("_clock", "_limit_s", "_queues", "_read", "_reading", "_told", "_until_ms", "_wire")

    def __init__(self, wire: Wire, queues: Sequence[str], *, clock: Clock, limit_s: float = _LIMIT_S) -> None:
        self._wire = wire
        self._queues = tuple(queues)
        self._clock = clock
        self._limit_s = limit_s
        self._reading: asyncio.Task[Snapshot] | None = None
        self._read = Snapshot()
        self._told = False
        self._until_ms = float("-inf")

    async def read(self) -> Snapshot:
        """What stands where. Where the server does not answer in time it is only that: no number is better than an
        old one.
        """
        if self._clock.monotonic_ms() < self._until_ms:
            return self._read
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._look(), name="depths")
        return await asyncio.shield(self._reading)

    def close(self) -> None:
        """End a reading that is on its way."""
        if self._reading is not None:
            self._reading.cancel()

    async def _look(self) -> Snapshot:
        begun_ms = self._clock.monotonic_ms()
        made = Snapshot()
        try:
            async with asyncio.timeout(self._limit_s):
                metrics = Metrics(self._wire)
                for queue in self._queues:
                    await _write(metrics, queue, made)
            made.put(i.SERVER.name, 1)
        except (EchoMQError, TimeoutError) as error:
            made = Snapshot()
            made.put(i.SERVER.name, 0)
            self._complain(error)
        now_ms = self._clock.monotonic_ms()
        self._read, self._until_ms = made, now_ms + max(_FRESH_MS, _SHARE * (now_ms - begun_ms))
        return made

    def _complain(self, error: EchoMQError | TimeoutError) -> None:
        """Once, and not of an outage, of which others tell: a right that the worker's user lacks, say."""
        if not self._told and isinstance(error, EchoMQError) and not isinstance(error, WireError):
            self._told = True
            hint = "see echomq-worker acl worker --also metrics"
            get_logger(__name__).warning("queues cannot be read", error=str(error), hint=hint)


async def _write(metrics: Metrics, queue: str, into: Snapshot) -> None:
    stats = await metrics.stats(queue)
    counts = stats.counts
    states = {"pending": counts.pending, "active": counts.active, "scheduled": counts.scheduled, "dead": counts.dead}
    for state, count in states.items():
        into.put(i.QUEUE_JOBS.name, count, queue, state)
    into.put(i.QUEUE_READY.name, counts.ready, queue)
    into.put(i.OLDEST.name, (stats.oldest_pending_age_ms or 0) / 1000, queue)
    into.put(i.EXPIRED.name, stats.expired_leases, queue)
    into.put(i.PAUSED.name, int(counts.paused), queue)
    into.put(i.REPEATS.name, counts.repeats, queue)
    into.put(i.COMPLETED.name, stats.totals.completed, queue)
    into.put(i.DIED.name, stats.totals.failed, queue)
    write_lanes(queue, [lane for lane in await metrics.lanes(queue) if lane.depth or lane.active], into)


def write_lanes(queue: str, lanes: Sequence[LaneView], into: Snapshot) -> None:
    """The largest lanes by name, the others as one: how many series there are is not for producers to say."""
    into.put(i.LANES.name, len(lanes), queue)
    largest = sorted(lanes, key=lambda lane: (-lane.depth - lane.active, lane.group))
    for number, lane in enumerate(largest):
        name = clean(lane.group, limit=_LABEL_CHARACTERS) if number < LARGEST_LANES else i.OTHER_LANES
        into.put(i.LANE_JOBS.name, lane.depth, queue, name, "pending")
        into.put(i.LANE_JOBS.name, lane.active, queue, name, "active")
