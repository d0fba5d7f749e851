"""The longest payload that is permitted arrives, and its memory is given back.

Source: user-needs 84; docs/security.md, Limits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from echomq_worker import Jobs, connect
from echomq_worker.codec import PAYLOAD_BYTES
from echomq_worker.errors import InvalidArgument
from tests.support.process import WorkerProcess
from tests.support.waiting import wait_until

APP = """
from echomq_worker import Job, Worker

worker = Worker()

@worker.handler("big", concurrency=1)
async def big(job: Job, payload: bytes) -> None:
    print(f"length {len(payload)}", flush=True)
"""


def _resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much memory a process has")
async def test_the_longest_payload_arrives_and_its_memory_returns(url: str, tmp_path: Path) -> None:
    """64 MiB reach the handler whole; afterwards the worker is as large as it was before, and a third of that at most.
    One byte more is refused before anything is sent.

    Report 84 (taskforcesh/bullmq#2397).
    """
    (tmp_path / "app.py").write_text(APP)
    async with connect(url) as connector:
        with WorkerProcess(
            "run", "app:worker", env={"ECHOMQ_URL": url, "ECHOMQ_BEAT_MS": "100"}, cwd=tmp_path
        ) as worker:
            await worker.saw("worker started")
            before = _resident_mb(worker.pid)
            await Jobs(connector).enqueue("big", bytes(PAYLOAD_BYTES))
            await worker.saw(f"length {PAYLOAD_BYTES}")
            await worker.saw("job completed")
            room = PAYLOAD_BYTES / 3e6
            await wait_until(lambda: _resident_mb(worker.pid) < before + room, "the memory is given back")
        with pytest.raises(InvalidArgument, match="payload of 67108865 bytes: expected at most 67108864"):
            await Jobs(connector).enqueue("big", bytes(PAYLOAD_BYTES + 1))
        assert (await Jobs(connector).counts("big")).pending == 0
