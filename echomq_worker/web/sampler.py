"""Sampler: finds the queues of a server, and looks at each of them again and again, for the plots.

Source: issue "Made for the people who run it", A dashboard; style anchor: a pass and its rhythm are apart. A look at
everything takes a while, and the pause after it is many times as long: a server with a thousand queues is looked at
less often, and is never kept busy by being looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from echomq_worker.clock import Clock, SystemClock
from echomq_worker.connector import Wire
from echomq_worker.errors import AuthenticationFailed, EchoMQError, FenceRefused, WireError
from echomq_worker.keyspace import check_queue
from echomq_worker.logs import Logger, get_logger
from echomq_worker.metrics import Metrics, Stats
from echomq_worker.web.plots import History, Sample

LOOK_MS = 2_000
FIND_MS = 30_000
_SHARE = 20
"""The pause behind a look is at least so many times as long as the look."""
_AT_A_TIME = 8


class Known:
    """What is known of one queue: its last numbers, how they came to be, and why they cannot be had ('': they can)."""

    __slots__ = ("history", "stats", "trouble")

    def __init__(self) -> None:
        self.history = History()
        self.stats: Stats | None = None
        self.trouble = ""


class Sampler:
    """`beat()` is one look at every queue that is known, `find()` one look for queues; `run()` repeats both.

    `queues` by name; `found`: everything was looked at once; `error`: what the last look failed with, '' while all is
    well; `pause_ms`: how long it rests behind a look.
    """

    def __init__(self, wire: Callable[[], Wire], named: Collection[str] = (), *, clock: Clock | None = None) -> None:
        self.queues: dict[str, Known] = {check_queue(name): Known() for name in sorted(named)}
        self.error = ""
        self.found = False
        self.pause_ms = LOOK_MS
        self._named = frozenset(named)
        self._wire = wire
        self._clock = clock or SystemClock()
        self._find_at_ms = 0.0
        self._log: Logger = get_logger("echomq_worker.web")

    async def know(self, queue: str) -> Known:
        """What is known of a queue, looked at now. Raises InvalidQueueName, what the wire raises."""
        known = self.queues.get(check_queue(queue)) or Known()
        sample = await self._look(queue, known)
        if queue not in self.queues and any((sample.ready, sample.active, sample.scheduled, sample.dead)):
            self.queues[queue] = known
        return known

    async def beat(self) -> None:
        """Look at each known queue, and for new ones where it is time. Raises what the wire raises."""
        started = self._clock.monotonic_ms()
        if started >= self._find_at_ms:
            await self.find()
            took = self._clock.monotonic_ms() - started
            self._find_at_ms = started + max(FIND_MS, _SHARE * took)
        started = self._clock.monotonic_ms()
        names = list(self.queues)
        for first in range(0, len(names), _AT_A_TIME):
            some = names[first : first + _AT_A_TIME]
            await asyncio.gather(*(self._keep(name) for name in some))
        self.found = True
        self.pause_ms = int(max(LOOK_MS, _SHARE * (self._clock.monotonic_ms() - started)))

    async def find(self) -> None:
        """Look at all keys, in bounded steps, for queues; one that has none any more is forgotten."""
        found = set(await Metrics(self._wire()).queues())
        kept = {name: known for name, known in self.queues.items() if name in found or name in self._named}
        kept.update({name: Known() for name in found if name not in kept})
        self.queues = dict(sorted(kept.items()))

    async def run(self, wanted: Callable[[], bool]) -> None:
        """Repeat as long as it is `wanted`; an outage is waited out."""
        while wanted():
            try:
                await self.beat()
                self.error = ""
            except EchoMQError as error:
                if not self.error:
                    self._log.warning("dashboard cannot read", reason=str(error))
                self.error = str(error) or type(error).__name__
            await self._clock.sleep_ms(self.pause_ms)

    async def _keep(self, queue: str) -> None:
        known = self.queues.get(queue)
        if known is None:
            return
        try:
            known.history.add(await self._look(queue, known))
            known.trouble = ""
        except (WireError, FenceRefused, AuthenticationFailed):
            raise
        except (EchoMQError, ValueError) as error:
            # A key of that queue holds something else: the error is shown for it, and other queues are shown as ever.
            known.trouble = str(error)

    async def _look(self, queue: str, known: Known) -> Sample:
        stats = await Metrics(self._wire()).stats(queue)
        now = self._clock.monotonic_ms()
        counts, totals = stats.counts, stats.totals
        known.stats = stats
        return Sample(
            int(now),
            counts.ready,
            counts.active,
            counts.scheduled,
            counts.dead,
            totals.completed,
            totals.failed,
            stats.oldest_pending_age_ms or 0,
        )
