"""Jobs that end just when their lease does, and jobs that are late by several leases: one run each."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import AsyncExitStack

from redis.asyncio import Redis

from echomq_worker.clock import SystemClock
from echomq_worker.connector import connect
from echomq_worker.errors import Stale
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs, New
from echomq_worker.rows import Claimed
from echomq_worker.worker import Worker
from tests.support.running import running
from tests.support.waiting import PATIENCE_S, passes, wait_until, works_for

EDGE_MS = 20
JOBS = 500


class SteppedClock(SystemClock):
    """A host whose wall clock a test steps."""

    off_ms = 0

    def now_ms(self) -> int:
        """The wrong time."""
        return super().now_ms() + self.off_ms


async def test_five_hundred_jobs_that_end_as_their_lease_does_run_once(url: str, raw: Redis) -> None:
    """Handlers of one lease, 20 ms more or less, on two workers: no id is ever in two handlers, none runs twice, no
    verdict is refused.

    Report 25 (chrisguidry/docket#245).
    """
    lease_ms, draw = 2_000, random.Random(25)
    runs: Counter[str] = Counter()

    async def handle(job: Job) -> None:
        runs[job.id] += 1
        await works_for(lease_ms + draw.uniform(-EDGE_MS, EDGE_MS))

    async with AsyncExitStack() as stack:
        jobs = Jobs(await stack.enter_async_context(connect(url)))
        ids = {one.id for one in await jobs.enqueue_many("a", [b"x"] * JOBS)}
        workers = []
        for _ in range(2):
            worker = Worker()
            worker.handler("a", concurrency=JOBS * 3 // 5)(handle)
            workers.append(await stack.enter_async_context(running(worker, url, lease_ms=lease_ms)))

        async def completed() -> bool:
            return await raw.hget("emq:{a}:metrics:completed", "count") == str(JOBS).encode()

        await wait_until(completed, "all are completed")

    assert runs == Counter(ids)
    assert sum(one.report.counts.get("stale", 0) for one in workers) == 0
    assert all(one.report.counts["done"] > 50 for one in workers), "both had a share"


async def test_who_settles_too_late_is_refused_and_the_other_one_counts(url: str, raw: Redis) -> None:
    """The same without anybody who keeps the leases: whoever lost a job to the other one is refused, and each job is
    completed exactly once.

    Report 25 (chrisguidry/docket#245).
    """
    lease_ms, draw = 400, random.Random(26)
    done: Counter[str] = Counter()
    refused: set[str] = set()

    async def late(jobs: Jobs, claimed: Claimed, after_ms: float) -> None:
        await passes(after_ms, "it settles about the end of its lease")
        try:
            counted = await jobs.complete("a", claimed.id, claimed.token)
        except Stale:
            counted = False
        if counted:
            done[claimed.id] += 1
        else:
            refused.add(claimed.id)

    async with connect(url) as one, connect(url) as other, asyncio.TaskGroup() as tasks:
        mine, yours = Jobs(one), Jobs(other)
        ids = {receipt.id for receipt in await mine.enqueue_many("a", [b"x"] * JOBS)}
        for number, claimed in enumerate(await mine.claim_batch("a", lease_ms, JOBS)):
            # One in ten at once: however busy the machine is, some are in time.
            after_ms = lease_ms + draw.uniform(-EDGE_MS, EDGE_MS) if number % 10 else 0
            tasks.create_task(late(mine, claimed, after_ms))
        taken: list[Claimed] = []
        while len(done.keys() | {one.id for one in taken}) < JOBS:
            if await yours.reap("a"):
                taken += await yours.claim_batch("a", 60_000, JOBS)
        for claimed in taken:
            done[claimed.id] += await yours.complete("a", claimed.id, claimed.token)

    assert done == Counter(ids)
    assert refused == {claimed.id for claimed in taken}
    assert 0 < len(taken) < JOBS, "some were late, some were not"


async def test_jobs_of_several_leases_run_once_whatever_the_clock_of_the_host(url: str) -> None:
    """Due in two leases, then running for three, on two workers with a Pump each, one of whose hosts steps its clock
    a minute ahead and back all the while: one run each.

    Report 24 (tobymao/saq#277). Report 26 (celery/celery#2599). Report 31 (oban-bg/oban#1141).
    """
    # What the keeper leaves of it is more than a machine may stand still for.
    lease_ms, clock = 1_500, SteppedClock()
    runs: Counter[str] = Counter()
    ended: set[str] = set()

    async def handle(job: Job) -> None:
        runs[job.id] += 1
        await works_for(3 * lease_ms)
        ended.add(job.id)

    async with AsyncExitStack() as stack:
        jobs = Jobs(await stack.enter_async_context(connect(url)))
        for worker in (Worker(clock=clock), Worker()):
            worker.handler("a", concurrency=20)(handle)
            await stack.enter_async_context(running(worker, url, lease_ms=lease_ms))
        receipts = await jobs.enqueue_many("a", [New(b"x", in_ms=2 * lease_ms)] * 30)
        until = time.monotonic() + PATIENCE_S
        while len(ended) < len(receipts) and time.monotonic() < until:
            clock.off_ms = random.choice((-60_000, 0, 60_000))
            await passes(50, "the clock steps now and then")

    assert ended == {one.id for one in receipts}
    assert set(runs.values()) == {1}
