"""Observers: functions of the user that are told what becomes of jobs, as typed values, off the hot path.

Source: issue "Every control" (Observers). What happens is noted where it happens and told by a task of its own; a slow
observer loses the oldest notes, one that raises is logged once. Neither harms a job.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import anyio

from echomq_worker.guest import apart, hosted
from echomq_worker.logs import Logger
from echomq_worker.nap import Nap
from echomq_worker.outcome import Settled, passes
from echomq_worker.raised import say
from echomq_worker.verdict import Bury, DelayTo, RetryLater, Verdict

# Notes that wait to be told; above this the oldest go.
KEEP = 10_000
# An observer that never suspends gives the event loop a turn after so many.
_TURN = 100


@dataclass(frozen=True, slots=True)
class Started:
    """A handler is about to run. `attempt` counts claims of the job, from 1."""

    queue: str
    id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Completed:
    """The server has taken the completion."""

    queue: str
    id: str
    attempt: int
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A run has failed, for the `failures`th time; Retried or Dead comes next."""

    queue: str
    id: str
    attempt: int
    failures: int
    error: str
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Retried:
    """The job whose run failed comes back in `delay_ms`."""

    queue: str
    id: str
    attempt: int
    failures: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Delayed:
    """The handler sent its job back to the schedule, which is no failure."""

    queue: str
    id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Dead:
    """The job is given up. `attempt` is None where no handler of this worker had it: a claim or the sweep buried it."""

    queue: str
    id: str
    attempt: int | None
    error: str


@dataclass(frozen=True, slots=True)
class Stale:
    """The claim was not ours any more: `reason` says how a verdict was refused (stale, gone, unknown), or why the lease
    is lost (stale, gone, not_active).
    """

    queue: str
    id: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class DegradedNow:
    """The first loop of the process cannot do its beat: an outage begins."""

    loop: str
    error: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """Every loop has had a good beat again."""

    downtime_ms: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """Something blocked the event loop for `blocked_ms`; it turns again. What it was, as far as is known: the handler
    of a queue, the job, and `where`, the outermost and the innermost line of it.
    """

    queue: str | None
    handler: str | None
    id: str | None
    where: str
    blocked_ms: int


Observed: TypeAlias = (
    Started | Completed | Failed | Retried | Delayed | Dead | Stale | DegradedNow | Recovered | Blocked
)
Observer: TypeAlias = Callable[[Any], object]
"""A function of one Observed; what it returns is awaited where it can be."""


class Observers:
    """What is to be told, and to whom. Made only where there is an observer: nobody else pays for it."""

    __slots__ = ("_closed", "_ended", "_functions", "_idle", "_keep", "_log", "_nap", "_notes", "_raised", "dropped")

    def __init__(self, functions: Sequence[Observer], *, log: Logger, keep: int = KEEP) -> None:
        self.dropped = 0
        self._functions = tuple(functions)
        self._log = log
        self._keep = keep
        # The class of an event and its arguments: the value itself is made when it is told, off the hot path.
        self._notes: deque[tuple[Any, ...]] = deque()
        self._nap = Nap()
        self._idle = False
        self._closed = False
        self._ended = anyio.Event()
        self._raised: set[int] = set()

    def note(self, kind: Callable[..., Observed], *values: object) -> None:
        """Something happened; it is told as `kind(*values)` in a while."""
        if len(self._notes) >= self._keep:
            self._notes.popleft()
            self.dropped += 1
            if self.dropped == 1:
                self._log.warning("observers too slow", kept=self._keep, hint="the oldest of what they are told goes")
        self._notes.append((kind, *values))
        if self._idle:
            self._idle = False
            self._nap.wake()

    def settled(self, queue: str, answers: Sequence[Settled]) -> None:
        """The server has answered these verdicts."""
        for job, verdict, answer in answers:
            id, attempt = job.id, job.attempts
            if answer == "done":
                self.note(Completed, queue, id, attempt, job.ran_ms)
                continue
            if answer not in {"scheduled", "dead", "delayed"}:
                self.note(Stale, queue, id, attempt, answer)
                continue
            failures = job.failures + 1
            if isinstance(verdict, (RetryLater, Bury)):
                self.note(Failed, queue, id, attempt, failures, verdict.error, job.ran_ms)
            if answer == "scheduled" and isinstance(verdict, RetryLater):
                self.note(Retried, queue, id, attempt, failures, verdict.delay_ms or 0)
            elif answer == "dead":
                self.note(Dead, queue, id, attempt, cause(verdict))
            elif isinstance(verdict, DelayTo):
                self.note(Delayed, queue, id, attempt)

    async def finish(self, limit_ms: float) -> None:
        """End `run` when everything is told, and wait for that, `limit_ms` at most."""
        self._closed = True
        self._nap.wake()
        with anyio.move_on_after(limit_ms / 1000):
            await self._ended.wait()

    async def run(self) -> None:
        """Tell what is noted, in order, until `finish` is asked for. What swallows its cancellation is left behind."""
        await apart(self._run, "observers")

    async def _run(self) -> None:
        turns = 0
        while self._notes or not self._closed:
            if not self._notes:
                self._idle = True
                await self._nap.wait()
                continue
            kind, *values = self._notes.popleft()
            event = kind(*values)
            for function in self._functions:
                await self._tell(function, event)
            turns += 1
            if turns % _TURN == 0:
                await asyncio.sleep(0)
        self._ended.set()

    async def _tell(self, function: Observer, event: Observed) -> None:
        task = asyncio.current_task()
        try:
            said = function(event)
            if inspect.isawaitable(said):
                await hosted(said)
        except BaseException as error:
            if task is None or passes(error, task):
                raise
            self._blame(function, error)

    def _blame(self, function: Observer, error: BaseException) -> None:
        if id(function) not in self._raised:
            self._raised.add(id(function))
            name = getattr(function, "__qualname__", type(function).__name__)
            say(self._log.error, "observer raised", error, observer=name, hint="it is not logged again")


def cause(verdict: Verdict) -> str:
    """Why a job is dead, as far as is known here: a handler that wanted it later hears that somebody else did not."""
    return verdict.error if isinstance(verdict, (RetryLater, Bury)) else "cancelled meanwhile"
