"""Outcome: what the end of a handler means for its job, as a value. Nothing is awaited here but one turn of the loop.

Source: design.md section 2, protocol section 4, issue "A worker that runs jobs" (Handlers), issue "Every control" (a
cancelled job ends dead with `last_error` = `cancelled: <reason>`, without a retry).

- it returns: Complete. It raises Retry, Delay, Reject: what they say. No payload, or one that cannot be read: Bury.
- an exception of `no_retry` (also inside an exception group): Bury. Any other, also SystemExit, KeyboardInterrupt and
  GeneratorExit (a handler does not end the worker): RetryLater. A group of one counts as that one.
- a cancellation that nobody asked for, such as that of a task which the handler awaited: RetryLater.
- its time was up and the cancellation came through: RetryLater, `timeout after N ms`; Bury where `no_retry` has
  TimeoutError, or a base of it.
- somebody asked for its end: Complete when it returns; whatever it raises, Bury with `cancelled: <reason>`.
- the lease is lost: Abandoned, whatever it did. At shutdown: what it returned and how it steered counts, anything else
  is Abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from echomq_worker.backoff import delay_ms
from echomq_worker.handlers import PayloadRefused
from echomq_worker.job import LEASE_LOST, SHUTDOWN, TIMEOUT, Job, Reason, cancelled
from echomq_worker.options import Limits
from echomq_worker.raised import cause_of, interrupts, is_a, sole, walk
from echomq_worker.verdict import (
    Bury,
    Complete,
    Delay,
    DelayTo,
    Reject,
    Retry,
    RetryLater,
    Verdict,
    describe,
)

# For what cannot even be asked how long to wait.
_ODD_DELAY_MS = 1_000

NO_PAYLOAD = "no payload: the row is gone, or was made anew without one"
COMPLETE = Complete()


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The handler has ended and nothing is to be settled: the lease is lost, or the worker stops and the job is to be
    released. `reason` is LEASE_LOST or SHUTDOWN.
    """

    reason: Reason


Outcome: TypeAlias = Verdict | Abandoned

Settled: TypeAlias = tuple[Job, Verdict, str]
"""A verdict and the word that the server answered to it."""


class Judge:
    """Makes outcomes of what one handler returns and raises.

    `limits` are in force for it; `draw` is the randomness of a jitter. `result` makes the bytes that a Complete carries
    of what the handler of a flow's child returned; of any other job nothing is kept, as without it.
    """

    __slots__ = ("_draw", "_limits", "_no_retry", "result")

    def __init__(
        self,
        limits: Limits,
        no_retry: tuple[type[BaseException], ...],
        *,
        draw: Callable[[int], int] | None = None,
        result: Callable[[object], bytes | None] | None = None,
    ) -> None:
        self.result = result
        self._limits = limits
        self._no_retry = no_retry
        self._draw = draw

    def returned(self, job: Job, value: object) -> Outcome:
        """The handler has returned `value`, and its lease is not lost."""
        if self.result is None or not job.flow_child:
            return COMPLETE
        try:
            return Complete(self.result(value))
        except BaseException as exc:
            # What the handler returned has no form: its failure.
            if interrupts(exc):
                raise
            return self.raised(job, exc)

    def raised(self, job: Job, exc: BaseException) -> Outcome:
        """The handler has raised `exc`, which is kept on the job for the log line."""
        mark, leaf = job.cancellation, sole(exc)
        ends = is_a(leaf, asyncio.CancelledError)
        if mark is not None:
            if mark.reason == LEASE_LOST:
                return Abandoned(LEASE_LOST)
            if mark.asked is not None:
                job.exception = None if ends else exc
                return Bury(cancelled(mark.asked))
            if mark.reason == SHUTDOWN and not is_a(leaf, Retry, Delay, Reject):
                return Abandoned(SHUTDOWN)
        job.exception = exc
        try:
            if mark is not None and mark.reason == TIMEOUT and ends:
                late = f"timeout after {self._limits.timeout_ms} ms"
                return Bury(late) if self._final(TimeoutError()) else RetryLater(self._delay_ms(job), late)
            return self._verdict(job, leaf)
        except BaseException as odd:
            # A subclass of Retry that never called ours, a class that cannot be asked, an attribute that raises.
            if interrupts(odd):
                raise
            return RetryLater(_ODD_DELAY_MS, describe(exc))

    def _verdict(self, job: Job, exc: BaseException) -> Verdict:
        if is_a(exc, Retry):
            # Made anew, which checks it: whoever has it may have changed it.
            asked = Retry(exc.delay_ms)
            return RetryLater(self._delay_ms(job) if asked.delay_ms is None else asked.delay_ms, _reason(exc))
        if is_a(exc, Delay):
            later = Delay(exc.ms, at_ms=exc.at_ms)
            return DelayTo("in", later.ms or 0) if later.at_ms is None else DelayTo("at", later.at_ms)
        if is_a(exc, Reject):
            return Bury(_reason(exc))
        if is_a(exc, PayloadRefused):
            return Bury(describe(cause_of(exc) or exc))
        if self._final(exc):
            return Bury(describe(exc))
        return RetryLater(self._delay_ms(job), describe(exc))

    def _final(self, exc: BaseException) -> bool:
        return bool(self._no_retry) and any(is_a(one, *self._no_retry) for one in walk(exc))

    def _delay_ms(self, job: Job) -> int:
        retry = self._limits.retry
        return retry if isinstance(retry, int) else delay_ms(retry, job.failures + 1, self._draw)


def not_started(job: Job) -> Outcome:
    """The outcome of a job whose handler is not called: it has no payload, or was asked to end before."""
    mark = job.cancellation
    if mark is None:
        return Bury(NO_PAYLOAD)
    if mark.asked is not None and mark.reason != LEASE_LOST:
        return Bury(cancelled(mark.asked))
    # Whoever is late before it began goes back as at a shutdown.
    return Abandoned(mark.reason)


def passes(exc: BaseException, runner: asyncio.Task[Any], *, sent: int = 0) -> bool:
    """Whether an exception on the loop is not that of the function that ran in `runner`: the task is cancelled, its
    coroutine is closed, or somebody has pressed Ctrl-C.

    `sent`: how often the runner was cancelled for the function.
    """
    leaf = sole(exc)
    if is_a(leaf, asyncio.CancelledError):
        return sent == 0 and runner.cancelling() > 0
    if is_a(leaf, GeneratorExit):
        # Who closes it is another one, or nobody: what runs in a task cannot be closed.
        return asyncio.current_task(runner.get_loop()) is not runner
    return interrupts(leaf)


async def take_off(runner: asyncio.Task[Any], sent: int, raised: asyncio.CancelledError | None) -> None:
    """Take the cancellations that were sent for a handler off its runner. Any other is raised.

    Where none was sent they are what the handler has left behind: it cancelled its own task, as old libraries do for a
    timeout, or swallowed the cancellation of its runner.
    """
    for _ in range(min(sent, runner.cancelling()) if sent else runner.cancelling()):
        runner.uncancel()
    try:
        # One that was sent in the handler's last step has not arrived yet.
        await asyncio.sleep(0)
    except asyncio.CancelledError as late:
        raised = late
    if runner.cancelling():
        raise raised or asyncio.CancelledError


def _reason(exc: Retry | Reject) -> str:
    """The handler's own words; else what it raised the exception from."""
    return exc.reason or describe(cause_of(exc) or exc)
