"""The ceiling of a lane over several workers: never exceeded, and given back whatever becomes of a job."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs, New
from echomq_worker.lanes import Lanes
from echomq_worker.worker import Worker
from tests.support.running import running
from tests.support.waiting import wait_until, works_for

CEILINGS = {"one": 1, "three": 3}
JOBS = 40


async def test_four_workers_never_exceed_a_lanes_ceiling(url: str, raw: Redis) -> None:
    """Two lanes, of at most one and at most three jobs at a time, on four workers. At first each lane is full with the
    jobs of a worker that has died, and of one of these the row is deleted as well: the lanes are served again, every
    job runs that has a row, and never are there more at once.

    Report 125 (riverqueue/river#132). Report 126 (riverqueue/river#551).
    """
    at_once, most, runs = Counter[bytes](), Counter[bytes](), Counter[str]()
    full = {name.encode(): asyncio.Event() for name in CEILINGS}

    async def handle(job: Job) -> None:
        runs[job.id] += 1
        at_once[job.payload] += 1
        most[job.payload] = max(most[job.payload], at_once[job.payload])
        # However slow the machine is, each lane is full at some time.
        if at_once[job.payload] == CEILINGS[job.payload.decode()]:
            full[job.payload].set()
        await full[job.payload].wait()
        await works_for(10)
        at_once[job.payload] -= 1

    async with AsyncExitStack() as stack:
        connector = await stack.enter_async_context(connect(url))
        jobs, lanes = Jobs(connector), Lanes(connector)
        groups = {name: lanes.group_for(name) for name in CEILINGS}
        for name, group in groups.items():
            await lanes.limit("a", group, CEILINGS[name])
        items = [New(name.encode(), group=group) for name, group in groups.items() for _ in range(JOBS)]
        ids = {one.id for one in await jobs.enqueue_many("a", items)}
        held = [await lanes.claim("a", 200) for _ in range(sum(CEILINGS.values()))]
        deleted = next(one.id for one in held if one is not None and one.payload == b"one")
        await raw.delete(f"emq:{{a}}:job:{deleted}")
        assert await lanes.claim("a", 200) is None, "both lanes are full"
        for _ in range(4):
            worker = Worker()
            worker.handler("a", concurrency=10)(handle)
            await stack.enter_async_context(running(worker, url, beat_ms=20))
        await wait_until(lambda: runs.keys() == ids - {deleted}, "every job with a row has run")

    assert set(runs.values()) == {1}
    assert most == {name.encode(): ceiling for name, ceiling in CEILINGS.items()}
    assert not await raw.exists("emq:{a}:gactive")
