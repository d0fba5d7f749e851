"""Promise 1: a dead worker's job starts again within one lease and one beat, also under load."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest
from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs
from tests.support.fleet import BEAT_MS, LEASE_MS, fleet
from tests.support.waiting import passes, wait_until

SLEEP_MS = 3_000
QUEUES = 50
# A process of a shared machine that is asked to run, and the file that notes it.
MARGIN_S = 1.8


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_jobs_of_a_killed_worker_start_again_within_lease_and_beat(url: str, raw: Redis, *, busy: bool) -> None:
    """SIGKILL with 20 running jobs: another worker, idle or with a queue that never empties, finishes all of them.

    Report 19 (python-arq/arq#343). Report 22 (tobymao/saq#127). Report 39 (rq/rq#2015). Report 40 (celery/celery#1628).
    Report 44 (sidekiq/sidekiq#5540).
    """
    async with connect(url) as connector:
        jobs = Jobs(connector)
        with fleet(url) as workers:
            # Ready before the jobs begin, and frozen meanwhile: to start may take as long as they do.
            heir = workers.start("--queue", "jobs", concurrency=50)
            await heir.saw("worker started")
            heir.send(signal.SIGSTOP)
            doomed = workers.start("--queue", "jobs")
            ids = {one.id for one in await jobs.enqueue_many("jobs", [{"sleep_ms": SLEEP_MS}] * 20)}
            await wait_until(lambda: workers.started() == ids, "the first worker runs all 20")
            heir.send(signal.SIGCONT)
            feeder = asyncio.create_task(_feed(jobs, busy=busy))
            try:
                assert not workers.ended() & ids, "all 20 are in the middle"
                doomed.kill()
                killed_at = time.time()
                await wait_until(lambda: ids <= workers.ended(), "the other worker has finished all 20")
            finally:
                feeder.cancel()
                await asyncio.wait({feeder})
            again = [note for note in workers.notes("start") if note.id in ids and note.pid == heir.pid]

    assert {note.id for note in again} == ids
    assert len(again) == 20
    assert max(note.at for note in again) < killed_at + (LEASE_MS + BEAT_MS) / 1000 + MARGIN_S
    assert all(note.attempts == 2 for note in again)
    assert await raw.zcard("emq:{jobs}:dead") == 0


async def test_jobs_of_fifty_queues_of_a_killed_worker_start_again_within_lease_and_beat(url: str) -> None:
    """SIGKILL of a process with a running job in each of fifty queues: another one of the same queues starts all of
    them in time.
    """
    ids = set[str]()
    async with connect(url) as connector:
        with fleet(url) as workers:
            heir = workers.start(many=QUEUES)
            await heir.saw("worker started")
            heir.send(signal.SIGSTOP)
            doomed = workers.start(many=QUEUES)
            for number in range(QUEUES):
                ids.add((await Jobs(connector).enqueue(f"many-{number}", {"sleep_ms": SLEEP_MS})).id)
            await wait_until(lambda: workers.started() == ids, "the first worker runs all of them")
            heir.send(signal.SIGCONT)
            doomed.kill()
            killed_at = time.time()

            def again() -> dict[str, float]:
                return {note.id: note.at for note in workers.notes("start") if note.pid == heir.pid}

            await wait_until(lambda: again().keys() == ids, "the other worker runs all of them")
            started_at = again()

    assert max(started_at.values()) < killed_at + (LEASE_MS + BEAT_MS) / 1000 + MARGIN_S


async def _feed(jobs: Jobs, *, busy: bool) -> None:
    while busy:
        await jobs.enqueue_many("jobs", [{"sleep_ms": 20}] * 200)
        await passes(50, "the queue is fed, never empty")
