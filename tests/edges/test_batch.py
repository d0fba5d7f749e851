"""Batch handlers in a whole worker: every job ends once, and nothing is lost by a stop or a death."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from pydantic import BaseModel
from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.errors import ConfigError, Unreadable
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs, New
from echomq_worker.lanes import Lanes
from echomq_worker.verdict import Reject
from echomq_worker.worker import Worker
from tests.support.keyspace import keyspace_of
from tests.support.running import quick, running
from tests.support.waiting import never_ends, wait_until, works_for


class Email(BaseModel):
    """A payload model."""

    to: str


async def test_every_job_is_in_one_call(url: str, raw: Redis) -> None:
    """Flat, grouped and scheduled ones; a window that is not filled ends all the same, and no row is left."""
    worker, seen, sizes = Worker(), Counter[bytes](), list[int]()

    @worker.batch_handler("a", min_size=20, timeout_ms=50, concurrency=40)
    async def work(jobs: list[Job]) -> None:
        sizes.append(len(jobs))
        seen.update(job.payload for job in jobs)

    group = Lanes.group_for("tenant")
    items = [New(f"flat {n}") for n in range(50)]
    items += [New(f"lane {n}", group=group) for n in range(50)]
    items += [New(f"later {n}", in_ms=n * 3) for n in range(30)]
    async with connect(url) as connector, running(worker, url):
        await Jobs(connector).enqueue_many("a", items)
        await wait_until(lambda: len(seen) == 130, "all have run")
        await wait_until(lambda: _completed(raw, 130), "all are completed")

    assert set(seen.values()) == {1}
    assert max(sizes) <= 40
    assert not [key for key in await keyspace_of(raw) if ":job:" in key or key.endswith((":active", ":gactive"))]


async def _completed(raw: Redis, count: int) -> bool:
    return await raw.hget("emq:{a}:metrics:completed", "count") == str(count).encode()


async def test_a_payload_that_cannot_be_read_is_the_handlers_to_judge(url: str, raw: Redis) -> None:
    """`job.parse` reads it as a handler's parameter would be read; one bad payload need not harm the others."""
    worker, sent = Worker(), list[str]()

    @worker.batch_handler("a", min_size=3, timeout_ms=1_000)
    async def send(jobs: list[Job]) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        for job in jobs:
            try:
                sent.append(job.parse(Email).to)
            except Unreadable as error:
                answers[job.id] = Reject(str(error))
            else:
                answers[job.id] = None
        return answers

    async with connect(url) as connector:
        ids = [one.id for one in await Jobs(connector).enqueue_many("a", [{"to": "ada"}, {"from": "x"}, {"to": "bob"}])]
        report = await worker.run(quick(url), burst=True, signals=False)
        view = await Jobs(connector).get("a", ids[1])
    assert sent == ["ada", "bob"]
    assert (report.completed, report.dead) == (2, 1)
    assert view is not None
    assert view.last_error is not None
    assert view.last_error.startswith("payload")


async def test_what_is_raised_is_retried_for_all(url: str) -> None:
    """Until `max_attempts`, each job by itself."""
    worker, calls = Worker(), list[list[int]]()

    @worker.batch_handler("a", min_size=3, timeout_ms=20, max_attempts=2, retry=10)
    async def work(jobs: list[Job]) -> None:
        calls.append([job.attempts for job in jobs])
        raise ValueError("x")

    async with connect(url) as connector:
        await Jobs(connector).enqueue_many("a", [b"x"] * 3)
        report = await worker.run(quick(url), burst=True, signals=False)
    assert [attempts for call in calls for attempts in call] == [1, 1, 1, 2, 2, 2]
    assert (report.retried, report.dead) == (3, 3)


async def test_a_stop_gives_a_batch_back(url: str, raw: Redis) -> None:
    """What did not end within the grace is pending again at once, and counts no failure."""
    worker, began = Worker(), asyncio.Event()

    @worker.batch_handler("a", min_size=2, timeout_ms=1_000)
    async def work(jobs: list[Job]) -> None:
        began.set()
        await never_ends()

    async with connect(url) as connector:
        ids = [one.id for one in await Jobs(connector).enqueue_many("a", [b"x"] * 4)]
        async with running(worker, url, grace_ms=50) as run:
            await began.wait()
        assert run.report.released == 4
        views = [await Jobs(connector).get("a", id) for id in ids]
    assert [(view.state, view.failures) for view in views if view is not None] == [("pending", 0)] * 4


async def test_a_long_call_keeps_its_leases(url: str, raw: Redis) -> None:
    """Of every job in it; nobody else gets them, and each runs once."""
    worker, other, calls = Worker(), Worker(), list[int]()

    @worker.batch_handler("a", min_size=5, timeout_ms=1_000)
    @other.batch_handler("a", min_size=5, timeout_ms=1_000)
    async def work(jobs: list[Job]) -> None:
        calls.append(len(jobs))
        await works_for(3_500)

    changes: dict[str, Any] = {"lease_ms": 1_500, "beat_ms": 50}
    async with connect(url) as connector, running(worker, url, **changes), running(other, url, **changes):
        await Jobs(connector).enqueue_many("a", [b"x"] * 5)
        await wait_until(lambda: _completed(raw, 5), "all are completed")
    assert calls == [5]


async def test_a_lease_below_two_beats_is_refused(url: str) -> None:
    """As that of any handler, before anything is claimed."""
    worker = Worker()

    @worker.batch_handler("a", min_size=50, timeout_ms=10, lease_ms=150)
    async def work(jobs: list[Job]) -> None: ...

    with pytest.raises(ConfigError, match="two beats"):
        await worker.run(quick(url), signals=False)
