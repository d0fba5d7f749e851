"""Promise 3: a job that kills its worker is given up, with its reason kept, and takes no other with it."""

from __future__ import annotations

import asyncio
from collections import Counter

from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs
from tests.support.fleet import Fleet, fleet
from tests.support.keyspace import keyspace_of
from tests.support.waiting import wait_until


async def test_one_poison_among_200_innocent_jobs(url: str, raw: Redis) -> None:
    """The poison is dead with its reason after five crashes; the 200 are completed; workers are restarted as they die.

    Report 41 (sidekiq/sidekiq#4633). Report 42 (Bogdanp/dramatiq#383).
    """
    async with connect(url) as connector:
        jobs = Jobs(connector)
        with fleet(url, beat_ms=100, lease_ms=600, tick_ms=100) as workers:
            innocents = [one.id for one in await jobs.enqueue_many("jobs", [{"sleep_ms": 150}] * 100)]
            poison = (await jobs.enqueue("jobs", {"kill": True})).id
            innocents += [one.id for one in await jobs.enqueue_many("jobs", [{"sleep_ms": 150}] * 100)]
            keeper = asyncio.create_task(_restart_as_they_die(workers))
            try:
                await wait_until(lambda: set(innocents) <= workers.ended(), "the 200 have ended", 150)
                await wait_until(lambda: raw.zcard("emq:{jobs}:dead"), "the poison is dead")

                async def counted() -> bool:
                    return await raw.hget("emq:{jobs}:metrics:completed", "count") == b"200"

                await wait_until(counted, "200 completions are counted")
            finally:
                keeper.cancel()
                await asyncio.wait({keeper})
            crashes = len(workers.workers) - 1
            starts = Counter(note.id for note in workers.notes("start"))

    row = await raw.hgetall(f"emq:{{jobs}}:job:{poison}")
    assert row[b"last_error"] == b"crashed: 5 claims in a row never ended"
    assert row[b"state"] == b"dead"
    assert crashes == starts[poison] == 5
    assert (await keyspace_of(raw))["emq:{jobs}:dead"] == {poison: 0}


async def _restart_as_they_die(workers: Fleet) -> None:
    while True:
        worker = workers.start("--queue", "jobs", concurrency=100)
        await worker.ended(120)


async def test_other_jobs_keep_running_while_a_suspect_runs(url: str, raw: Redis) -> None:
    """A suspect that runs for long holds up neither the innocent jobs of its queue nor the other queues of its
    process.
    """
    async with connect(url) as connector:
        jobs = Jobs(connector)
        suspects = [one.id for one in await jobs.enqueue_many("jobs", [{"sleep_ms": 60_000}] * 2)]
        for id in suspects:
            await raw.hset(f"emq:{{jobs}}:job:{id}", mapping={"attempts": 3, "crashes": "2:3", "held": "3:gone"})
        with fleet(url) as workers:
            workers.start("--queue", "jobs", "--queue", "other")
            await wait_until(lambda: workers.started() & set(suspects), "one suspect runs")
            calm = {one.id for one in await jobs.enqueue_many("jobs", [{}] * 30)}
            calm |= {one.id for one in await jobs.enqueue_many("other", [b"x"] * 30)}
            await wait_until(lambda: calm <= workers.ended(), "60 innocent jobs have ended")

            assert len(workers.started() & set(suspects)) == 1
            assert await raw.zcard("emq:{jobs}:pending") == 1
