"""`python -m echomq_worker …` as a process of its own, its log in a file, its end by any signal.

Source: style anchor 18 (killing the process for recovery).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.support.waiting import PATIENCE_S, wait_until, wait_until_sync

_PROJECT = Path(__file__).resolve().parents[2]
_TAIL = 4000


class WorkerProcess:
    """`with WorkerProcess("run", "app:worker", env={"ECHOMQ_URL": url}) as worker:`; whatever still runs is killed.

    Arguments are those of the command line. `env` is added to the tests' own environment less its `ECHOMQ_*`, `cwd`
    is where it runs (default: a new directory), `command` what is run instead of `python -m echomq_worker`.
    Standard output and error go to one log file.
    """

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        command: tuple[str, ...] = (sys.executable, "-m", "echomq_worker"),
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="emq-worker-"))
        self.log_path = self.directory / "log"
        self._command = [*command, *arguments]
        self._cwd = cwd or self.directory
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("ECHOMQ_")}
        self._env |= {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(_PROJECT), **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._last_words: str | None = None

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it if it still runs; its log is added to a failure."""
        self.kill()
        self._last_words = self.log_text()
        shutil.rmtree(self.directory, ignore_errors=True)
        if error is not None:
            error.add_note(f"log of {' '.join(self._command)}:\n{self.log_text()[-_TAIL:]}")

    def start(self) -> Self:
        """Start it, in a session of its own so that a Ctrl-C at the tests does not reach it; does not wait."""
        self._log = self.log_path.open("ab")
        self._process = subprocess.Popen(
            self._command,
            cwd=self._cwd,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process; RuntimeError before `start`."""
        if self._process is None:
            raise RuntimeError("process: not started, expected start() first")
        return self._process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs (a frozen one does)."""
        return self._process is not None and self._process.poll() is None

    def log_text(self) -> str:
        """Everything it has printed so far; still there when the context is over."""
        if self._last_words is not None:
            return self._last_words
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def lines(self, pattern: str = "") -> list[str]:
        """The lines printed so far that `pattern` (a regular expression) is found in."""
        return [line for line in self.log_text().splitlines() if re.search(pattern, line)]

    def records(self, event: str | None = None) -> list[dict[str, Any]]:
        """The JSON log lines printed so far, all or those whose `event` is the one given."""
        found = [json.loads(line) for line in self.lines(r"^\{.*\}$")]
        return [record for record in found if event is None or record.get("event") == event]

    async def saw(self, pattern: str, deadline_s: float = PATIENCE_S) -> str:
        """Wait until a line has `pattern` in it and return the first; AssertionError at the deadline."""
        lines = await wait_until(lambda: self.lines(pattern), self._sentence(pattern), deadline_s)
        return lines[0]

    def saw_sync(self, pattern: str, deadline_s: float = PATIENCE_S) -> str:
        """The same for a test without an event loop."""
        return wait_until_sync(lambda: self.lines(pattern), self._sentence(pattern), deadline_s)[0]

    async def ended(self, deadline_s: float = PATIENCE_S) -> int:
        """Wait until it has ended and return its exit code (negative: the signal that ended it)."""
        await wait_until(lambda: not self.alive, f"{self._name} has ended", deadline_s)
        return self.process.returncode

    def ended_sync(self, deadline_s: float = PATIENCE_S) -> int:
        """The same for a test without an event loop."""
        wait_until_sync(lambda: not self.alive, f"{self._name} has ended", deadline_s)
        return self.process.returncode

    def send(self, number: signal.Signals) -> None:
        """Send it a signal: SIGTERM and SIGINT (shutdown), SIGSTOP and SIGCONT (frozen)."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL it and what it has started, and wait."""
        try:
            if self._process is not None:
                if self.alive:
                    os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()
        finally:
            if self._log is not None:
                self._log.close()
                self._log = None

    @property
    def _name(self) -> str:
        return " ".join(self._command[1:])

    def _sentence(self, pattern: str) -> str:
        return f"{self._name} prints a line with {pattern!r}"


def run_worker(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, deadline_s: float = PATIENCE_S
) -> tuple[int, str]:
    """Run `python -m echomq_worker …` to its end: exit code and everything it printed; blocks."""
    with WorkerProcess(*arguments, env=env, cwd=cwd) as worker:
        return worker.ended_sync(deadline_s), worker.log_text()
