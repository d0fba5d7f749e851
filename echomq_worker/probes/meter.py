"""Meter: what is measured as it happens: how long jobs waited and ran, how late the event loop is.

Source: issue "Made for the people who run it" (handler duration and queue wait, wait from the minted id). It stands
where the observers stand, is told the same, and counts at once: nothing is dropped, however busy the worker is. What
the journal counts anyway is read from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from echomq_worker.clock import Clock
from echomq_worker.identity import minted_near_ms
from echomq_worker.logs import Logger
from echomq_worker.observers import Blocked, DegradedNow, Observed, Observer, Observers, Started
from echomq_worker.outcome import Settled
from echomq_worker.probes import instruments as i
from echomq_worker.probes.snapshot import Histogram, Snapshot

_LOOK_S = 0.25


class Meter(Observers):
    """The observers of a worker that is measured; functions of the user are told as always, where there are any."""

    __slots__ = ("_blocked", "_clock", "_lag", "_outages", "_runs", "_started", "_waits")

    def __init__(self, functions: Sequence[Observer], queues: Sequence[str], *, log: Logger, clock: Clock) -> None:
        super().__init__(functions, log=log)
        self._clock = clock
        # Begun with 0, so that Prometheus sees the first increase.
        self._started = dict.fromkeys(queues, 0)
        self._waits = {queue: Histogram(i.WAITS_S) for queue in queues}
        self._runs = {queue: Histogram(i.RUNS_S) for queue in queues}
        self._lag = Histogram(i.LAGS_S)
        self._outages = 0
        self._blocked = 0

    def note(self, kind: Callable[..., Observed], *values: Any) -> None:
        """Count it, and tell the user's functions in a while."""
        if kind is Started:
            queue, id, attempt = values
            self._started[queue] += 1
            if attempt == 1 and (minted_ms := minted_near_ms(id)) is not None:
                # The id was minted by the producer's clock, which may be ahead of ours.
                self._waits[queue].add(max(0, self._clock.now_ms() - minted_ms) / 1000)
        elif kind is DegradedNow:
            self._outages += 1
        elif kind is Blocked:
            self._blocked += 1
        if self._functions:
            super().note(kind, *values)

    def settled(self, queue: str, answers: Sequence[Settled]) -> None:
        """The server has answered these verdicts."""
        runs = self._runs[queue]
        for job, _, _ in answers:
            # A job for which no handler was called has not run.
            if job.ran_ms:
                runs.add(job.ran_ms / 1000)
        if self._functions:
            super().settled(queue, answers)

    async def watch_lag(self) -> None:
        """Look until cancelled how late the event loop calls what is due."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LOOK_S
            await asyncio.sleep(_LOOK_S)
            self._lag.add(max(0.0, loop.time() - due))

    def write(self, into: Snapshot) -> None:
        """Put what was measured into a snapshot."""
        for queue, count in self._started.items():
            into.put(i.STARTED.name, count, queue)
        for name, histograms in ((i.WAIT.name, self._waits), (i.DURATION.name, self._runs)):
            for queue, histogram in histograms.items():
                into.put(name, histogram.number, queue)
        into.put(i.LAG.name, self._lag.number)
        into.put(i.OUTAGES.name, self._outages)
        into.put(i.BLOCKED.name, self._blocked)
