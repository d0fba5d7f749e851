"""What a worker process is made of: its memory, what it has not imported, its event loop.

Source: issue "Faster than every peer" (Memory, `[fast]`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis

from bench.idle import IMPORTS, rss_mb
from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs
from tests.support.process import WorkerProcess
from tests.support.waiting import wait_until

# A worker beside a process that only imports what the package is built on.
LIMIT_MB = 10.0
GROWTH_MB = 1.0
APP = """
import asyncio, sys
from pathlib import Path
from echomq_worker import Job, Worker

worker = Worker()

@worker.handler("jobs", concurrency=100)
async def handle(job: Job) -> None:
    if job.payload != b"x":
        seen = [name for name in ("echomq_worker.cluster", "echomq_worker.cli.app") if name in sys.modules]
        loop = type(asyncio.get_running_loop()).__module__
        Path(job.payload.decode()).write_text(" ".join([loop.partition(".")[0], *seen]))
"""
# uvloop has a memory of its own.
ALONE = "import lean_app, asyncio; asyncio.run(lean_app.worker.run())"
PLAIN = "import sys; sys.modules['uvloop'] = None; from echomq_worker.cli import main; sys.exit(main())"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the app is; nothing that measures coverage is passed on to a process."""
    (tmp_path / "lean_app.py").write_text(APP)
    for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def _rss_mb(pid: int) -> float:
    return rss_mb(Path(f"/proc/{pid}/status").read_text())


async def _completed(raw: Redis, count: int) -> bool:
    return int(await raw.hget("emq:{jobs}:metrics:completed", "count") or 0) >= count


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("kind", ["alone", "run"])
async def test_a_worker_is_ten_megabytes_beside_what_it_imports(url: str, raw: Redis, folder: Path, kind: str) -> None:
    """A worker that idles and has done 1,000 jobs, by itself and from the command line, and after 20,000 more it is
    where it was.
    """
    base = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, cwd=folder)
    command = (sys.executable, "-c", ALONE if kind == "alone" else PLAIN)
    arguments = () if kind == "alone" else ("run", "lean_app:worker")
    env = {"ECHOMQ_URL": url, "ECHOMQ_LOG_LEVEL": "warning", "ECHOMQ_LOG_FORMAT": "json"}
    with WorkerProcess(*arguments, env=env, cwd=folder, command=command) as worker:
        async with connect(url) as connector:
            await Jobs(connector).enqueue_many("jobs", [b"x"] * 1_000)
            await wait_until(lambda: _completed(raw, 1_000), "1,000 jobs are done")
            first_mb = _rss_mb(worker.pid)
            await Jobs(connector).enqueue_many("jobs", [b"x"] * 20_000)
            await wait_until(lambda: _completed(raw, 21_000), "20,000 more are done")
            last_mb = _rss_mb(worker.pid)
    assert first_mb - rss_mb(base.stdout) <= LIMIT_MB
    assert last_mb - first_mb <= GROWTH_MB


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_run_picks_up_uvloop_and_imports_no_more_than_it_needs(url: str, folder: Path, loop: str) -> None:
    """With the extra `fast` the loop is uvloop's, without it asyncio's; neither the other commands nor what a cluster
    needs are there.
    """
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    command = (sys.executable, "-m", "echomq_worker") if loop == "uvloop" else (sys.executable, "-c", PLAIN)
    told = folder / "told"
    with WorkerProcess("run", "lean_app:worker", env={"ECHOMQ_URL": url}, cwd=folder, command=command):
        async with connect(url) as connector:
            await Jobs(connector).enqueue("jobs", str(told).encode())
        await wait_until(lambda: told.exists() and told.read_text(), "its handler has run")
    assert told.read_text() == loop
