"""Readiness: whether this process claims and works, as a value for a probe.

Source: issue "The five promises" (readiness follows the claim loop itself), user-needs 12. It is read off the loops
that claim, and not off a task beside them, which may live on when they have stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

# A claim loop makes a pass at least once a beat; one that is this many beats late is not late by chance.
LATE_BEATS = 3


@dataclass(frozen=True, slots=True)
class QueueBeat:
    """The claim loop of one queue: `age_ms` since its last good pass (None: there was none yet), of several the latest;
    `late` above three beats.
    """

    queue: str
    age_ms: int | None
    late: bool


@dataclass(frozen=True, slots=True)
class Readiness:
    """`started`: every loop is made. `draining`: a stop was asked for. `degraded`: a loop cannot do its beat. `wire`:
    what is spoken with the server, in words, such as `4 (scripts)`.
    """

    started: bool = False
    draining: bool = False
    degraded: bool = False
    queues: tuple[QueueBeat, ...] = ()
    wire: str = ""

    @property
    def ready(self) -> bool:
        """Whether jobs that are enqueued now are claimed here."""
        return self.why is None

    @property
    def why(self) -> str | None:
        """Why it is not ready, in a few words; None where it is."""
        if self.draining:
            return "draining"
        if not self.started:
            return "not started"
        if self.degraded:
            return "degraded: the server does not answer as it should"
        late = [beat for beat in self.queues if beat.late]
        if not late:
            return None
        ages = ", ".join(f"{beat.queue} {'never' if beat.age_ms is None else f'{beat.age_ms} ms ago'}" for beat in late)
        return f"no good beat of the claim loop lately: {ages}"
