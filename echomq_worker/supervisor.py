"""Several worker processes under one: `run --processes N`.

Source: issue "A worker that runs jobs", Daemon and CLI; user-needs 53, 57, 97, 98. Children stand in process groups
of their own: a signal for the whole group (a terminal, `tini -g`) reaches this process alone and is passed on once.
Each child holds a pipe of ours as its standard input: when we die, however, it reads the end of it and shuts down.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from asyncio.subprocess import Process
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from echomq_worker.clock import Clock, SystemClock
from echomq_worker.logs import get_logger
from echomq_worker.signals import heard

if TYPE_CHECKING:
    from echomq_worker.probes.fleet import Fleet

# A child that ends with one of these would end so again: a wrong setting, another wire version.
FATAL_CODES = frozenset({2, 4})
_FIRST_DELAY_MS = 500
_LONGEST_DELAY_MS = 30_000
_STEADY_MS = 60_000
_MARGIN_MS = 10_000
_HURRY_MS = 5_000
_STANDARD_INPUT = 0
# The kernel may hold a process that was killed: one that waits for a disk, say.
_KILLED_S = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run: `command` once per member of `environments` (what each child's environment has beside ours).

    `burst`: a child that ends with 0 is done and stays ended. `grace_ms` is the children's own; what still runs 10 s
    after it is killed. `tail` is what stands behind all options.
    """

    command: Sequence[str]
    environments: Sequence[Mapping[str, str]]
    grace_ms: int
    burst: bool = False
    tail: Sequence[str] = ()

    def line(self, *more: str) -> list[str]:
        """The command with options of one child."""
        return [*self.command, *more, *self.tail]


def restart_delay_ms(streak: int) -> int:
    """The wait before the restart after `streak` ends in a row, each within a minute of its start: 500 ms to 30 s."""
    return min(_LONGEST_DELAY_MS, _FIRST_DELAY_MS << min(max(streak, 1) - 1, 16))


def exit_code(codes: Sequence[int], *, asked: bool) -> int:
    """The worst of the children's codes; a child that a signal ended counts 1, unless it was our own SIGTERM."""
    plain = [0 if asked and code == -signal.SIGTERM else (1 if code < 0 else code) for code in codes]
    return max(plain, default=0)


class Supervisor:
    """Keeps the children of a plan running. `await run()` returns the exit code when all have ended."""

    def __init__(self, plan: Plan, *, clock: Clock | None = None, fleet: Fleet | None = None) -> None:
        """`fleet`: who answers for the children; each gets `--reports` with a socket to it."""
        self._plan = plan
        self._fleet = fleet
        self._clock = clock or SystemClock()
        self._log = get_logger(__name__)
        self._stopping = asyncio.Event()
        self._asked = 0
        self._running: dict[int, Process] = {}
        self._codes: list[int] = []

    async def run(self) -> int:
        """Start every child, restart those that end, until a signal, a fatal end or, in a burst, all are done."""
        try:
            with heard(lambda _number: self.ask_to_stop()):
                await self._keep_all()
        finally:
            await killed(self._running.values())
        return exit_code(self._codes, asked=self._asked > 0)

    async def _keep_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            watching = None if self._fleet is None else group.create_task(self._fleet.watch(), name="fleet")
            children = [
                group.create_task(self._keep(index), name=f"supervisor:{index}")
                for index in range(len(self._plan.environments))
            ]
            if watching is not None:
                await asyncio.wait(children)
                watching.cancel()

    def ask_to_stop(self) -> None:
        """Pass SIGTERM on to every child; what a signal does here. The second time they stop at once."""
        self._asked += 1
        self._stopping.set()
        self._log.info("processes stopping", asked=self._asked, running=len(self._running))
        for process in self._running.values():
            _signal(process, signal.SIGTERM)
        wait_ms = _HURRY_MS if self._asked > 1 else self._plan.grace_ms + _MARGIN_MS
        asyncio.get_running_loop().call_later(wait_ms / 1000, self._kill_left)

    def _kill_left(self) -> None:
        for index, process in self._running.items():
            self._log.error("process killed", process=index, pid=process.pid)
            _signal(process, signal.SIGKILL)

    async def _keep(self, index: int) -> None:
        streak = 0
        while not self._stopping.is_set():
            started = self._clock.monotonic_ms()
            code = await self._run_once(index)
            if self._is_over(code):
                self._codes.append(code)
                return
            streak = streak + 1 if self._clock.monotonic_ms() - started < _STEADY_MS else 1
            delay_ms = restart_delay_ms(streak)
            self._log.warning("process restarts", process=index, code=code, delay_ms=delay_ms)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_ms / 1000)

    def _is_over(self, code: int) -> bool:
        """Whether a child that ended with `code` stays ended. A fatal code ends the others too."""
        if self._stopping.is_set():
            return True
        if code in FATAL_CODES:
            self._log.error("process cannot run, all are stopped", code=code)
            self.ask_to_stop()
            return True
        # In a burst an error is reported, not repeated; only a child that was killed starts again.
        return self._plan.burst and code >= 0

    async def _run_once(self, index: int) -> int:
        if self._fleet is None:
            return await self._wait_for(index, await self._start(index))
        async with self._fleet.member(index) as theirs:
            process = await self._start(index, "--reports", str(theirs.fileno()), fds=(theirs.fileno(),))
            # The child has it now: without our copy the socket ends when the child does.
            theirs.close()
            return await self._wait_for(index, process)

    async def _start(self, index: int, *more: str, fds: Sequence[int] = ()) -> Process:
        return await asyncio.create_subprocess_exec(
            *self._plan.line(*more),
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, **self._plan.environments[index]},
            process_group=0,
            pass_fds=fds,
        )

    async def _wait_for(self, index: int, process: Process) -> int:
        self._running[index] = process
        self._log.info("process started", process=index, pid=process.pid)
        if self._stopping.is_set():
            # Asked while it was being made.
            _signal(process, signal.SIGTERM)
        code = await process.wait()
        del self._running[index]
        self._log.info("process ended", process=index, pid=process.pid, code=code)
        return code


async def killed(processes: Iterable[Process]) -> None:
    """Kill them, and wait until the loop knows that they have ended: it may be closed behind this, and its pipes, and
    the thread that waits for a process, would be left as they are.
    """
    known = list(processes)
    for process in known:
        _signal(process, signal.SIGKILL)
    with anyio.move_on_after(_KILLED_S, shield=True):
        for process in known:
            await process.wait()


def stop_with_parent() -> None:
    """In a child: send ourselves SIGTERM when the parent is gone, seen by the end of our standard input."""

    def watch() -> None:
        # Not sys.stdin: its lock, held by a thread that waits, would break the interpreter's exit.
        while os.read(_STANDARD_INPUT, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="echomq-parent", daemon=True).start()


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)
