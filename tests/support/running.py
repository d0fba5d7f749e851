"""A worker that runs inside a test's body, with numbers small enough for a test.

A context manager, not a fixture: a task group held open across a fixture's yield does not work under pytest-asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from echomq_worker.report import Report
from echomq_worker.settings import Settings
from echomq_worker.worker import Worker

BEAT_MS = 100
LEASE_MS = 10_000


def quick(url: str, **changes: Any) -> Settings:
    """Settings for tests: a beat of 100 ms, a lease of 10 s, a tick of 50 ms, a retry after 50 ms, a grace of 2 s."""
    numbers: dict[str, Any] = {
        "beat_ms": BEAT_MS,
        "lease_ms": LEASE_MS,
        "tick_ms": 50,
        "retry_delay_ms": 50,
        "grace_ms": 2_000,
        "log_level": "error",
    }
    return Settings(url=url, **{**numbers, **changes})


class Run:
    """A worker that runs: `report` is there when it has ended."""

    def __init__(self, task: asyncio.Task[Report]) -> None:
        self.task = task

    @property
    def report(self) -> Report:
        """What the run did; only after the context was left."""
        return self.task.result()


@asynccontextmanager
async def running(
    worker: Worker, url: str, *, options: dict[str, Any] | None = None, **changes: Any
) -> AsyncIterator[Run]:
    """Run `worker` beside the test's body and stop it at the end; what it raises is raised there.

    `options` are those of `Worker.run`, `changes` those of the settings.
    """
    task = asyncio.create_task(worker.run(quick(url, **changes), signals=False, **(options or {})), name="worker")
    try:
        yield Run(task)
    finally:
        worker.stop()
        await task
