"""A queue that never empties: recovery and promote go on at least once a beat, each as far as there is work.

Source: protocol section 4 (passes are bounded and repeated until they come back short), decision P7, promise 2.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.connector import Connector, connect
from echomq_worker.jobs import Jobs, New
from echomq_worker.lanes import Lanes
from echomq_worker.worker import Worker
from tests.support.running import running
from tests.support.waiting import passes, wait_until, works_for

CONSUMERS = pytest.mark.parametrize("consumers", [1, 2], ids=["standalone", "pooled"])
GROUPS = [f"GRP{number:011d}" for number in range(4)]
# A process of a shared machine that is asked to run, now and then or all the time.
PAUSE_MS = 3_000
MARGIN_MS = 50


async def _now_ms(raw: Redis) -> int:
    seconds, micros = await raw.time()
    return int(seconds) * 1000 + int(micros) // 1000


async def _overdue_ms(raw: Redis) -> float:
    """For how long the oldest due job and the oldest expired lease have waited, by the server's clock."""
    pipeline: Any = raw.pipeline(transaction=True)
    pipeline.time()
    for name in ("schedule", "active"):
        pipeline.zrange(f"emq:{{a}}:{name}", 0, 0, withscores=True)
    (seconds, micros), *heads = await pipeline.execute()
    now = seconds * 1000 + micros / 1000
    return max([now - score for head in heads for _, score in head], default=0)


@asynccontextmanager
async def _fed(connector: Connector, raw: Redis) -> AsyncIterator[None]:
    """Somebody enqueues faster than anybody drains, without a pause."""
    jobs = Jobs(connector)

    async def feed() -> None:
        while True:
            await jobs.enqueue_many("a", [b"fed"] * 50)
            await passes(20, "the queue is fed, never empty")

    feeder = asyncio.create_task(feed())
    try:
        yield
        assert await raw.zcard("emq:{a}:pending") > 200, "it was fed faster than drained"
    finally:
        feeder.cancel()
        await asyncio.wait({feeder})


@CONSUMERS
async def test_expired_leases_and_due_jobs_come_back_on_a_queue_that_never_empties(
    url: str, raw: Redis, consumers: int
) -> None:
    """For ten beats and more the queue is fed faster than it is drained; all the time jobs become due and leases of a
    dead worker run out. None waits longer than two beats to be pending again.

    Report 19 (python-arq/arq#343). Report 34 (riverqueue/river#1258). Report 123 (sidekiq/sidekiq#6529).
    """
    beat_ms = 200
    worker = Worker()
    ran: set[bytes] = set()

    @worker.handler("a", concurrency=4, consumers=consumers)
    async def handle(payload: bytes) -> None:
        ran.add(payload)
        await works_for(20)

    lost: set[bytes] = set()
    overdue: list[float] = []
    async with connect(url) as connector:
        jobs = Jobs(connector)
        # Older than what is fed, so that the foreign claims take these.
        names = [f"dead worker's {number}".encode() for number in range(200)]
        await jobs.enqueue_many("a", names)
        async with (
            _fed(connector, raw),
            running(worker, url, options={"pump": False}, beat_ms=beat_ms, lease_ms=10_000),
        ):
            until = time.monotonic() + 12 * beat_ms / 1000
            while time.monotonic() < until or len(lost) <= 20:
                claimed = await jobs.claim("a", 100)
                assert claimed is not None
                assert claimed.payload is not None
                lost.add(claimed.payload)
                await jobs.enqueue_in("a", b"due", 100)
                overdue.append(await _overdue_ms(raw))
                await passes(10, "leases are lost one after the other")
            # In mint order they come before all that was fed since; the due ones, minted last, wait behind it.
            await wait_until(lambda: lost - {b"fed"} <= ran, "what the dead worker held has run")

    *most, longest = sorted(overdue)
    assert 0 < longest <= 2 * beat_ms + PAUSE_MS
    assert most[len(most) * 8 // 10] <= 2 * beat_ms + MARGIN_MS


@CONSUMERS
async def test_thousands_at_once_are_back_within_two_beats(url: str, raw: Redis, consumers: int) -> None:
    """2,000 jobs become due and 2,000 leases run out at the same moment, half of them in lanes, in front of a worker
    whose slots are all taken: two beats later all are pending.

    Report 34 (riverqueue/river#1258). Report 123 (sidekiq/sidekiq#6529).
    """
    beat_ms = 1_000
    worker = Worker()
    busy, done = asyncio.Event(), asyncio.Event()

    @worker.handler("a", concurrency=2, consumers=consumers)
    async def handle() -> None:
        busy.set()
        await done.wait()

    async with connect(url) as connector:
        jobs = Jobs(connector)
        groups = [None, *GROUPS, None, None, None]
        await jobs.enqueue_many("a", [New(b"x", group=groups[number % 8]) for number in range(2_000)])
        leases = await _claim_all(connector, 2_000)
        due = [New(b"x", group=groups[number % 8], in_ms=600_000) for number in range(2_000)]
        waiting = [one.id for one in await jobs.enqueue_many("a", due)]
        await jobs.enqueue_many("a", [b"hold"] * 2)

        async with running(worker, url, options={"pump": False}, beat_ms=beat_ms, lease_ms=60_000):
            await busy.wait()

            moment = await _now_ms(raw)
            pipeline: Any = raw.pipeline(transaction=True)
            pipeline.zadd("emq:{a}:schedule", dict.fromkeys(waiting, moment), xx=True, ch=True)
            pipeline.zadd("emq:{a}:active", dict.fromkeys(leases, moment), xx=True, ch=True)
            assert await pipeline.execute() == [2_000, 2_000]

            async def back() -> int:
                expired = await raw.zcount("emq:{a}:active", "-inf", moment) + await raw.zcard("emq:{a}:schedule")
                return 0 if expired else await _now_ms(raw)

            late_ms = await wait_until(back, "all are back") - moment
            done.set()

    assert late_ms <= 2 * beat_ms + PAUSE_MS


async def _claim_all(connector: Connector, count: int) -> list[str]:
    """Take `count` jobs of queue a, flat and grouped, as a worker that dies would; their ids."""
    jobs, lanes = Jobs(connector), Lanes(connector)
    ids = [one.id for one in await jobs.claim_batch("a", 600_000, count)]
    while len(ids) < count:
        claimed = await lanes.claim("a", 600_000)
        assert claimed is not None
        ids.append(claimed.id)
    return ids
