"""Batch: one call of a handler for many jobs, an outcome for each of them, and the one slot in which it runs.

Source: issue "Every control" (Batch handlers): a function that takes a list of jobs and answers per job (None for all
done, or a verdict by id; a missing one is retried, a raise retries all).

- An answer is None or True (done), Done (done, with a result for the parent of a flow), or an exception as a handler
  raises it: Retry, Delay, Reject, or any other. What is none of these, and a job without an answer, has failed.
- What is raised holds for every job; each is then judged by itself (`failures`, backoff).
- A job whose lease is lost, or whose end somebody asked for, is marked (`job.cancelled`) and the others go on; the task
  is cancelled when that holds for all: at a shutdown, a timeout, or when every lease is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context, copy_context
from typing import Any, Protocol

from anyio.abc import TaskGroup

from echomq_worker.clock import Clock
from echomq_worker.executor import in_context
from echomq_worker.handlers import Bound
from echomq_worker.job import LEASE_LOST, TIMEOUT, Job, cancel
from echomq_worker.options import Limits
from echomq_worker.outcome import COMPLETE, Abandoned, Judge, Outcome, not_started, passes, take_off
from echomq_worker.raised import interrupts, is_a
from echomq_worker.slots import Closed, Slots
from echomq_worker.verdict import Done

Ends = list[tuple[Job, Outcome]]


class ExecuteBatch(Protocol):
    """`execute(batch, runner)`: as an Executor's, for many jobs."""

    def __call__(self, batch: Batch, runner: asyncio.Task[Any] | None = None, /) -> Coroutine[Any, Any, Ends]:
        """Run the handler to its end."""
        ...


class BadAnswer(Exception):
    """A batch handler gave no answer for a job, or one that is none."""


class Batch:
    """The jobs of one call."""

    __slots__ = ("jobs",)

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = tuple(jobs)


class BatchExecutor:
    """Runs the batches of one handler; as `Executor`, for many jobs at a time. Made inside the event loop."""

    def __init__(
        self,
        handler: Bound,
        *,
        limits: Limits | None = None,
        state: object = None,
        announce: Callable[[Job], object] | None = None,
        draw: Callable[[int], int] | None = None,
        result: Callable[[object], bytes | None] | None = None,
        enter: Callable[[Sequence[Job]], object] | None = None,
    ) -> None:
        """As an Executor's; `enter` is called with the jobs of a call in the context that its handler gets."""
        self.limits = handler.options.over(limits or Limits())
        self._call: Callable[[Any], Any] = handler.caller(state)
        self._judge = Judge(self.limits, handler.options.no_retry, draw=draw, result=result)
        self._announce = announce
        self._enter = enter
        # What a handler sets there does not reach the next call.
        self._context = copy_context()

    def in_threads(self) -> list[Job]:
        """No job of a batch runs in a thread."""
        return []

    def close(self) -> None:
        """Nothing is held."""

    async def execute(self, batch: Batch, runner: asyncio.Task[Any] | None = None, /) -> Ends:
        """Call the handler with those jobs that can be worked on; an outcome for each job of the batch."""
        live = [job for job in batch.jobs if not job.cancelled and not job.hollow]
        begun = set(live)
        ends: Ends = [(job, not_started(job)) for job in batch.jobs if job not in begun]
        task = runner or asyncio.current_task()
        if live and task is not None:
            ends += await self._run(live, task)
        return ends

    async def closed(self, batch: Batch, exc: GeneratorExit, runner: asyncio.Task[Any]) -> Ends:
        """As an Executor's: the runner was closed from inside."""
        await take_off(runner, 0, None)
        return self._raised(batch.jobs, exc)

    async def _run(self, live: list[Job], runner: asyncio.Task[Any]) -> Ends:
        call = _Call(runner, len(live))
        for job in live:
            job.runner = _Seat(call, job)
            if self._announce is not None:
                self._announce(job)
        timer = self._timer(live)
        value: object = None
        error: BaseException | None = None
        try:
            value = await in_context(self._entered(live), self._call(list(live)))
        except BaseException as exc:
            if is_a(exc, GeneratorExit) or passes(exc, runner, sent=call.sent):
                raise
            error = exc
        finally:
            if timer is not None:
                timer.cancel()
            for job in live:
                job.runner = None
        if call.sent or runner.cancelling():
            await take_off(runner, call.sent, error if is_a(error, asyncio.CancelledError) else None)
        if error is None:
            return [(job, self._answered(job, value)) for job in live]
        return self._raised(live, error)

    def _raised(self, jobs: Sequence[Job], error: BaseException) -> Ends:
        ends: Ends = [(job, self._judge.raised(job, error)) for job in jobs]
        for job in jobs[1:]:
            # One trace is enough.
            job.exception = None
        return ends

    def _entered(self, live: Sequence[Job]) -> Context:
        context = self._context.copy()
        if self._enter is not None:
            context.run(self._enter, live)
        return context

    def _timer(self, live: Sequence[Job]) -> asyncio.TimerHandle | None:
        limit_ms = self.limits.timeout_ms
        if limit_ms is None:
            return None

        def expire() -> None:
            for job in live:
                cancel(job, TIMEOUT)

        return asyncio.get_running_loop().call_later(limit_ms / 1000, expire)

    def _answered(self, job: Job, value: object) -> Outcome:
        """What the handler's answer means for one job."""
        if job.cancellation is not None and job.cancellation.reason == LEASE_LOST:
            return Abandoned(LEASE_LOST)
        try:
            answer = None if value is None else _answer_of(job, value)
        except BaseException as exc:
            # The mapping is the user's, and may raise whatever it is asked.
            if interrupts(exc):
                raise
            answer = exc
        if is_a(answer, BaseException):
            return self._judge.raised(job, answer)
        return self._judge.returned(job, answer.result) if is_a(answer, Done) else COMPLETE


def _answer_of(job: Job, value: object) -> object:
    """The answer for one job: None or True, Done, or an exception that says what is wrong with it."""
    if not isinstance(value, Mapping):
        return BadAnswer(f"the batch handler answered {type(value).__name__}, expected None or a dict of answers by id")
    if job.id not in value:
        return BadAnswer("the batch handler answered nothing for this job")
    answer: object = value[job.id]
    if answer is None or answer is True or is_a(answer, Done) or is_a(answer, BaseException):
        return answer
    kind = type(answer).__name__
    return BadAnswer(f"the batch handler answered {kind} for this job, expected None, True, Done or an exception")


class _Call:
    """A call that runs: its task is cancelled when each of its jobs is to end."""

    __slots__ = ("_asked", "_count", "_lost", "_runner", "sent")

    def __init__(self, runner: asyncio.Task[Any], count: int) -> None:
        self.sent = 0
        self._runner = runner
        self._count = count
        self._asked: set[Job] = set()
        self._lost: set[Job] = set()

    def ask(self, job: Job) -> None:
        self._asked.add(job)
        if job.cancellation is not None and job.cancellation.reason == LEASE_LOST:
            self._lost.add(job)
        if len(self._asked) == self._count:
            # For a stronger reason once more; but nothing is stronger than a lost lease.
            self._asked = set(self._lost)
            self.sent += self._runner.cancel()


class _Seat:
    """A job's part of a call: what `cancel` finds where a job of its own has a task."""

    __slots__ = ("_call", "_job")

    def __init__(self, call: _Call, job: Job) -> None:
        self._call = call
        self._job = job

    def cancel(self) -> bool:
        self._call.ask(self._job)
        # The call counts what was sent to its task; the job has none of its own.
        return False


class BatchSlots:
    """Room for one batch of at most `size` jobs at a time. `on_end(job, outcome)` is called for each when all have
    ended.
    """

    __slots__ = ("_on_end", "_slots", "per_claim", "running", "size")

    def __init__(
        self,
        size: int,
        *,
        tasks: TaskGroup,
        name: str,
        clock: Clock,
        execute: ExecuteBatch,
        on_end: Callable[[Job, Outcome], None],
    ) -> None:
        self.size = self.per_claim = size
        self.running: set[Job] = set()
        self._on_end = on_end
        self._slots: Slots[Batch, Ends] = Slots(
            1,
            tasks=tasks,
            name=name,
            clock=clock,
            execute=execute,
            on_end=self._ended,
            on_fault=lambda batch: self.running.difference_update(batch.jobs),
        )

    def closing(self, closed: Closed[Batch, Ends]) -> None:
        """Ask `closed` for the outcome of a batch whose handler awaited what has raised GeneratorExit."""
        self._slots.closed = closed

    @property
    def free(self) -> int:
        """All of it, or nothing while a batch is in hand."""
        return 0 if self.running else self.size

    @property
    def idle(self) -> bool:
        """Whether no batch is in hand."""
        return not self.running

    def start(self, jobs: Sequence[Job], *, later: bool = False) -> None:
        """Run `jobs` in one call."""
        if jobs:
            self.running.update(jobs)
            self._slots.start([Batch(jobs)], later=later)

    def hold(self) -> None:
        """Let no batch begin any more. May be called in a signal handler."""
        self._slots.hold()

    def take_unstarted(self) -> list[Job]:
        """The jobs of a batch that no runner has begun."""
        jobs = [job for batch in self._slots.take_unstarted() for job in batch.jobs]
        self.running.difference_update(jobs)
        return jobs

    def drop(self, _job: Job) -> bool:
        """A batch is not taken apart: a job that is lost is passed over when it begins."""
        return False

    def holds(self, job: Job) -> bool:
        """Whether the job waits here, or runs."""
        return job in self.running

    def _ended(self, _batch: Batch, ends: Ends) -> None:
        self.running.clear()
        for job, outcome in ends:
            self._on_end(job, outcome)
