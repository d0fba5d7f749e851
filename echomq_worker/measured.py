"""Measured: what of a run is read when somebody asks for metrics. Made only where somebody may ask.

Source: issue "Made for the people who run it" (Probes and metrics in the worker itself).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from echomq_worker.clock import Clock
from echomq_worker.connector import Connector
from echomq_worker.leases import Keeper
from echomq_worker.logs import Logger
from echomq_worker.observers import Observer
from echomq_worker.probes.depths import Depths
from echomq_worker.probes.meter import Meter
from echomq_worker.probes.probe import Probe
from echomq_worker.readiness import Readiness
from echomq_worker.station import Shared, Station


class Queue:
    """What is read off the loops of one queue."""

    def __init__(self, station: Station) -> None:
        self.queue = station.queue
        self._station = station

    @property
    def counts(self) -> Mapping[str, int]:
        """What the journal has counted."""
        return self._station.journal.counts

    @property
    def in_hand(self) -> Mapping[str, int]:
        """Slots, jobs that run, verdicts without an answer and those sent again, events dropped."""
        station = self._station
        return {
            "slots": sum(one.slots.size for one in station.consumers),
            "running": sum(len(one.slots.running) for one in station.consumers),
            "unanswered": len(station.settle.open),
            "resent": station.settle.resent,
            "unpublished": 0 if station.publisher is None else station.publisher.dropped,
        }

    @property
    def beats(self) -> Mapping[str, int]:
        """Good passes by loop: consumer, metronome, pump, settle."""
        beats: Counter[str] = Counter()
        for loop, degraded in self._station.loops:
            beats[loop] += degraded.beats
        return beats


class Measured:
    """The parts of one run, for its `probe`; `meter` stands where the observers do."""

    def __init__(
        self,
        connector: Connector,
        queues: Sequence[str],
        *,
        observe: Sequence[Observer],
        log: Logger,
        clock: Clock,
        readiness: Callable[[], Readiness],
        about: Mapping[str, str],
    ) -> None:
        self.readiness = readiness
        self.queues: Sequence[Queue] = ()
        self.meter = Meter(observe, queues, log=log, clock=clock)
        self.probe = Probe(self, meter=self.meter, depths=Depths(connector, queues, clock=clock), about=about)
        self._connector = connector
        self._shared: Shared | None = None
        self._stations: Sequence[Station] = ()
        self._keeper: Keeper | None = None

    def begin(self, shared: Shared, stations: Sequence[Station], keeper: Keeper) -> None:
        """It has started: these are its parts."""
        self._shared, self._stations, self._keeper = shared, stations, keeper
        self.queues = [Queue(station) for station in stations]

    @property
    def leases(self) -> tuple[int, int]:
        """How many are held, and how many times one was extended."""
        if self._shared is None or self._keeper is None:
            return 0, 0
        return self._shared.leases.held, self._keeper.extended + sum(station.extended for station in self._stations)

    @property
    def downtime_ms(self) -> float:
        """How long the process was degraded, now included."""
        return 0.0 if self._shared is None else self._shared.outage.downtime_ms

    @property
    def connections(self) -> tuple[Counter[str], int]:
        """Those that stand by purpose, and how many were made for commands."""
        standing = self._connector.standing
        wire = None if self._keeper is None else self._keeper.wire
        standing["leases"] = wire.standing["commands"] if isinstance(wire, Connector) else 0
        return standing, self._connector.generation
