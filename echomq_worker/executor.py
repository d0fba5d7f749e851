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
- A runner that is itself cancelled raises CancelledError, unless the handler swallows it. GeneratorExit is raised:
  where the runner goes on all the same, `await executor.closed(job, error, runner)` is the outcome.
- A plain function in a thread cannot be stopped: `execute` returns when it has ended, `in_threads()` lists those that
  have not, to be disowned when the process goes. `close()` at the end.
- No task, timer or log line per job that an option does not ask for; `timeout_ms` costs one timer at a time
  for all of them.

What a handler's end means is said in `outcome`. A plain function is only told that its time is up (`job.cancelled`).

Variables of `contextvars` that a handler sets do not reach the next job: the first job that leaves one behind is
noticed, and from then on every job of that handler runs in a copy of the context as it was before.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Protocol

from echomq_worker.handlers import Bound
from echomq_worker.job import LEASE_LOST, TIMEOUT, Job, JobCancelled, cancel
from echomq_worker.logs import current_job
from echomq_worker.options import Limits
from echomq_worker.outcome import COMPLETE, Abandoned, Judge, Outcome, not_started, passes, take_off
from echomq_worker.raised import interrupts, is_a
from echomq_worker.threads import Raised, Threads


class Execute(Protocol):
    """`execute(job, runner)`: see the module. Without `runner` the current task is it."""

    def __call__(self, job: Job, runner: asyncio.Task[Any] | None = None, /) -> Coroutine[Any, Any, Outcome]:
        """Run the job's handler to its end."""
        ...


class Executor:
    """Runs the jobs of one handler.

    `limits` are the worker's defaults, the handler's options win. `state` is what the lifespan yielded. `announce(job)`
    is called in the handler's context before it starts (`current_job.set`). `draw` is the randomness of a jitter.
    `result` makes the bytes that a Complete carries of what the handler of a flow's child returned; of any other job
    nothing is kept.
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
        self._judge = Judge(self.limits, handler.options.no_retry, draw=draw, result=result)
        self._plain = result is None
        self._announce = announce
        self._watched = True
        self._deadlines = _Deadlines(self.limits.timeout_ms or 0)
        self._threads: Threads[Job] = Threads(self.limits.concurrency, name=f"echomq:{handler.options.queue}")

    def in_threads(self) -> list[Job]:
        """The jobs whose plain function has not ended yet, also after their runners are gone."""
        return self._threads.running()

    def close(self) -> None:
        """Let idle threads end; what still runs goes on until the process ends."""
        self._threads.close()

    async def closed(self, job: Job, exc: GeneratorExit, runner: asyncio.Task[Any]) -> Outcome:
        """What it means that the runner was closed from inside: the handler awaited what has raised GeneratorExit, and
        with that the interpreter has ended every coroutine between the two.
        """
        outcome = self._judge.raised(job, exc)
        await take_off(runner, _sent(job), None)
        return Abandoned(LEASE_LOST) if _lost(job) else outcome

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
            return not_started(job)
        # Once per job: `_apart` and `_in_thread` announce in the context that the handler gets there.
        if self._announce is not None and self._watched and begun is None:
            self._announce(job)
        before, cancelled = copy_context(), None
        job.runner = runner = runner or _current_task()
        try:
            value = await (begun or self._call(job))
            outcome: Outcome = COMPLETE if self._plain or not job.flow_child else self._judge.returned(job, value)
        except BaseException as exc:
            # A GeneratorExit is whoever's who runs this: see `closed`.
            if is_a(exc, GeneratorExit) or passes(exc, runner, sent=_sent(job)):
                raise
            outcome = self._judge.raised(job, exc)
            cancelled = exc if is_a(exc, asyncio.CancelledError) else None
        finally:
            job.runner = None
        if job.cancellation is not None or runner.cancelling():
            await take_off(runner, _sent(job), cancelled)
            if _lost(job):
                outcome = Abandoned(LEASE_LOST)
        if self._watched and _differs(copy_context(), before):
            self._watched = False
            # It is kept from now on, the job in it is not.
            before.run(current_job.set, None)
            self._call = partial(_apart, before, self._announce, self._call)
        return outcome

    async def _in_thread(self, job: Job, runner: asyncio.Task[Any] | None = None, /) -> Outcome:
        """The handler in a thread. A mark does not end the wait for it."""
        if job.cancelled or job.hollow:
            return not_started(job)
        context = copy_context()
        if self._announce is not None:
            context.run(self._announce, job)
        try:
            value = await self._threads.submit(job, context.run, self._call, job)
        except RuntimeError as exc:
            # The system gave no thread.
            value = Raised(exc)
        if is_a(value, types.CoroutineType) and not job.cancelled:
            # A plain function around an async one, such as a decorator leaves it.
            return await self._on_loop(job, runner, begun=in_context(context, value))
        return self._ended(job, value)

    def _ended(self, job: Job, value: object) -> Outcome:
        """What a plain function's end means."""
        if is_a(value, Raised):
            return self._judge.raised(job, value.exception)
        mark = job.cancellation
        if mark is not None and is_a(value, types.CoroutineType):
            value.close()
            return self._judge.raised(job, JobCancelled(mark.text))
        return Abandoned(LEASE_LOST) if _lost(job) else self._judge.returned(job, value)


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


def _sent(job: Job) -> int:
    return 0 if job.cancellation is None else job.cancellation.sent


def _lost(job: Job) -> bool:
    return job.cancellation is not None and job.cancellation.reason == LEASE_LOST


def _apart(
    clean: Context, announce: Callable[[Job], object] | None, call: Callable[[Job], Awaitable[object]], job: Job
) -> Awaitable[object]:
    """`call(job)`, all of it in a copy of a context instead of the task's own."""
    context = clean.copy()
    if announce is not None:
        context.run(announce, job)
    return in_context(context, _awaited(call, job))


@types.coroutine
def in_context(context: Context, coroutine: Coroutine[Any, Any, object]) -> Generator[Any, Any, object]:
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
    except BaseException as error:
        # Values of two contexts are compared, and theirs may be any.
        if interrupts(error):
            raise
        return True


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("execute: expected to be awaited in a task")
    return task
