"""Working: a whole worker in this process on a scenario's queue, with a short beat, stopped at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from echomq_worker.conformance.bench import Bench, Desk
from echomq_worker.job import Job
from echomq_worker.settings import Settings
from echomq_worker.worker import Worker

_NUMBERS = {"beat_ms": 100, "lease_ms": 2_000, "tick_ms": 100, "retry_delay_ms": 0, "grace_ms": 2_000}


@asynccontextmanager
async def working(bench: Bench, worker: Worker, **changes: Any) -> AsyncIterator[None]:
    """Run the worker inside; `changes` are settings. What it raises is raised at the end."""
    target = bench.target
    settings = Settings(
        url=target.url,
        wire_version=target.wire_version,
        wire=target.wire,
        connect_timeout_ms=target.connect_timeout_ms,
        command_timeout_ms=target.command_timeout_ms,
        **{**_NUMBERS, **changes},
    )
    task = asyncio.create_task(worker.run(settings, signals=False), name="conformance:worker")
    # A turn, so that `stop` finds a run.
    await asyncio.sleep(0)
    try:
        yield
    finally:
        worker.stop()
        await task


def taken_by(q: Desk, job: Job) -> None:
    """The receipt of the consumer that has this job is the queue's too."""
    q.owns(f"claimed:{job.held.partition(':')[2].rpartition('.')[0]}")
