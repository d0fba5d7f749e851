"""Fifty queues in one process: what they have of connections, threads, tasks and round trips, and how soon each
is served.

Source: issue "Faster than every peer" (many queues in one process), docs/design.md section 3 (Connections, Tasks and
threads).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pytest
from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.worker import Worker
from tests.support.foreign import Foreign
from tests.support.running import running
from tests.support.waiting import passes, wait_until

QUEUES = 50
# The formulas of docs/design.md: what a process has once, what it has of each queue that one consumer serves.
ONCE = {"worker": 1, "leases": 1, "listener": 1}
OF_EACH = ("settle", "pump", "consumer", "slot")
CONNECTIONS = {"echomq-worker": 1, "echomq-worker:parking": 1, "echomq-worker:cancel": 1}


def _worker(queues: int, began: asyncio.Queue[str] | None = None) -> Worker:
    worker = Worker()

    async def handle(job: Job) -> None:
        if began is not None:
            began.put_nowait(job.queue)

    for number in range(queues):
        worker.handler(f"q{number}", concurrency=2)(handle)
    return worker


def _tasks() -> Counter[str]:
    """Names of tasks, as far as they name a loop; the runners that work has made are not among them."""
    names = (task.get_name() for task in asyncio.all_tasks())
    loops = [name.partition(":")[0] for name in names if name.count("/") < 2]
    return Counter(loop for loop in loops if loop in {*ONCE, *OF_EACH, "metronome", "parking"})


async def _connections(raw: Redis) -> Counter[str]:
    names = Counter(row["name"] for row in await raw.client_list())
    return Counter({name: count for name, count in names.items() if name.startswith("echomq-worker")})


async def _are(raw: Redis, expected: dict[str, int]) -> bool:
    return await _connections(raw) == expected


async def _standing(raw: Redis) -> bool:
    return bool((await raw.info("clients"))["blocked_clients"] == 1)


@pytest.mark.parametrize("queues", [1, QUEUES])
async def test_connections_threads_and_tasks_are_the_formulas(url: str, raw: Redis, queues: int) -> None:
    """Idle, and after each queue has had jobs: nothing that grows with the queues but four tasks of each, and a runner
    that has worked.
    """
    expected = Counter(ONCE) + Counter(dict.fromkeys(OF_EACH, queues))
    before = threading.active_count()
    async with connect(url) as connector, running(_worker(queues), url, beat_ms=1_000, lease_ms=30_000):
        await wait_until(lambda: _standing(raw), "it is parked")
        await wait_until(lambda: _tasks() == expected, "its tasks are the formula's")
        assert threading.active_count() == before + 1
        await wait_until(lambda: _are(raw, CONNECTIONS), "its connections are the formula's")
        jobs = Jobs(connector)
        for number in range(queues):
            await jobs.enqueue_many(f"q{number}", [b"x"] * 4)

        async def done() -> bool:
            counts = [await raw.hget(f"emq:{{q{number}}}:metrics:completed", "count") for number in range(queues)]
            return all(int(count or 0) == 4 for count in counts)

        await wait_until(done, "all is done")
        await wait_until(lambda: _standing(raw), "it is parked again")
        await wait_until(lambda: _tasks() == expected, "its tasks are those of before")
        assert threading.active_count() == before + 1
        await wait_until(lambda: _are(raw, CONNECTIONS), "its connections are the formula's")
        runners = sum(
            task.get_name().startswith("slot:") and task.get_name().count("/") == 2 for task in asyncio.all_tasks()
        )
        assert runners <= 2 * queues


@pytest.mark.parametrize(("queues", "most"), [(1, 3.2), (QUEUES, 40.0)])
async def test_an_idle_process_asks_the_server_seldom(url: str, raw: Redis, queues: int, most: float) -> None:
    """Writes to the server per beat, as the server counts what it reads: one for a queue's beat, one for its Pump, less
    than one to park; for fifty queues a few more.
    """
    beat_ms = 500
    async with running(_worker(queues), url, beat_ms=beat_ms, tick_ms=beat_ms, lease_ms=60_000):
        await wait_until(lambda: _standing(raw), "it is parked")
        await passes(2 * beat_ms, "what it says at the start is said")
        counted: list[float] = []
        for _ in range(3):
            first, began = await raw.info("stats"), time.monotonic()
            await passes(2 * beat_ms, "round trips of two beats are counted")
            last, beats = await raw.info("stats"), (time.monotonic() - began) * 1000 / beat_ms
            trips = int(last["total_reads_processed"]) - int(first["total_reads_processed"]) - 1
            counted.append(trips / (beats + 0.5))
    # Where a process is held up its loops come apart for a beat, and more or less of a beat may lie in the time.
    assert min(counted) <= most


async def test_each_queue_is_woken_by_its_own_token(url: str, raw: Redis) -> None:
    """With a beat of a minute, which nobody waits for: a job in whichever queue is in its handler at once, one in each
    at the same moment too.
    """
    began: asyncio.Queue[str] = asyncio.Queue()
    async with connect(url) as connector, running(_worker(QUEUES, began), url, beat_ms=60_000, lease_ms=120_000):
        await wait_until(lambda: _standing(raw), "it is parked")
        jobs = Jobs(connector)
        async with asyncio.timeout(40):
            for number in range(0, QUEUES, 5):
                await jobs.enqueue(f"q{number}", b"x")
                assert await began.get() == f"q{number}"
            names = [f"q{number}" for number in range(QUEUES)]
            await asyncio.gather(*(jobs.enqueue(name, b"x") for name in names))
            assert sorted([await began.get() for _ in names]) == sorted(names)


async def test_a_full_process_does_not_keep_tokens_from_others(url: str, raw: Redis) -> None:
    """A worker whose only slot was filled by its beat, while it parks for another queue as well: the token of the next
    job reaches the worker beside it, whose beat is a minute.
    """
    gate, began = asyncio.Event(), list[str]()
    full, other = Worker(), Worker()

    @full.handler("a", concurrency=1)
    async def hold() -> None:
        began.append("full")
        await gate.wait()

    @full.handler("b")
    async def nothing() -> None:
        raise AssertionError("nobody enqueues there")

    @other.handler("a")
    async def handle() -> None:
        began.append("other")

    async with connect(url) as connector, running(full, url, beat_ms=1_000, lease_ms=60_000):
        await wait_until(lambda: _standing(raw), "it is parked")
        # A foreign client pushes no token: the beat claims the job, and the wait for both queues stands all the time.
        await Foreign(raw, "a").enqueue("JOB00000000001", b"x")
        await wait_until(lambda: began == ["full"], "its slot is full")
        async with running(other, url, beat_ms=60_000, lease_ms=120_000):

            async def both() -> bool:
                return bool((await raw.info("clients"))["blocked_clients"] == 2)

            await wait_until(both, "both are parked")
            await Jobs(connector).enqueue("a", b"x")
            await wait_until(lambda: began == ["full", "other"], "the other one has it")
            gate.set()
