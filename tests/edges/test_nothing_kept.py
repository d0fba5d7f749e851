"""A worker that has nothing to do holds no job: what has ended is let go of, with its payload."""

from __future__ import annotations

import asyncio
import gc
from contextvars import ContextVar

import pytest

from echomq_worker.connector import connect
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.verdict import Reject
from echomq_worker.worker import Worker
from tests.support.running import running
from tests.support.waiting import wait_until

JOBS = 12
own: ContextVar[str] = ContextVar("own", default="")


def _worker(kind: str, seen: list[str]) -> Worker:
    worker = Worker()
    gate = asyncio.Barrier(JOBS)

    async def all_at_once(job: Job) -> None:
        own.set(kind)
        await gate.wait()
        seen.append(job.id)
        if kind == "failing":
            raise Reject("in vain")

    def plain(job: Job) -> None:
        seen.append(job.id)

    async def batch(jobs: list[Job]) -> None:
        seen.extend(job.id for job in jobs)

    if kind == "batch":
        worker.batch_handler("a", min_size=JOBS, timeout_ms=50)(batch)
    else:
        worker.handler("a", concurrency=JOBS, max_attempts=1)(plain if kind == "plain" else all_at_once)
    return worker


@pytest.mark.parametrize("kind", ["coroutine", "failing", "plain", "batch"])
async def test_an_idle_worker_holds_no_job(url: str, kind: str) -> None:
    """Twelve that ran at the same time, each in a runner of its own: when all are settled none of them is in memory,
    though their runners wait for the next.

    Report 84 (taskforcesh/bullmq#2397).
    """
    seen: list[str] = []
    async with connect(url) as connector, running(_worker(kind, seen), url):
        await Jobs(connector).enqueue_many("a", [b"x"] * JOBS)
        await wait_until(lambda: len(seen) == JOBS, "all have run")

        def kept() -> list[Job]:
            gc.collect()
            return [one for one in gc.get_objects() if type(one) is Job and one.id in seen]

        await wait_until(lambda: not kept(), "none is kept")
