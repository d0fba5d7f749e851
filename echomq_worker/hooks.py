"""Hooks: functions of the user that are called once for a job that is done or dead, when the server has taken it.

Source: issue "Made for the people who run it", For handler authors. `on_complete(job)` and `on_dead(job, error)` stand
beside a handler or on the worker. What is to be called is noted where verdicts are answered; tasks of their own call
it, a few at a time, and are there only while something waits. What a hook raises is logged and changes nothing.

Not durable: between the server's answer and the call there is only this process.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import anyio
from anyio.abc import TaskGroup

from echomq_worker.errors import ConfigError, EchoMQError, is_of_the_server
from echomq_worker.guest import apart, hosted
from echomq_worker.handlers import filled_by, name_of
from echomq_worker.job import Job
from echomq_worker.logs import Logger
from echomq_worker.nap import Nap
from echomq_worker.observers import cause
from echomq_worker.outcome import Settled, passes
from echomq_worker.raised import is_a, say
from echomq_worker.threads import Raised, Threads
from echomq_worker.verdict import clean

# Hooks that run at the same time, in one process.
AT_A_TIME = 10
# Calls of `on_complete` that wait; above this the newest are lost. Those of `on_dead` all wait.
KEEP = 10_000
# A hook that never suspends gives the event loop a turn after so many calls.
_TURN = 100

Kind = Literal["on_complete", "on_dead"]
Find = Callable[[str], Awaitable[Job]]
"""The job of an id, as its row has it."""


@dataclass(frozen=True, slots=True)
class Hook:
    """One function, for one queue or (None) for all of the worker. `given` says what each parameter takes."""

    kind: Kind
    queue: str | None
    function: Callable[..., Any]
    name: str
    is_async: bool
    given: tuple[tuple[inspect.Parameter, str], ...]

    @classmethod
    def of(cls, kind: Kind, queue: str | None, function: Callable[..., Any], *, state_type: object = None) -> Hook:
        """Read the parameters: the job (annotated `Job`, or `job`), `error` (of on_dead), the state. Raises ConfigError
        for any other.
        """
        where = f"{kind} of {queue or 'the worker'}"
        given: list[tuple[inspect.Parameter, str]] = []
        for parameter, what in filled_by(function, where, state_type):
            fill = what or ("error" if parameter.name == "error" and kind == "on_dead" else "")
            if fill:
                given.append((parameter, fill))
            elif parameter.default is parameter.empty:
                also = ", `error`" if kind == "on_dead" else ""
                raise ConfigError(
                    f"{where}: parameter {parameter.name}: expected the job (Job){also}, or the state (`state`, or the "
                    "type yielded by a lifespan that is known before)"
                )
        is_async = inspect.iscoroutinefunction(function)
        return cls(kind, queue, function, name_of(function), is_async, tuple(given))

    def call(self, values: dict[str, object]) -> Any:
        """Call the function with `values` by what they are."""
        positional = [values[what] for one, what in self.given if one.kind is one.POSITIONAL_ONLY]
        named = {one.name: values[what] for one, what in self.given if one.kind is not one.POSITIONAL_ONLY}
        return self.function(*positional, **named)


class Hooks:
    """The hooks of a process and the calls that wait. Made only where there is a hook: nobody else pays for it."""

    def __init__(
        self, hooks: Sequence[Hook], tasks: TaskGroup, *, state: object, log: Logger, keep: int = KEEP
    ) -> None:
        self.lost = 0
        self._hooks = tuple(hooks)
        self._tasks = tasks
        self._state = state
        self._log = log
        self._keep = keep
        self._calls: deque[tuple[Hook, str, Job | str, Find, str]] = deque()
        self._working = 0
        self._ended = Nap()
        self._hurried = False
        self._threads: Threads[object] | None = None

    def of(self, queue: str, find: Find) -> QueueHooks | None:
        """Those of one queue; None where it has none. `find` fetches a job that no handler of this worker had."""
        own = [hook for hook in self._hooks if hook.queue == queue]
        own += [hook for hook in self._hooks if hook.queue is None]
        return QueueHooks(self, queue, own, find) if own else None

    def put(self, hook: Hook, queue: str, job: Job | str, find: Find, error: str = "") -> None:
        """Have a hook called in a while."""
        if hook.kind == "on_complete" and len(self._calls) >= self._keep:
            self.lost += 1
            if self.lost == 1:
                self._log.warning("hooks too slow", kept=self._keep, hint="the newest completions go untold")
            return
        self._calls.append((hook, queue, job, find, error))
        if self._working < AT_A_TIME:
            self._working += 1
            self._tasks.start_soon(apart, self._work, "hooks", name="hooks")

    def hurry(self) -> None:
        """A second signal: what has not ended is waited for no more."""
        self._hurried = True
        self._ended.wake()

    async def finish(self, limit_ms: float) -> None:
        """Wait until all calls have ended, `limit_ms` at most; those that have not are logged, and lost."""
        with anyio.move_on_after(limit_ms / 1000):
            while self._working and not self._hurried:
                await self._ended.wait()
        if self._working:
            self.lost += self._working + len(self._calls)
            self._log.warning("hooks cut short", running=self._working, waiting=len(self._calls))
        self._calls.clear()
        if self._threads is not None:
            self._threads.close()

    async def _work(self) -> None:
        turns = 0
        try:
            while self._calls:
                await self._call(*self._calls.popleft())
                turns += 1
                if turns % _TURN == 0:
                    await asyncio.sleep(0)
        finally:
            self._working -= 1
            if not self._working:
                self._ended.wake()

    async def _call(self, hook: Hook, queue: str, known: Job | str, find: Find, error: str) -> None:
        id, task = known if isinstance(known, str) else known.id, asyncio.current_task()
        try:
            job = await find(known) if isinstance(known, str) else known
            await self._run(hook, {"job": job, "error": error, "state": self._state})
        except BaseException as exc:
            if task is None or passes(exc, task):
                raise
            self._blame(hook, queue, id, exc)

    async def _run(self, hook: Hook, values: dict[str, object]) -> None:
        if hook.is_async:
            await hosted(hook.call(values))
            return
        if self._threads is None:
            self._threads = Threads(AT_A_TIME, name="echomq:hooks")
        said = await self._threads.submit(object(), partial(hook.call, values))
        if is_a(said, Raised):
            raise said.exception
        if inspect.isawaitable(said):
            await hosted(said)

    def _blame(self, hook: Hook, queue: str, id: str, error: BaseException) -> None:
        why = {"reason": clean(error)} if is_a(error, EchoMQError) else {}
        trace = None if is_of_the_server(error) else error
        say(self._log.error, f"{hook.kind} raised", trace, queue=queue, id=id, hook=hook.name, **why)


class QueueHooks:
    """The hooks of one queue, told by its journal."""

    __slots__ = ("_complete", "_dead", "_find", "_hooks", "_queue")

    def __init__(self, hooks: Hooks, queue: str, own: Sequence[Hook], find: Find) -> None:
        self._hooks = hooks
        self._queue = queue
        self._find = find
        self._complete = [hook for hook in own if hook.kind == "on_complete"]
        self._dead = [hook for hook in own if hook.kind == "on_dead"]

    def settled(self, answers: Sequence[Settled]) -> None:
        """The server has answered these verdicts."""
        for job, verdict, answer in answers:
            if answer == "done":
                for hook in self._complete:
                    self._hooks.put(hook, self._queue, job, self._find)
            elif answer == "dead":
                for hook in self._dead:
                    self._hooks.put(hook, self._queue, job, self._find, cause(verdict))

    def buried(self, id: str, reason: str) -> None:
        """A claim or the sweep gave a job up that no handler of this worker had."""
        for hook in self._dead:
            self._hooks.put(hook, self._queue, id, self._find, reason)
