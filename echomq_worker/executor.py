"""Executor: one job -> handler -> what became of it, as a value. It writes nothing, logs nothing and settles nothing.

Source: design.md sections 2 and 3, issue "A worker that runs jobs" (Handlers), style anchor 3. One Executor per
handler, shared by its consumers, made inside the event loop.

For the consumer, in a long-lived runner task:

    runner = asyncio.current_task()
    outcome = await executor.execute(job, runner)    # a Verdict to settle, or Abandoned: nothing is to be settled
    job.exception                                    # what the handler raised, for the log line (then set it to None)

- A job in hand is ended by `job.cancel(job, reason)`, not by cancelling its runner. Its `execute` then returns as soon
  as the handler has ended: `Abandoned(LEASE_LOST)` whatever the handler did; after SHUTDOWN what it returned and how it
  steered counts, anything else is `Abandoned(SHUTDOWN)`: release the job.
- A runner that is itself cancelled raises CancelledError, unless the handler swallows it.
- A plain function in a thread cannot be stopped: `execute` returns when it has ended, `in_threads()` lists those that
  have not, to be disowned when the process goes. `close()` at the end.
- No task, timer or log line per job that an option does not ask for; `timeout_ms` costs one timer at a time
  for all of them.

What a handler's end means:

- it returns: Complete. It raises Retry, Delay, Reject: what they say. No payload, or one that cannot be read: Bury.
- an exception of `no_retry` (also inside an exception group): Bury. Any other, SystemExit included (a handler does not
  end the worker): RetryLater. A group of one counts as that one.
- a cancellation that nobody asked for, such as that of a task which the handler awaited: RetryLater.
- its time was up and the cancellation came through: RetryLater, `timeout after N ms`, whatever `no_retry` says. A plain
  function is only told (`job.cancelled`).
- KeyboardInterrupt on the event loop's thread passes.

Variables of `contextvars` that a handler sets do not reach the next job: the first job that leaves one behind is
noticed, and from then on every job of that handler runs in a copy of the context as it was before.
"""

from __future__ import annotations

import asyncio
import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from echomq_worker.backoff import delay_ms
from echomq_worker.handlers import Bound, Limits, PayloadRefused
from echomq_worker.job import LEASE_LOST, SHUTDOWN, TIMEOUT, Job, JobCancelled, Reason, cancel
from echomq_worker.threads import Raised, Threads
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


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The handler has ended and nothing is to be settled: the lease is lost, or the worker stops and the job is to be
    released. `reason` is LEASE_LOST or SHUTDOWN.
    """

    reason: Reason


Outcome: TypeAlias = Verdict | Abandoned

_COMPLETE = Complete()


class Execute(Protocol):
    """`execute(job, runner)`: see the module. Without `runner` the current task is it."""

    def __call__(self, job: Job, runner: asyncio.Task[Any] | None = None, /) -> Coroutine[Any, Any, Outcome]:
        """Run the job's handler to its end."""
        ...


class Executor:
    """Runs the jobs of one handler.

    `limits` are the worker's defaults, the handler's options win. `state` is what the lifespan yielded. `announce(job)`
    is called in the handler's context before it starts (`current_job.set`). `draw` is the randomness of a jitter.
    `result` makes the bytes that a Complete carries of what the handler returned; without it nothing is kept.
    """

    def __init__(
        self,
        handler: Bound,
        *,
        limits: Limits | None = None,
        state: object = None,
        announce: Callable[[Job], object] | None = None,
        draw: Callable[[int], int] | None = None,
        result: Callable[[object], bytes | None] | None = None,
    ) -> None:
        self.limits = handler.options.over(limits or Limits())
        self._run: Execute = self._on_loop if handler.is_async else self._in_thread
        self.execute: Execute = self._run if self.limits.timeout_ms is None else self._timed
        self._call = handler.caller(state)
        self._no_retry = handler.options.no_retry
        self._announce = announce
        self._draw = draw
        self._result = result
        self._watched = True
        self._deadlines = _Deadlines(self.limits.timeout_ms or 0)
        self._threads: Threads[Job] = Threads(self.limits.concurrency, name=f"echomq:{handler.options.queue}")

    def in_threads(self) -> list[Job]:
        """The jobs whose plain function has not ended yet, also after their runners are gone."""
        return self._threads.running()

    def close(self) -> None:
        """Let idle threads end; what still runs goes on until the process ends."""
        self._threads.close()

    async def _timed(self, job: Job, runner: asyncio.Task[Any] | None = None, /) -> Outcome:
        self._deadlines.add(job)
        try:
            return await self._run(job, runner)
        finally:
            self._deadlines.drop(job)

    async def _on_loop(
        self, job: Job, runner: asyncio.Task[Any] | None = None, /, *, begun: Awaitable[object] | None = None
    ) -> Outcome:
        """The handler on the event loop; `begun` is what a plain function gave to await."""
        # An empty payload is looked at twice: it may be none.
        if job.cancelled or (not job.payload and job.hollow):
            return _not_started(job)
        # Once per job: `_apart` and `_in_thread` announce in the context that the handler gets there.
        if self._announce is not None and self._watched and begun is None:
            self._announce(job)
        before, cancelled = copy_context(), None
        job.runner = runner = runner or _current_task()
        try:
            value = await (begun or self._call(job))
            outcome: Outcome = _COMPLETE if self._result is None else self._returned(job, value)
        except BaseException as exc:
            if _passes(job, exc, runner):
                raise
            outcome = self._raised(job, exc)
            cancelled = exc if isinstance(exc, asyncio.CancelledError) else None
        finally:
            job.runner = None
        if job.cancellation is not None or runner.cancelling():
            outcome = await _after_cancellation(job, runner, outcome, cancelled)
        if self._watched and _differs(copy_context(), before):
            self._watched = False
            self._call = partial(_apart, before, self._announce, self._call)
        return outcome

    async def _in_thread(self, job: Job, runner: asyncio.Task[Any] | None = None, /) -> Outcome:
        """The handler in a thread. A mark does not end the wait for it."""
        if job.cancelled or job.hollow:
            return _not_started(job)
        context = copy_context()
        if self._announce is not None:
            context.run(self._announce, job)
        try:
            value = await self._threads.submit(job, context.run, self._call, job)
        except RuntimeError as exc:
            # The system gave no thread.
            value = Raised(exc)
        if inspect.iscoroutine(value) and not job.cancelled:
            # A plain function around an async one, such as a decorator leaves it.
            return await self._on_loop(job, runner, begun=_steps(context, value))
        return self._ended(job, value)

    def _ended(self, job: Job, value: object) -> Outcome:
        """What a plain function's end means."""
        if isinstance(value, Raised):
            return self._raised(job, value.exception)
        mark = job.cancellation
        if mark is not None and inspect.iscoroutine(value):
            value.close()
            return self._raised(job, JobCancelled(mark.reason))
        return Abandoned(LEASE_LOST) if mark is not None and mark.reason == LEASE_LOST else self._returned(job, value)

    def _returned(self, job: Job, value: object) -> Outcome:
        if self._result is None:
            return _COMPLETE
        try:
            return Complete(self._result(value))
        except Exception as exc:  # noqa: BLE001 - what the handler returned has no form: its failure
            return self._raised(job, exc)

    def _raised(self, job: Job, exc: BaseException) -> Outcome:
        mark, leaf = job.cancellation, _sole(exc)
        if mark is not None:
            steers = isinstance(leaf, (Retry, Delay, Reject))
            if mark.reason == LEASE_LOST or (mark.reason == SHUTDOWN and not steers):
                return Abandoned(mark.reason)
        job.exception = exc
        if mark is not None and mark.reason == TIMEOUT and isinstance(leaf, asyncio.CancelledError):
            return RetryLater(self._delay_ms(job), f"timeout after {self.limits.timeout_ms} ms")
        try:
            return self._verdict(job, leaf)
        except Exception:  # noqa: BLE001 - a subclass of Retry that never called ours, a class that cannot be asked
            return RetryLater(_ODD_DELAY_MS, describe(exc))

    def _verdict(self, job: Job, exc: BaseException) -> Verdict:
        match exc:
            case Retry():
                return RetryLater(self._delay_ms(job) if exc.delay_ms is None else exc.delay_ms, _reason(exc))
            case Delay():
                return DelayTo("in", exc.ms or 0) if exc.at_ms is None else DelayTo("at", exc.at_ms)
            case Reject():
                return Bury(_reason(exc))
            case PayloadRefused():
                return Bury(describe(exc.__cause__ or exc))
        if self._no_retry and _holds(exc, self._no_retry):
            return Bury(describe(exc))
        return RetryLater(self._delay_ms(job), describe(exc))

    def _delay_ms(self, job: Job) -> int:
        retry = self.limits.retry
        return retry if isinstance(retry, int) else delay_ms(retry, job.failures + 1, self._draw)


class _Deadlines:
    """Jobs of one timeout: the first to start is the first whose time is up, so one timer does for all."""

    __slots__ = ("_armed", "_loop", "_timeout_s", "_until")

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1_000
        self._loop = asyncio.get_running_loop()
        self._until: dict[Job, float] = {}
        self._armed = False

    def add(self, job: Job) -> None:
        self._until[job] = until = self._loop.time() + self._timeout_s
        if not self._armed:
            self._armed = True
            self._loop.call_at(until, self._expire)

    def drop(self, job: Job) -> None:
        self._until.pop(job, None)

    def _expire(self) -> None:
        self._armed = False
        now = self._loop.time()
        for job, until in list(self._until.items()):
            if until > now:
                self._armed = True
                self._loop.call_at(until, self._expire)
                return
            del self._until[job]
            cancel(job, TIMEOUT)


def _not_started(job: Job) -> Outcome:
    return Bury(NO_PAYLOAD) if job.cancellation is None else Abandoned(job.cancellation.reason)


def _passes(job: Job, exc: BaseException, runner: asyncio.Task[Any]) -> bool:
    """Whether an exception on the loop is not the handler's: its runner is cancelled, or the process interrupted."""
    leaf = _sole(exc)
    if isinstance(leaf, asyncio.CancelledError):
        return job.cancellation is None and runner.cancelling() > 0
    return isinstance(leaf, (GeneratorExit, KeyboardInterrupt))


async def _after_cancellation(
    job: Job, runner: asyncio.Task[Any], outcome: Outcome, raised: asyncio.CancelledError | None
) -> Outcome:
    """Takes the cancellations that were meant for the handler off its runner. Any other is raised.

    Without a mark they are what the handler has left behind: it cancelled its own task, as old libraries do for a
    timeout, or swallowed the cancellation of its runner.
    """
    mark = job.cancellation
    for _ in range(runner.cancelling() if mark is None else min(mark.sent, runner.cancelling())):
        runner.uncancel()
    try:
        # One that was sent in the handler's last step has not arrived yet.
        await asyncio.sleep(0)
    except asyncio.CancelledError as late:
        raised = late
    if runner.cancelling():
        raise raised or asyncio.CancelledError
    return Abandoned(LEASE_LOST) if mark is not None and mark.reason == LEASE_LOST else outcome


def _apart(
    clean: Context, announce: Callable[[Job], object] | None, call: Callable[[Job], Awaitable[object]], job: Job
) -> Awaitable[object]:
    """`call(job)`, all of it in a copy of a context instead of the task's own."""
    context = clean.copy()
    if announce is not None:
        context.run(announce, job)
    return _steps(context, _awaited(call, job))


@types.coroutine
def _steps(context: Context, coroutine: Coroutine[Any, Any, object]) -> Generator[Any, Any, object]:
    """Await a coroutine with each of its steps run in `context`."""
    step: Callable[[Any], Any] = coroutine.send
    argument: Any = None
    while True:
        try:
            asked = context.run(step, argument)
        except StopIteration as stop:
            return stop.value
        step, argument = coroutine.send, None
        try:
            argument = yield asked
        except GeneratorExit:
            context.run(coroutine.close)
            raise
        except BaseException as exc:  # noqa: BLE001 - all of them are for the handler
            step, argument = coroutine.throw, exc


async def _awaited(call: Callable[[Job], Awaitable[object]], job: Job) -> object:
    return await call(job)


def _differs(one: Context, other: Context) -> bool:
    try:
        return one != other
    except Exception:  # noqa: BLE001 - values of two contexts are compared, and theirs may be any
        return True


def _sole(exc: BaseException) -> BaseException:
    """The one exception that a group, or a group in a group, holds; the exception itself where there are several."""
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc


def _holds(exc: BaseException, classes: tuple[type[BaseException], ...]) -> bool:
    if isinstance(exc, BaseExceptionGroup) and not isinstance(exc, classes):
        return exc.subgroup(classes) is not None
    return isinstance(exc, classes)


def _reason(exc: Retry | Reject) -> str:
    """The handler's own words; else what it raised the exception from."""
    return exc.reason or describe(exc.__cause__ or exc)


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("execute: expected to be awaited in a task")
    return task
