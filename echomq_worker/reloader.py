"""Reloader: `run --reload`: a worker process that drains and starts again when a Python file below a folder changes.

Source: issue "Made for the people who run it" (In the terminal), user-needs 25. For development: one process, whose
import errors are shown and waited out. watchfiles, of the extra `reload`, is imported when somebody asks for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from echomq_worker.errors import ConfigError
from echomq_worker.logs import get_logger
from echomq_worker.signals import heard
from echomq_worker.supervisor import Plan, exit_code, killed
from echomq_worker.verdict import clean

# Changes within this time count as one: switching a branch changes many files.
_TOGETHER_MS = 400
_STEP_MS = 50
_MARGIN_MS = 10_000
_NAMED = 5
# The exit code of a server that is not there: it may come back without a change of any file, so we try again.
_UNREACHABLE = 3
_AGAIN_S = 2.0


def watchfiles() -> ModuleType:
    """The module. Raises ConfigError where it is not installed."""
    try:
        import watchfiles as found
    except ImportError:
        raise ConfigError(
            "--reload: watchfiles is not installed, expected pip install 'echomq-worker[reload]'"
        ) from None
    return found


class Reloader:
    """Keeps the one child of a plan running. `await run()` returns the exit code when it is over."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._watchfiles = watchfiles()
        self._log = get_logger(__name__)
        self._process: Process | None = None
        self._wake = asyncio.Event()
        self._stop_watching = asyncio.Event()
        self._changed = False
        self._asked = 0

    async def run(self) -> int:
        """Start the worker, and again after each change of a file, until a signal comes or it ends by itself with 0."""
        watching = asyncio.create_task(self._watch(), name="reload")
        with heard(lambda _number: self.ask_to_stop()):
            try:
                return await self._keep()
            finally:
                await killed([] if self._process is None else [self._process])
                self._stop_watching.set()
                await watching

    def ask_to_stop(self) -> None:
        """Pass SIGTERM on; what a signal does here. The second time the worker stops at once."""
        self._asked += 1
        self._end()

    async def _keep(self) -> int:
        self._log.info("reload on change", folder=str(self._folder))
        while True:
            self._wake.clear()
            self._changed = False
            code = await self._run_once()
            if code and not self._asked and not self._changed:
                await self._wait_for_change(code)
            if self._asked or not (self._changed or code):
                return exit_code([code], asked=self._asked > 0)

    async def _run_once(self) -> int:
        self._process = await asyncio.create_subprocess_exec(
            *self._plan.line(),
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, **self._plan.environments[0]},
            process_group=0,
        )
        # A signal may have come while the process was being made.
        if self._asked:
            self._end()
        code = await self._process.wait()
        self._process = None
        return code

    async def _wait_for_change(self, code: int) -> None:
        """It has ended by itself: what it said of that is on the screen."""
        self._log.warning("the worker has ended, the next change starts it again", code=code)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), _AGAIN_S if code == _UNREACHABLE else None)

    async def _watch(self) -> None:
        changes = self._watchfiles.awatch(
            self._folder,
            watch_filter=self._watchfiles.PythonFilter(),
            debounce=_TOGETHER_MS,
            step=_STEP_MS,
            stop_event=self._stop_watching,
        )
        try:
            async for found in changes:
                self._tell({path for _, path in found})
                self._changed = True
                self._end()
        except (OSError, RuntimeError, ExceptionGroup) as error:
            # Often the system's limit of watches.
            why = clean(error.exceptions[0] if isinstance(error, ExceptionGroup) else error)
            raise ConfigError(f"--reload: {self._folder} cannot be watched: {why}") from error
        finally:
            # A worker that goes on with old code, because nobody watches, would surprise more than an end.
            self.ask_to_stop()

    def _tell(self, paths: AbstractSet[str]) -> None:
        names = sorted(os.path.relpath(path, self._folder) for path in paths)
        self._log.info("files changed, the worker starts again", files=names[:_NAMED], count=len(names))

    def _end(self) -> None:
        """Have the worker drain; whoever asks again while it does has it stop at once."""
        self._wake.set()
        process = self._process
        if process is None:
            return
        self._send(signal.SIGTERM)

        def kill() -> None:
            if self._process is process:
                self._log.error("process killed", pid=process.pid)
                self._send(signal.SIGKILL)

        asyncio.get_running_loop().call_later((self._plan.grace_ms + _MARGIN_MS) / 1000, kill)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)
