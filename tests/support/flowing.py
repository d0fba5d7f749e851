"""Handlers of a three-level flow over three queues, in worker processes that start in no time and may be killed.

What happens stands in the file that `TEST_NOTES` names, a JSON line for each start and end. As a program it imports
everything once and then forks a worker for each line on its standard input, whose process id it prints: a worker is up
in a few milliseconds, so a test can afford to kill many. `python -m tests.support.flowing`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from echomq_worker import Job, Reject, Worker
from echomq_worker.settings import Settings
from tests.support.waiting import works_for

worker = Worker()


def _note(what: str, job: Job, **more: object) -> None:
    line = json.dumps({"what": what, "id": job.id, "pid": os.getpid(), "at": time.time(), **more})
    handle = os.open(os.environ["TEST_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, f"{line}\n".encode())
    finally:
        os.close(handle)


@worker.handler("low", concurrency=10)
async def leaf(job: Job, payload: dict[str, Any]) -> dict[str, Any]:
    """Sleeps; `reject` makes it dead at once."""
    _note("start", job)
    await works_for(payload["sleep_ms"])
    if payload["reject"]:
        _note("reject", job)
        raise Reject("as asked")
    _note("end", job)
    return {"leaf": job.id}


@worker.handler("mid", concurrency=10)
async def branch(job: Job, payload: dict[str, Any]) -> int:
    """Notes what its children have left for it; returns how many did."""
    return await _parent(job, payload)


@worker.handler("top", concurrency=10)
async def root(job: Job, payload: dict[str, Any]) -> int:
    """As a branch."""
    return await _parent(job, payload)


async def _parent(job: Job, payload: dict[str, Any]) -> int:
    _note("start", job)
    values, ignored = await job.children_values(), await job.ignored_failures()
    await works_for(payload["sleep_ms"])
    _note("end", job, values=values, ignored=sorted(ignored))
    return len(values)


class Nursery:
    """Forks workers and kills them."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.killed: dict[int, float] = {}

    def start(self) -> int:
        """One more worker; its process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def kill(self, pid: int) -> None:
        """SIGKILL, noted with the time."""
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            raise AssertionError(f"worker {pid} has ended by itself: {self._log.read_text()[-4_000:]}") from None
        self.killed[pid] = time.time()


@contextmanager
def nursery(url: str, notes: Path, log: Path, **settings: object) -> Iterator[Nursery]:
    """A nursery; whatever still runs at the end is killed."""
    numbers = {"beat_ms": 100, "tick_ms": 100, "lease_ms": 3_000, "log_level": "error", "max_crashes": 1_000}
    env = {f"ECHOMQ_{name.upper()}": str(value) for name, value in {**numbers, **settings}.items()}
    env = {**os.environ, **env, "ECHOMQ_URL": url, "TEST_NOTES": str(notes)}
    with (
        log.open("ab") as errors,
        subprocess.Popen(
            (sys.executable, "-m", "tests.support.flowing"),
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield Nursery(process, log)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def read_notes(path: Path) -> list[dict[str, Any]]:
    """The notes so far, in the order in which they were written."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main(lines: Sequence[str] | None = None) -> None:
    """A worker for each line."""
    # Whoever is killed is buried by the system.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    settings = Settings()
    for _ in sys.stdin if lines is None else lines:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(0)
            os.dup2(2, 1)
            asyncio.run(worker.run(settings))
            os._exit(0)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
