"""What was seen of a run, as values: what the account is made of.

All moments are ms on the machine's monotonic clock, but those of repeats, which are ms since 1970 on the host's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.chaos.plan import PRODUCERS, SERVER

Does = Literal["done", "fail_once", "delay_once", "fail", "reject"]
DEADLY = frozenset({"fail", "reject"})
STARVED = "starved"
"""The kind of a gap: a process that the machine did not run for a while, by no fault of the plan."""


@dataclass(frozen=True, slots=True)
class Order:
    """A job that a producer meant to enqueue. `children` are the ids that it waits for, `policy` what its own death
    means to its parent (`fp`, `id`).
    """

    id: str
    queue: str
    does: str = "done"
    group: str = ""
    parent: str = ""
    policy: str = "fp"
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt to enqueue: when it was sent, and the answer (admitted, duplicate, or unsure: none came)."""

    id: str
    sent_ms: float
    answered_ms: float
    answer: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a handler. `held` names the claim, `end_ms` is None and `outcome` '' where no end was noted; `read`
    is what a parent saw: (values, ignored deaths).
    """

    id: str
    queue: str
    worker: str
    pid: int
    attempts: int
    held: str
    start_ms: float
    end_ms: float | None = None
    outcome: str = ""
    group: str = ""
    read: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Happened:
    """A fault that took place. `pids`: only these processes of the target (None: all of it)."""

    kind: str
    target: str
    begin_ms: float
    end_ms: float
    pids: frozenset[int] | None = None
    detail: str = ""

    def touches(self, worker: str, pid: int) -> bool:
        """Whether it happened to this process, to its connections, or to the server."""
        if self.target == SERVER:
            return True
        return self.target == worker and (self.pids is None or pid in self.pids)

    def __str__(self) -> str:
        lasted = f" for {self.end_ms - self.begin_ms:.0f} ms" if self.end_ms - self.begin_ms >= 1 else ""
        whose = self.target if self.target in {SERVER, PRODUCERS} else f"worker {self.target}"
        return f"{self.kind} of {whose}{lasted}{f' ({self.detail})' if self.detail else ''}"


@dataclass(frozen=True, slots=True)
class Fire:
    """An occurrence of a repeat as the wire saw it: `now_ms` is what the Pump said (host clock)."""

    name: str
    id: str
    now_ms: int
    at_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Grid:
    """A repeat of a fixed rate: the first moment of its grid, its period, and when it was cancelled (host clock).

    `host_minus_ms`: the host clock less the monotonic one.
    """

    name: str
    first_ms: int
    every_ms: int
    until_ms: int
    host_minus_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Exit:
    """A worker's process that ended. `fated`: a fault killed it; `asked`: it had been told to stop."""

    worker: str
    pid: int
    code: int
    at_ms: float
    fated: bool = False
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Scrape:
    """The last metrics of a process (a worker, or the supervisor of several): runs started by queue, and what became of
    them by queue and outcome; `open`: runs and verdicts that were still under way; `last`: all had drained by then.
    `stands`: what it says of the server, by queue and name (pending, active, scheduled, dead, …).
    """

    worker: str
    pid: int
    at_ms: float
    started: Mapping[str, int]
    outcomes: Mapping[tuple[str, str], int]
    open: int = 0
    last: bool = False
    stands: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Terms:
    """The numbers of a run: lease, beat, and the margin that a wait may be longer than both together."""

    lease_ms: int
    beat_ms: int
    margin_ms: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that was seen. `places`: where ids stand at the end (pending, active, schedule, dead, lane,
    awaiting_children) with the row's last error; `leftovers`: what the server holds that it should not; `completed`:
    the server's own count by queue; `stands`: its keys counted, as in Scrape; `forgotten_ms`: when the server lost all
    it knew, None: never. `answers_for`: which process has the metrics of a worker's.
    """

    terms: Terms
    orders: Mapping[str, Order]
    tries: Mapping[str, Sequence[Try]]
    runs: Mapping[str, Sequence[Run]]
    faults: Sequence[Happened]
    places: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    fires: Sequence[Fire] = ()
    grids: Sequence[Grid] = ()
    exits: Sequence[Exit] = ()
    leftovers: Sequence[str] = ()
    completed: Mapping[str, int] = field(default_factory=dict)
    stands: Mapping[tuple[str, str], int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    serves: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pumps: Sequence[str] = ()
    forgotten_ms: float | None = None
    scrapes: Sequence[Scrape] = ()
    answers_for: Mapping[int, int] = field(default_factory=dict)
