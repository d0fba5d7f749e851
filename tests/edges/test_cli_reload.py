"""`run --reload`: a changed file drains the worker and starts it again; an import error is shown and waited out."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from echomq_worker.errors import ConfigError
from echomq_worker.reloader import Reloader, watchfiles
from echomq_worker.supervisor import Plan
from tests.edges.test_cli_run import enqueue
from tests.support.cli import Cli, cli
from tests.support.process import WorkerProcess
from tests.support.waiting import PATIENCE_S, wait_until_sync

__all__ = ["cli"]

APP = """
import asyncio, os, structlog
from echomq_worker import Worker
worker = Worker()
log = structlog.get_logger()
@worker.handler("emails")
async def email() -> None:
    log.info("begun", version=VERSION, pid=os.getpid())
    await asyncio.sleep(SECONDS)
    log.info("finished", version=VERSION, pid=os.getpid())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The current directory of the worker, with an app in it."""
    write(tmp_path, 1, seconds=1)
    return tmp_path


@pytest.fixture
def worker(url: str, folder: Path) -> Iterator[WorkerProcess]:
    """It runs, and waits for changes."""
    with WorkerProcess("run", "reload_app:worker", "--reload", env={"ECHOMQ_URL": url}, cwd=folder) as running:
        running.saw_sync('"worker started"')
        yield running


def write(folder: Path, version: int, *, seconds: float = 0) -> None:
    """The app in another version."""
    (folder / "next").write_text(f"VERSION, SECONDS = {version}, {seconds}\n{APP}")
    # At once, as an editor does: whoever looks meanwhile sees one or the other.
    (folder / "next").rename(folder / "reload_app.py")


def seen_of(worker: WorkerProcess, event: str) -> list[Any]:
    """The versions on the lines of an event."""
    return [record["version"] for record in worker.records(event)]


def test_a_change_drains_and_starts_the_new_code(worker: WorkerProcess, folder: Path, url: str) -> None:
    """The job in hand ends in the old process, the next is the new one's; a file that is no Python changes nothing."""
    enqueue({"ECHOMQ_URL": url}, "emails", "1")
    worker.saw_sync('"begun"')
    (folder / "notes.txt").write_text("no code")

    write(folder, 2)
    line = worker.saw_sync('"files changed')
    worker.saw_sync('"finished"')
    wait_until_sync(lambda: len(worker.records("worker started")) == 2, "it has started again")
    enqueue({"ECHOMQ_URL": url}, "emails", "2")
    wait_until_sync(lambda: len(seen_of(worker, "finished")) == 2, "the next job is done")

    assert "reload_app.py" in line
    assert "notes.txt" not in worker.log_text()
    assert seen_of(worker, "begun") == seen_of(worker, "finished") == [1, 2]
    assert len({record["pid"] for record in worker.records("begun")}) == 2
    worker.send(signal.SIGTERM)
    assert worker.ended_sync() == 0


def test_what_cannot_be_imported_is_shown_and_waited_out(worker: WorkerProcess, folder: Path) -> None:
    """The trace of the user's mistake is on the screen, and the next change that mends it starts the worker."""
    (folder / "reload_app.py").write_text("def broken(:\n")
    worker.saw_sync("the next change starts it again")
    assert worker.lines("SyntaxError")
    assert worker.lines("importing reload_app failed")

    write(folder, 3)
    wait_until_sync(lambda: len(worker.records("worker started")) == 2, "it has started again")
    worker.send(signal.SIGINT)
    assert worker.ended_sync() == 0


def test_a_second_signal_does_not_wait_for_the_grace(url: str, folder: Path) -> None:
    """The first drains, the second hands over; no process is left."""
    write(folder, 1, seconds=60)
    with WorkerProcess("run", "reload_app:worker", "--reload", env={"ECHOMQ_URL": url}, cwd=folder) as worker:
        worker.saw_sync('"worker started"')
        enqueue({"ECHOMQ_URL": url}, "emails", "1")
        worker.saw_sync('"begun"')
        (child,) = {record["pid"] for record in worker.records("begun")}
        worker.send(signal.SIGTERM)
        worker.saw_sync('"signal"')
        worker.send(signal.SIGTERM)

        assert worker.ended_sync() == 0
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


@pytest.mark.parametrize("more", [("--processes", "2"), ("--burst",)])
def test_what_it_does_not_go_with_is_refused(cli: Cli, more: tuple[str, ...]) -> None:
    """One line that names both, exit code 2."""
    code, out, err = cli("run", "reload_app:worker", "--reload", *more)

    assert (code, out) == (2, "")
    assert err == f"echomq-worker: --reload and {more[0]}: expected one of them\n"


def test_a_folder_that_cannot_be_watched_ends_it(tmp_path: Path) -> None:
    """One that has gone, or a system without watches to give: a worker that goes on with old code helps nobody."""
    plan = Plan(command=(sys.executable, "-c", "input()"), environments=[{}], grace_ms=60_000)
    watchfiles()

    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await Reloader(plan, tmp_path / "gone").run()

    with pytest.raises(ConfigError, match=r"--reload: .*/gone cannot be watched: "):
        asyncio.run(run())


def test_without_the_extra_it_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install."""
    monkeypatch.setitem(__import__("sys").modules, "watchfiles", None)

    code, _, err = cli("run", "reload_app:worker", "--reload")

    assert code == 2
    assert "pip install 'echomq-worker[reload]'" in err
