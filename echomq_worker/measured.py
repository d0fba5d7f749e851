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
        self.queues: Sequence[Station] = ()
        self.meter = Meter(observe, queues, log=log, clock=clock)
        self.probe = Probe(self, meter=self.meter, depths=Depths(connector, queues, clock=clock), about=about)
        self._connector = connector
        self._shared: Shared | None = None
        self._keeper: Keeper | None = None

    def begin(self, shared: Shared, stations: Sequence[Station], keeper: Keeper) -> None:
        """It has started: these are its parts."""
        self._shared, self.queues, self._keeper = shared, stations, keeper

    @property
    def leases(self) -> tuple[int, int]:
        """How many are held, and how many times one was extended."""
        if self._shared is None or self._keeper is None:
            return 0, 0
        return self._shared.leases.held, self._keeper.extended + sum(station.extended for station in self.queues)

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
