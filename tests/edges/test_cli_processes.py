"""run --processes N: flags reach the children, signals are passed on once, what ends is started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from echomq_worker.supervisor import Plan, Supervisor, exit_code, restart_delay_ms
from tests.edges.test_cli_run import enqueue, enqueue_many
from tests.support.process import WorkerProcess
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until, wait_until_sync

APP = """
import asyncio, os, structlog
from pathlib import Path
from echomq_worker import Worker
worker = Worker()
log = structlog.get_logger()
@worker.handler("emails")
async def email(payload: bytes) -> None:
    log.info("handled", pid=os.getpid(), node=os.environ.get("ECHOMQ_NODE_ID"))
@worker.handler("shared")
async def shared(payload: bytes) -> None:
    log.info("handled", pid=os.getpid(), node=os.environ.get("ECHOMQ_NODE_ID"))
    # Whoever comes first does not do it all before the other has started.
    Path(f"{os.getpid()}.at-work").touch()
    while len(list(Path().glob("*.at-work"))) < 2:
        await asyncio.sleep(0.02)
@worker.handler("slow")
async def slow() -> None:
    log.info("begun", pid=os.getpid())
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    log.info("finished", pid=os.getpid())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The current directory of the worker, with an app in it."""
    (tmp_path / "many_app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def env(url: str) -> dict[str, str]:
    """The tests' server for a child."""
    return {"ECHOMQ_URL": url}


def pids(worker: WorkerProcess, event: str) -> list[int]:
    """The process ids on the lines of one event."""
    return [record["pid"] for record in worker.records(event)]


def test_two_processes_share_a_burst(env: dict[str, str], folder: Path, server: ValkeyServer) -> None:
    """All jobs are done by two children with node ids of their own, the flags of the command line hold there too.

    Report 97 (tastyware/streaq#45).
    """
    enqueue_many(env, folder, "shared", 200)
    more = {**env, "ECHOMQ_NODE_ID": "7"}

    with WorkerProcess(
        *("run", "many_app:worker", "--processes", "2", "--burst", "--queue", "shared", "--log-level", "debug"),
        *("--concurrency", "5"),
        env=more,
        cwd=folder,
    ) as worker:
        assert worker.ended_sync() == 0
        assert {record["node"] for record in worker.records("handled")} == {"7", "8"}
        assert len(set(pids(worker, "handled"))) == 2
        assert len(worker.records("job started")) == 200
        assert [record["queues"] for record in worker.records("worker started")] == [["shared"]] * 2
        assert len(worker.records("settings")) == 1
        assert worker.pid not in pids(worker, "handled")
    assert server.admin.zcard("emq:{shared}:pending") == 0


def test_a_signal_for_the_whole_group_is_handled_once(env: dict[str, str], folder: Path) -> None:
    """A terminal and `tini -g` signal every process of the group: running jobs get their grace all the same.

    Report 53 (celery/celery#4795).
    """
    with WorkerProcess("run", "many_app:worker", "--processes", "2", env=env, cwd=folder) as worker:
        wait_until_sync(lambda: len(worker.records("worker started")) == 2, "both have started")
        enqueue(env, "slow", "x")
        worker.saw_sync("begun")
        os.killpg(worker.pid, signal.SIGTERM)
        worker.saw_sync('"signal"')
        (folder / "go").touch()
        assert worker.ended_sync() == 0
        assert len(worker.records("finished")) == 1
        assert len(worker.records("job completed")) == 1


def test_all_drain_at_the_same_time(env: dict[str, str], folder: Path, server: ValkeyServer) -> None:
    """SIGTERM with a job in each child: both are asked before either has stopped, both finish what they run."""
    flags = ("--processes", "2", "--queue", "slow", "--concurrency", "1")
    with WorkerProcess("run", "many_app:worker", *flags, env=env, cwd=folder) as worker:
        wait_until_sync(lambda: len(worker.records("worker started")) == 2, "both have started")
        for _ in range(2):
            enqueue(env, "slow", "x")
        wait_until_sync(lambda: len(set(pids(worker, "begun"))) == 2, "each runs one")
        worker.send(signal.SIGTERM)
        wait_until_sync(lambda: len(worker.records("signal")) == 2, "both are asked")
        (folder / "go").touch()
        assert worker.ended_sync() == 0
        assert len(set(pids(worker, "finished"))) == 2
        order = [record["event"] for record in worker.records() if record["event"] in {"signal", "worker stopped"}]
        assert order == ["signal", "signal", "worker stopped", "worker stopped"]
    assert server.admin.hget("emq:{slow}:metrics:completed", "count") == b"2"


def test_a_child_that_dies_is_started_again(env: dict[str, str], folder: Path) -> None:
    """After SIGKILL of one child another takes its place; the others go on."""
    with WorkerProcess("run", "many_app:worker", "--processes", "2", env=env, cwd=folder) as worker:
        wait_until_sync(lambda: len(worker.records("worker started")) == 2, "both have started")
        victim = pids(worker, "process started")[0]
        os.kill(victim, signal.SIGKILL)
        wait_until_sync(lambda: len(worker.records("worker started")) == 3, "the third has started")
        (restart,) = worker.records("process restarts")
        assert (restart["code"], restart["delay_ms"]) == (-signal.SIGKILL, 500)
        worker.send(signal.SIGTERM)
        assert worker.ended_sync() == 0


def test_children_go_with_a_supervisor_that_is_killed(env: dict[str, str], folder: Path, server: ValkeyServer) -> None:
    """SIGKILL of the supervisor: its children stop as for SIGTERM, nobody works on unseen."""
    with WorkerProcess("run", "many_app:worker", "--processes", "2", env=env, cwd=folder) as worker:
        wait_until_sync(lambda: len(worker.records("worker started")) == 2, "both have started")
        os.kill(worker.pid, signal.SIGKILL)
        wait_until_sync(lambda: len(worker.records("worker stopped")) == 2, "both have stopped")


def test_what_would_fail_again_ends_all(env: dict[str, str], folder: Path) -> None:
    """A module that cannot be imported is no reason to start children for ever: 2, as with one process."""
    (folder / "broken_app.py").write_text("1 / 0\n")

    with WorkerProcess("run", "broken_app:worker", "--processes", "2", env=env, cwd=folder) as worker:
        assert worker.ended_sync() == 2
        assert "ZeroDivisionError" in worker.log_text()
        assert len(worker.records("process started")) <= 2


def test_processes_share_an_embedded_server(folder: Path) -> None:
    """--embedded with --processes: one server, and the children work on it."""
    with WorkerProcess("run", "many_app:worker", "--processes", "2", "--embedded", cwd=folder) as worker:
        wait_until_sync(lambda: len(worker.records("worker started")) == 2, "both have started")
        url = worker.records("settings")[0]["url"]
        enqueue({"ECHOMQ_URL": url}, "emails", "x")
        worker.saw_sync("job completed")
        worker.send(signal.SIGINT)
        assert worker.ended_sync() == 0


# ----------------------------------------------------------------------------- the supervisor by itself


CHILD = """
import json, os, signal, sys, time
def say(**fields):
    print(json.dumps(fields) + "\\n", end="", flush=True)
def asked(*_):
    say(event="asked")
    if sys.argv[1] == "polite":
        sys.exit(int(sys.argv[2]))
signal.signal(signal.SIGTERM, asked)
say(event="up", pid=os.getpid(), group=os.getpgrp(), extra=os.environ.get("EXTRA"))
if sys.argv[1] == "ends":
    sys.exit(int(sys.argv[2]))
while True:
    time.sleep(0.05)
"""


def plan(behaviour: str, code: int, log: Path, **more: Any) -> Plan:
    """Children that end by themselves, end politely when asked, or do not care."""
    command = ["/bin/sh", "-c", f'exec "$0" "$@" >> {log}', sys.executable, "-c", CHILD, behaviour, str(code)]
    options = {"environments": [{"EXTRA": "a"}, {"EXTRA": "b"}], "grace_ms": 0, **more}
    return Plan(command=command, **options)


def said(log: Path, event: str) -> list[dict[str, Any]]:
    """What the children have said of one event."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [record for record in map(json.loads, lines) if record["event"] == event]


@pytest.mark.parametrize("code", [0, 3])
async def test_children_stand_in_groups_of_their_own(tmp_path: Path, code: int) -> None:
    """Each gets its environment and its group; asked once, each is asked once; the worst code is the result."""
    log = tmp_path / "log"
    supervisor = Supervisor(plan("polite", code, log))
    running = asyncio.create_task(supervisor.run())
    await wait_until(lambda: len(said(log, "up")) == 2, "both children are up")

    supervisor.ask_to_stop()

    assert await running == code
    assert sorted(record["extra"] for record in said(log, "up")) == ["a", "b"]
    assert len({record["group"] for record in said(log, "up")} | {os.getpgrp()}) == 3
    assert len(said(log, "asked")) == 2


async def test_a_child_that_does_not_care_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the grace and a margin the rest is killed, and that is no clean end."""
    monkeypatch.setattr("echomq_worker.supervisor._MARGIN_MS", 2_000)
    log = tmp_path / "log"
    supervisor = Supervisor(plan("deaf", 0, log))
    running = asyncio.create_task(supervisor.run())
    await wait_until(lambda: len(said(log, "up")) == 2, "both children are up")

    supervisor.ask_to_stop()
    await wait_until(lambda: len(said(log, "asked")) == 2, "both were asked")
    supervisor.ask_to_stop()

    assert await running == 1


async def test_a_burst_ends_with_its_children(tmp_path: Path) -> None:
    """A child that has nothing left is not started again, nor one that ends with an error."""
    log = tmp_path / "log"

    assert await Supervisor(plan("ends", 0, log, burst=True)).run() == 0
    assert await Supervisor(plan("ends", 1, log, burst=True)).run() == 1
    assert len(said(log, "up")) == 4


async def test_a_supervisor_that_is_cancelled_leaves_no_child(tmp_path: Path) -> None:
    """Whatever ends it, its children do not stay."""
    log = tmp_path / "log"
    supervisor = Supervisor(plan("deaf", 0, log))
    running = asyncio.create_task(supervisor.run())
    await wait_until(lambda: len(said(log, "up")) == 2, "both children are up")
    children = [record["pid"] for record in said(log, "up")]
    processes = list(supervisor._running.values())

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    # The loop may be closed now: neither a pipe of it nor a thread that waits for a process is left.
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2
    assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in children)


def test_the_delay_before_a_restart_doubles() -> None:
    """Half a second, doubled for each end in a row, at most 30 s, whatever the number."""
    assert [restart_delay_ms(streak) for streak in (0, 1, 2, 3, 7, 8, 10**9)] == [
        500,
        500,
        1_000,
        2_000,
        30_000,
        30_000,
        30_000,
    ]


@pytest.mark.parametrize(
    ("codes", "asked", "code"),
    [
        ([], False, 0),
        ([0, 0], True, 0),
        ([0, 3], True, 3),
        ([0, -signal.SIGKILL], True, 1),
        ([0, -signal.SIGTERM], True, 0),
        ([-signal.SIGTERM], False, 1),
        ([2, -signal.SIGKILL], True, 2),
    ],
)
def test_the_exit_code_is_the_worst(codes: list[int], asked: bool, code: int) -> None:
    """0 only where every child ended as it should; our own SIGTERM before a child listened is such an end."""
    assert exit_code(codes, asked=asked) == code
