"""Fairness as a tenant sees it: figures of the issue, through a real worker.

Source: issue "Every control" (lanes): a tenant with 100,000 jobs beside 50 with 10 each, and a weight of 3 beside 1.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from echomq_worker.connector import Connector
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs, New
from echomq_worker.lanes import Lanes
from echomq_worker.worker import Worker
from tests.support.plain import QUEUE
from tests.support.running import running
from tests.support.waiting import wait_until

BIG, SMALL, EACH = 100_000, 50, 10
SLOTS = 20


@pytest.mark.timeout(300)
async def test_a_small_tenant_does_not_wait_for_a_big_one(url: str, wire: Connector) -> None:
    """The big one is there first. When the last job of the last small tenant is done, the big one has had no more
    than 30 and the slots.
    """
    big = Lanes.group_for("big")
    small = [Lanes.group_for(f"small-{number}") for number in range(SMALL)]
    jobs = Jobs(wire)
    await jobs.enqueue_many(QUEUE, (New(b"", group=big) for _ in range(BIG)))
    await jobs.enqueue_many(QUEUE, (New(b"", group=group) for _ in range(EACH) for group in small))
    done: Counter[str | None] = Counter()
    seen: list[int] = []
    worker = Worker()

    @worker.handler(QUEUE, concurrency=SLOTS)
    async def handle(job: Job) -> None:
        await asyncio.sleep(0)
        done[job.group] += 1
        if not seen and done.total() - done[big] == SMALL * EACH:
            seen.append(done[big])
            worker.stop()

    async with running(worker, url):
        await wait_until(lambda: seen, "every small tenant is served", deadline_s=200)

    # The guards look at every key that is left.
    await wire.call("FLUSHALL", "ASYNC")
    assert seen[0] <= 30 + SLOTS
    assert {done[group] for group in small} == {EACH}


@pytest.mark.parametrize("concurrency", [1, 10])
async def test_a_weight_of_three_has_three_quarters(url: str, wire: Connector, concurrency: int) -> None:
    """Of the first thousand jobs, with one slot and with ten, the heavy lane has 750 within 5 %, the other the rest.

    Report 124 (celery/celery#4028).
    """
    heavy, light = Lanes.group_for("heavy"), Lanes.group_for("light")
    await Jobs(wire).enqueue_many(QUEUE, [New(b"", group=group) for group in (heavy, light) for _ in range(1_000)])
    await Lanes(wire).weight(QUEUE, heavy, 3)
    order: list[str | None] = []
    worker = Worker()

    @worker.handler(QUEUE, concurrency=concurrency)
    async def handle(job: Job) -> None:
        await asyncio.sleep(0)
        order.append(job.group)
        if len(order) == 1_000:
            worker.stop()

    async with running(worker, url):
        await wait_until(lambda: len(order) >= 1_000, "a thousand jobs are done")

    share = Counter(order[:1_000])
    assert abs(share[heavy] - 750) <= 0.05 * 750
    assert abs(share[light] - 250) <= 0.05 * 250
