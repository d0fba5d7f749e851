"""A handler that runs for longer than its lease, on a worker that is well: it is started once.

Source: promise "a handler whose worker is healthy is not started a second time", design section 3 (Leases).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs
from tests.support.fleet import Fleet, fleet
from tests.support.valkey import ValkeyServer
from tests.support.waiting import passes, wait_until

# The keeper gives its connection up after a quarter of it, which has to be more than a server may stand still for.
LEASE_MS = 3_000
BEAT_MS = 100
ASYNC = ("jobs", {"sleep_ms": 4 * LEASE_MS})
PLAIN = ("plain", {"sleep_ms": 4 * LEASE_MS})
BLOCKS = ("jobs", {"block_ms": 3 * LEASE_MS})


@asynccontextmanager
async def _two_workers(url: str, *jobs: tuple[str, dict[str, int]]) -> AsyncIterator[tuple[Fleet, set[str]]]:
    """Two worker processes, either of which is idle when the other has the jobs; these run when the block begins."""
    with fleet(url, lease_ms=LEASE_MS, beat_ms=BEAT_MS) as workers:
        processes = [workers.start("--queue", "jobs", "--queue", "plain") for _ in range(2)]
        await asyncio.gather(*(process.saw("worker started") for process in processes))
        async with connect(url) as connector:
            ids = {(await Jobs(connector).enqueue(queue, payload)).id for queue, payload in jobs}
        await wait_until(lambda: workers.started() == ids, "the jobs run")
        yield workers, ids


async def _each_ran_once(workers: Fleet, raw: Redis, ids: set[str]) -> None:
    async def completed() -> bool:
        counts = [await raw.hget(f"emq:{{{queue}}}:metrics:completed", "count") for queue in ("jobs", "plain")]
        return sum(int(count or 0) for count in counts) == len(ids)

    await wait_until(completed, "every job is completed")
    await passes(3 * BEAT_MS, "whoever would start one again has its chance")
    starts = workers.notes("start")
    assert {note.id for note in starts} == ids
    assert [note.attempts for note in starts] == [1] * len(ids)
    assert all(worker.alive for worker in workers.workers)
    assert await completed()


@pytest.mark.parametrize("jobs", [(ASYNC, PLAIN), (BLOCKS,)], ids=["async-and-plain", "blocks-the-loop"])
async def test_a_handler_of_several_leases_beside_an_idle_worker_runs_once(
    url: str, raw: Redis, jobs: tuple[tuple[str, dict[str, int]], ...]
) -> None:
    """Four leases of an async handler and of a plain function, or three in which an async handler blocks the event
    loop, with a second worker that has nothing to do: one run, attempts 1, and no word of a lost lease. Who blocks the
    loop is warned about once, with the handler, the job, the line and how long.

    Report 20 (python-arq/arq#407). Report 21 (riverqueue/river#682). Report 28 (Bogdanp/dramatiq#692).
    Report 29 (taskforcesh/bullmq#3183). Report 31 (oban-bg/oban#1141). Report 108 (python-arq/arq#408).
    """
    async with _two_workers(url, *jobs) as (workers, ids):
        await wait_until(lambda: workers.ended() == ids, "the jobs have ended")
        await _each_ran_once(workers, raw, ids)
        assert not [line for worker in workers.workers for line in worker.lines("lease lost|refused|degraded")]
        warnings = [record for worker in workers.workers for record in worker.records() if record["level"] == "warning"]
    if jobs != (BLOCKS,):
        assert warnings == []
        return
    (said,) = warnings
    assert (said["event"], said["queue"], said["id"]) == ("event loop blocked", "jobs", *ids)
    assert said["handler"].endswith("run")
    assert re.fullmatch(r"app\.py:\d+ in run > waiting\.py:\d+ in works_plainly_for", said["where"])
    # Time for which the whole process stands still is not the handler's.
    assert 0.5 * BLOCKS[1]["block_ms"] < said["blocked_ms"] < 1.3 * BLOCKS[1]["block_ms"] + 3_000


async def test_lost_connections_do_not_cut_a_handler_short(server: ValkeyServer, url: str, raw: Redis) -> None:
    """Every connection is killed again and again while handlers of four leases run, beside an idle worker: one
    run each, and their ends are settled.

    Report 4 (taskiq-python/taskiq-redis#65).
    """
    async with _two_workers(url, ASYNC, PLAIN) as (workers, ids):
        kills = 0
        while workers.ended() != ids:
            kills += int(server.admin.client_kill_filter(_type="normal"))
            await passes(400, "they connect again before the next loss")
        await _each_ran_once(workers, raw, ids)

    # Of the some three connections of each worker, about fifteen times: some had not been made again.
    assert kills > 20
