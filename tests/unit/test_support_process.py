"""Processes that tests start: their log, their signals, their end."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.support.process import WorkerProcess, run_worker
from tests.support.waiting import wait_until_sync

PYTHON = (sys.executable, "-c")
OBEDIENT = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(json.dumps({"event": "ready", "url": os.environ.get("ECHOMQ_URL")}))
print("not json {")
print(json.dumps({"event": "other"}), file=sys.stderr)
while True:
    time.sleep(0.01)
"""


def test_lines_records_and_exit_code() -> None:
    """Both streams are one log, JSON lines are records, a signal reaches it, the log outlives the context."""
    with WorkerProcess(OBEDIENT, command=PYTHON, env={"ECHOMQ_URL": "redis://h"}) as worker:
        assert worker.saw_sync("other")
        assert worker.alive
        assert worker.records("ready") == [{"event": "ready", "url": "redis://h"}]
        assert [record["event"] for record in worker.records()] == ["ready", "other"]
        worker.send(signal.SIGTERM)
        assert worker.ended_sync() == 7
        assert not worker.alive
    assert worker.lines("not json") == ["not json {"]
    assert not worker.directory.exists()


async def test_the_async_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is waited for without blocking the loop; the tests' own ECHOMQ_ variables do not reach it."""
    monkeypatch.setenv("ECHOMQ_URL", "redis://not-this")
    with WorkerProcess(OBEDIENT, command=PYTHON) as worker:
        assert await worker.saw("ready") == '{"event": "ready", "url": null}'
        worker.send(signal.SIGKILL)
        assert await worker.ended() == -signal.SIGKILL


def running(pid: int) -> bool:
    """Whether a process runs (one that is dead and not yet collected does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_frozen_process_is_killed_with_what_it_started() -> None:
    """Whatever still runs when the context is over is killed, frozen or not, and its children with it."""
    parent = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid); time.sleep(60)"
    with WorkerProcess(parent, command=PYTHON) as worker:
        child = int(worker.saw_sync(r"^\d+$"))
        assert running(child)
        worker.send(signal.SIGSTOP)
        assert worker.alive
    assert not worker.alive
    wait_until_sync(lambda: not running(child), "what it had started is gone too")


def fail_after(worker: WorkerProcess) -> None:
    """A test body that waits for what does not come."""
    with worker:
        worker.ended_sync()
        worker.saw_sync("never", 0)


def test_a_failure_carries_the_log() -> None:
    """An error inside the context has the log as a note."""
    worker = WorkerProcess("print('last words')", command=PYTHON)
    with pytest.raises(AssertionError, match="prints a line with 'never'") as caught:
        fail_after(worker)
    assert "last words" in caught.value.__notes__[0]


def test_run_worker_runs_the_command_line_to_its_end() -> None:
    """The exit code and the output of `python -m echomq_worker` are what it returns."""
    code, output = run_worker("--help")
    assert code == 0
    assert "Usage" in output


def test_before_it_is_started_it_is_not_there() -> None:
    """A process that was not started has no pid, no log, and can be killed."""
    worker = WorkerProcess("pass", command=PYTHON)
    with pytest.raises(RuntimeError, match="not started"):
        _ = worker.pid
    assert (worker.log_text(), worker.alive) == ("", False)
    worker.kill()
    worker.directory.rmdir()
