"""A worker that dies when its job has run for several leases already: crash recovery is not bound to the run time."""

from __future__ import annotations

import asyncio
import time

from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs
from tests.support.fleet import fleet
from tests.support.waiting import passes_until, wait_until

BEAT_MS = 100
LEASE_MS = 2_000
# A process of a shared machine that is asked to run, and the file that notes it.
MARGIN_S = 1.2


async def test_a_crash_in_the_fourth_lease_is_noticed_within_one(url: str, raw: Redis) -> None:
    """SIGKILL at 3.5 leases of a handler that takes many: until then nobody else starts the job, though a worker beside
    it is idle; then that one has it within a lease and a beat. Both have the same node id, as a container has that is
    made anew under its old name: nothing of recovery goes by names. The lease is the one of the environment.

    Report 21 (riverqueue/river#682). Report 32 (oban-bg/oban#862). Report 36 (hibiken/asynq#1030).
    """
    with fleet(url, beat_ms=BEAT_MS, lease_ms=LEASE_MS, node_id=7) as workers:
        processes = [workers.start("--queue", "jobs") for _ in range(2)]
        await asyncio.gather(*(process.saw("worker started") for process in processes))
        async with connect(url) as connector:
            id = (await Jobs(connector).enqueue("jobs", {"sleep_ms": 60_000})).id
        await wait_until(workers.started, "it runs")
        (first,) = workers.notes("start")
        doomed, heir = sorted(processes, key=lambda process: process.pid != first.pid)
        await passes_until(first.at + 3.5 * LEASE_MS / 1000, "several leases are over")
        assert len(workers.notes("start")) == 1
        doomed.kill()
        killed_at = time.time()
        await wait_until(lambda: len(workers.notes("start")) == 2, "the other one has it")
        again = workers.notes("start")[1]

    assert (again.id, again.pid, again.attempts) == (id, heir.pid, 2)
    assert again.at < killed_at + (LEASE_MS + BEAT_MS) / 1000 + MARGIN_S
    assert await raw.zcard("emq:{jobs}:dead") == 0
