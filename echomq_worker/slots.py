"""Slots: the long-lived tasks of one consumer in which handlers run, as many as it may run at a time.

Source: design section 4 (no task, timer or context per job: what a job costs here is one turn of a loop). A runner is
made when work waits and none is idle; one that arrives calls the next while work waits, so that a burst of jobs that
never suspend is worked off by the runner that got there first, and a burst of jobs that do is spread over all.
Runners are tasks of their own: a handler that does not let itself be cancelled is left behind, and keeps no process.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from contextvars import copy_context
from typing import Any, Generic, Never, Protocol, TypeAlias, TypeVar

import anyio
from anyio.abc import TaskGroup

from echomq_worker.clock import Clock
from echomq_worker.errors import EchoMQError
from echomq_worker.job import Job
from echomq_worker.logs import current_job

# Runners whose jobs never suspend give the event loop a turn after so long, all of them together.
TURN_MS = 5.0
_CALLED_AT_ONCE = 2
# So few slots are filled by one claim.
_FEW = 16
# How long a job that waits with its lease run out is left alone: the keeper gets it back, or loses it.
_NOT_KEPT_S = 0.02
# What a cancelled runner gets to end before it is left behind.
_LEAVE_S = 0.5


T = TypeVar("T", bound=Hashable)
R = TypeVar("R")
Closed: TypeAlias = Callable[[T, GeneratorExit, asyncio.Task[Any]], Awaitable[R]]


class SlotLost(EchoMQError):
    """A runner was ended by the handler that it ran: a bug there, which ends the worker, not a slot of it."""


class Places(Protocol):
    """Where a consumer's jobs run, as it and the hand-over see it."""

    size: int
    per_claim: int
    running: set[Job]

    @property
    def free(self) -> int:
        """How many jobs could be taken now."""
        ...

    @property
    def idle(self) -> bool:
        """Whether no job is here, neither waiting nor running."""
        ...

    def start(self, jobs: Sequence[Job], *, later: bool = False) -> None:
        """Run `jobs`, in time; there is room for all. `later`: what is sent in this turn of the loop goes first."""
        ...

    def hold(self) -> None:
        """Let no job begin any more; of those that wait `take_unstarted` is next. May be called in a signal handler."""
        ...

    def take_unstarted(self) -> list[Job]:
        """The jobs that have not begun, which will not run here any more."""
        ...

    def drop(self, job: Job) -> bool:
        """Take back a job that has not begun; False when it runs or has ended."""
        ...

    def holds(self, job: Job) -> bool:
        """Whether the job waits here, or runs."""
        ...


class Slots(Generic[T, R]):
    """`size` slots, and room for `ahead` jobs that wait for one. `start` fills them; `on_end(job, outcome)` is called
    as each job ends, when its slot is free.

    What ends a runner ends the task group `tasks`; the end of the task group ends the runners.
    """

    __slots__ = (
        "_ahead",
        "_at_fault",
        "_called",
        "_clock",
        "_closing",
        "_context",
        "_execute",
        "_failed",
        "_held",
        "_idle",
        "_jobs",
        "_kept",
        "_loop",
        "_made",
        "_name",
        "_on_end",
        "_on_fault",
        "_runners",
        "_turn_ends_ms",
        "_turning",
        "closed",
        "per_claim",
        "running",
        "size",
    )

    def __init__(
        self,
        size: int,
        *,
        tasks: TaskGroup,
        name: str,
        clock: Clock,
        execute: Callable[[T, asyncio.Task[Any] | None], Coroutine[Any, Any, R]],
        on_end: Callable[[T, R], None],
        ahead: int = 0,
        kept: Callable[[T], bool] | None = None,
        on_fault: Callable[[T], object] = lambda _job: None,
    ) -> None:
        """`kept`: whether a job that waits may begin by now; one that may not is asked about again until it may, or is
        dropped. `on_fault` is called with the job that ends the worker.
        """
        # The outcome of a job whose handler awaited what has raised GeneratorExit: that closes all its runner awaits.
        self.closed: Closed[T, R] | None = None
        self.size = size
        self._ahead = ahead
        self._kept = kept
        self._on_fault = on_fault
        # Half of them at most: the server looks for the next jobs while the handlers of the last ones run.
        self.per_claim = max(_FEW, -(-(size + ahead) // 2))
        # By claim, not by id: a job whose lease was lost may be claimed again while its handler still ends.
        self.running: set[T] = set()
        self._name = name
        self._clock = clock
        self._execute = execute
        self._on_end = on_end
        self._jobs: deque[T] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._made = 0
        self._called = 0
        self._held = self._turning = False
        self._turn_ends_ms = -math.inf
        self._runners: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[Never] = self._loop.create_future()
        self._closing = False
        self._at_fault: object = None
        # That of the making, not of the job whose runner calls the next one.
        self._context = copy_context()
        tasks.start_soon(self._own, name=name)

    @property
    def free(self) -> int:
        """Slots that no job has, started or waiting to be, and room ahead of them."""
        return self.size + self._ahead - len(self.running) - len(self._jobs)

    @property
    def idle(self) -> bool:
        """Whether no job is here."""
        return not self.running and not self._jobs

    def start(self, jobs: Sequence[T], *, later: bool = False) -> None:
        """Run `jobs`; there is room for all of them. `later`: what is sent in this turn of the loop leaves first."""
        self._jobs.extend(jobs)
        self._turn_soon()
        if later:
            self._loop.call_soon(self._call)
        else:
            self._call()

    def hold(self) -> None:
        """Let no job begin any more. May be called in a signal handler, between any two steps of a runner."""
        # This turn is over, and so is every one that comes: no job has to look for it.
        self._held = True
        self._turn_ends_ms = -math.inf

    def take_unstarted(self) -> list[T]:
        """The jobs that no runner has begun, which will not run here any more."""
        jobs = list(self._jobs)
        self._jobs.clear()
        return jobs

    def drop(self, job: T) -> bool:
        """Take back a job that no runner has begun; False when it runs or has ended."""
        try:
            self._jobs.remove(job)
        except ValueError:
            return False
        return True

    def holds(self, job: T) -> bool:
        """Whether the job waits here for a runner, or runs."""
        return job in self.running or job in self._jobs

    def _call(self) -> None:
        while self._jobs and self._called < _CALLED_AT_ONCE:
            if self._idle:
                waiter = self._idle.pop()
                if waiter.done():
                    continue
                waiter.set_result(None)
            elif self._made < self.size:
                self._made += 1
                self._make()
            else:
                return
            self._called += 1

    def _make(self) -> None:
        task = self._loop.create_task(self._run(), name=f"{self._name}/{self._made}", context=self._context.copy())
        self._runners.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if self._closing or self._failed.done():
            return
        # A handler that cancelled its own task would leave a slot, and a lease, behind for ever.
        error = None if runner.cancelled() else runner.exception()
        if error is None or isinstance(error, GeneratorExit):
            # To await a future with a GeneratorExit in it is to be closed.
            did = "cancelled" if error is None else "closed"
            fault = "" if self._at_fault is None else f" at {self._at_fault!r}"
            error = SlotLost(f"{runner.get_name()}: its handler {did} the task that it runs in{fault}")
        self._failed.set_exception(error)

    async def _own(self) -> None:
        """Raise what a runner has raised; at the end cancel the runners, and leave behind what does not end."""
        try:
            await self._failed
        finally:
            self._closing = True
            for runner in self._runners:
                runner.cancel()
            if self._runners:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait(self._runners, timeout=_LEAVE_S)

    async def _run(self) -> None:
        jobs, running, clock, kept = self._jobs, self.running, self._clock, self._kept
        loop, runner = self._loop, asyncio.current_task()
        job: T | None
        outcome: R | None
        while not self._closing:
            self._called -= 1
            while jobs:
                if clock.monotonic_ms() > self._turn_ends_ms:
                    await self._next_turn()
                    continue
                if kept is not None and not kept(jobs[0]):
                    await asyncio.sleep(_NOT_KEPT_S)
                    continue
                job = jobs.popleft()
                running.add(job)
                if jobs and self._called < _CALLED_AT_ONCE:
                    self._call()
                try:
                    try:
                        outcome = await self._execute(job, runner)
                    except GeneratorExit as error:
                        outcome = await self._closed_within(job, error, runner)
                except BaseException:
                    if not self._closing:
                        # It ends the worker, so it is not given back with the others: it waits for its lease, and that
                        # counts a crash.
                        running.discard(job)
                        self._at_fault = job
                        self._on_fault(job)
                    raise
                running.discard(job)
                self._on_end(job, outcome)
            if not self._closing:
                # Who waits keeps no payload: neither in this frame nor, as the job that runs, in this context.
                job = outcome = None
                current_job.set(None)
                waiter = loop.create_future()
                self._idle.append(waiter)
                await waiter

    async def _closed_within(self, job: T, error: GeneratorExit, runner: asyncio.Task[Any] | None) -> R:
        if self.closed is None or self._closing or runner is None or asyncio.current_task(self._loop) is not runner:
            # Somebody closes the runner itself: a loop that is closed, or nobody holds it any more.
            raise error
        return await self.closed(job, error, runner)

    async def _next_turn(self) -> None:
        """The time that the jobs of one turn have is over, or it was that of an earlier turn: its end is not told, as
        that takes a callback in each turn of the loop, and jobs that suspend leave nothing to be told.
        """
        self._turn_soon()
        await asyncio.sleep(0)

    def _turn_soon(self) -> None:
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._turning = False
        ends_ms = self._clock.monotonic_ms() + TURN_MS
        # A signal may have come while the clock was read.
        if not self._held:
            self._turn_ends_ms = ends_ms
