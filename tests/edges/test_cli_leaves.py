"""The daemon's end: what a handler left behind that cannot be stopped keeps no process."""

from __future__ import annotations

import signal
import time

import pytest

from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs
from tests.support.process import WorkerProcess


@pytest.mark.parametrize("way", ["swallows", "task", "to_thread", "thread", "plain"])
async def test_the_process_ends_with_0_soon_after_its_grace(url: str, way: str) -> None:
    """Whatever still runs: a coroutine or a task that swallows its cancellation, a thread of any kind."""
    settings = {"ECHOMQ_URL": url, "ECHOMQ_GRACE_MS": "100", "ECHOMQ_LOG_FORMAT": "json"}
    async with connect(url) as connector:
        with WorkerProcess("run", "tests.support.stubborn:worker", "--queue", way, env=settings) as worker:
            await Jobs(connector).enqueue(way, b"{}")
            await worker.saw("begun")
            asked = time.monotonic()
            worker.send(signal.SIGTERM)
            assert await worker.ended() == 0
            assert time.monotonic() - asked < 15
            stopped = worker.records("worker stopped")[0]
    assert stopped.get("disowned", 0) == (1 if way in {"swallows", "plain"} else 0)
