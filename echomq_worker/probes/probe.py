"""Probe: what one worker process answers about itself: whether it lives, whether it works, and its numbers.

Source: issue "Made for the people who run it" (`/livez`, `/readyz`, `/metrics`), user-needs 12 and 100. Readiness is
read off the claim loops, see `readiness`. What is counted by the loops themselves is read off them when somebody asks.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from echomq_worker.probes import instruments as i
from echomq_worker.probes.depths import Depths
from echomq_worker.probes.meter import Meter
from echomq_worker.probes.snapshot import Snapshot
from echomq_worker.readiness import Readiness

_STATM = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class Said:
    """An answer of a probe: yes or no, and the JSON that says why."""

    ok: bool
    body: dict[str, Any] = field(default_factory=dict)


class Source(Protocol):
    """Who answers behind a port: one process, or the supervisor of several."""

    async def live(self) -> Said:
        """Whether the process is to be left alone; never no for the server's sake."""
        ...

    async def ready(self) -> Said:
        """Whether jobs that are enqueued now are claimed here."""
        ...

    async def snapshot(self) -> Snapshot:
        """Every number."""
        ...


class QueueParts(Protocol):
    """What is read off the loops of one queue: a station."""

    queue: str

    @property
    def counts(self) -> Mapping[str, int]:
        """What the journal counts."""
        ...

    @property
    def in_hand(self) -> Mapping[str, int]:
        """Slots, jobs that run, verdicts without an answer, verdicts kept to be sent again, events dropped."""
        ...

    @property
    def beats(self) -> Mapping[str, int]:
        """Good passes by loop."""
        ...


class Parts(Protocol):
    """What a run has that is measured, beside its queues."""

    def readiness(self) -> Readiness:
        """Whether it claims and works now."""
        ...

    @property
    def queues(self) -> Sequence[QueueParts]:
        """Its queues, none before it has started."""
        ...

    @property
    def leases(self) -> tuple[int, int]:
        """How many are held, and how many times one was extended."""
        ...

    @property
    def downtime_ms(self) -> float:
        """How long it was degraded, now included."""
        ...

    @property
    def connections(self) -> tuple[Counter[str], int]:
        """Those that stand by purpose, and how many were made for commands."""
        ...


class Probe:
    """The answers of one worker process."""

    def __init__(self, parts: Parts, *, meter: Meter, depths: Depths, about: Mapping[str, str]) -> None:
        """`about`: the versions, `version` and `wire_version`."""
        self._parts = parts
        self.meter = meter
        self._depths = depths
        self._about = dict(about)

    def close(self) -> None:
        """End a reading of the queues that is on its way."""
        self._depths.close()

    async def live(self) -> Said:
        """Yes: who can be asked has an event loop that turns."""
        return Said(True, {"alive": True, "pid": os.getpid(), **self._about})

    async def ready(self) -> Said:
        """What the claim loops say."""
        one = self._parts.readiness()
        queues = [{"queue": beat.queue, "age_ms": beat.age_ms, "late": beat.late} for beat in one.queues]
        body: dict[str, Any] = {"ready": one.ready, "why": one.why, "pid": os.getpid(), **self._about, "wire": one.wire}
        body["queues"] = queues
        return Said(one.ready, body)

    async def snapshot(self) -> Snapshot:
        """Its own numbers, and those of its queues on the server."""
        made = self.own()
        for name, labels, value in await self.shared():
            made.put(name, value, *labels)
        return made

    async def shared(self) -> Snapshot:
        """What any process of the fleet would tell."""
        made = (await self._depths.read()).only(i.SHARED)
        made.put(i.INFO.name, 1, self._about.get("version", ""), self._about.get("wire_version", ""))
        return made

    def own(self) -> Snapshot:
        """What this process did and has."""
        made = Snapshot()
        self.meter.write(made)
        made.put(i.PROCESSES.name, 1)
        used = resource.getrusage(resource.RUSAGE_SELF)
        made.put(i.CPU.name, used.ru_utime + used.ru_stime)
        if (resident := _resident()) is not None:
            made.put(i.RESIDENT.name, resident)
        made.put(i.READY.name, int(self._parts.readiness().ready))
        _write_run(self._parts, made)
        for queue in self._parts.queues:
            _write_queue(queue, made)
        return made


def _write_run(parts: Parts, into: Snapshot) -> None:
    held, extended = parts.leases
    into.put(i.HELD.name, held)
    into.put(i.EXTENSIONS.name, extended)
    into.put(i.DEGRADED.name, int(parts.readiness().degraded))
    into.put(i.DOWNTIME.name, parts.downtime_ms / 1000)
    standing, made = parts.connections
    for purpose in ("commands", "parking", "cancel", "leases"):
        into.put(i.CONNECTIONS.name, standing[purpose], purpose)
    into.put(i.CONNECTS.name, made)


def _write_queue(parts: QueueParts, into: Snapshot) -> None:
    counts, in_hand, queue = parts.counts, parts.in_hand, parts.queue
    for counted, outcome in i.OUTCOMES.items():
        into.put(i.JOBS.name, counts.get(counted, 0), queue, outcome)
    into.put(i.STALLED.name, counts.get("stalled", 0), queue)
    into.put(i.ASKED.name, counts.get("asked", 0), queue)
    names = (i.SLOTS, "slots"), (i.RUNNING, "running"), (i.UNANSWERED, "unanswered"), (i.RESENT, "resent")
    for one, name in (*names, (i.UNPUBLISHED, "unpublished")):
        into.put(one.name, in_hand.get(name, 0), queue)
    for loop, beats in parts.beats.items():
        into.put(i.BEATS.name, beats, queue, loop)


def _resident() -> int | None:
    """The memory of this process in bytes; None where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return None
