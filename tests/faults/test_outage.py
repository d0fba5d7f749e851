"""The server goes and comes back: the same process goes on by itself, says so in two lines, and loses nothing.

Source: design section 3 (Degraded beat, Settle), promise 1.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from functools import partial

import pytest
from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs, New
from echomq_worker.worker import Worker
from tests.support.fleet import BEAT_MS, Fleet, fleet
from tests.support.keyspace import keyspace_of
from tests.support.process import WorkerProcess
from tests.support.proxy import Proxy
from tests.support.running import quick, running
from tests.support.valkey import OwnServer, ValkeyServer, raw_client
from tests.support.waiting import passes, wait_until

GROUP = "GRP00000000001"
GRACE_MS = 20_000


async def _outage(server: ValkeyServer, how: str, seconds: float) -> None:
    if how == "freeze":
        server.pause()
        await passes(seconds * 1000, "an outage lasts")
        server.resume()
        return
    end = server.stop if how == "stop" else server.kill
    end()
    await passes(seconds * 1000, "an outage lasts")
    server.start()


async def _backlog(url: str, workers: Fleet) -> list[str]:
    """Ten jobs that end while the server is away, ten that end afterwards, more that wait or become due meanwhile."""
    async with connect(url) as connector:
        jobs = Jobs(connector)
        items = [New({"sleep_ms": 1_000 if number < 10 else 7_000}, group=_lane(number)) for number in range(20)]
        ids = [one.id for one in await jobs.enqueue_many("jobs", items)]
        await wait_until(lambda: workers.started() == set(ids), "20 jobs run")
        items = [New({}, group=_lane(number)) for number in range(100)]
        items += [New({}, in_ms=2_000) for _ in range(20)]
        return ids + [one.id for one in await jobs.enqueue_many("jobs", items)]


def _lane(number: int) -> str | None:
    return GROUP if number % 2 else None


@pytest.mark.parametrize(
    ("how", "seconds", "lease_ms"), [("stop", 5, 3_000), ("kill", 2, 30_000), ("freeze", 5, 30_000)]
)
async def test_the_worker_goes_on_by_itself_when_the_server_is_back(
    own_server: OwnServer, how: str, seconds: float, lease_ms: int
) -> None:
    """Stopped for 5 s and started again with its append-only file, also when leases have run out by then; killed;
    frozen: the process is the same, one line for the start and one for the end, every job runs once and is counted,
    those that ran or ended meanwhile included.

    Report 2 (python-arq/arq#498). Report 4 (taskiq-python/taskiq-redis#65). Report 13 (Bogdanp/dramatiq#34).
    Report 45 (Bogdanp/dramatiq#527). Report 100 (celery/celery#4079).
    """
    server = own_server(append_only=True)
    with fleet(server.url, lease_ms=lease_ms, command_timeout_ms=1_500) as workers:
        worker = workers.start("--queue", "jobs", concurrency=20)
        await worker.saw("worker started")
        ids = await _backlog(server.url, workers)
        await _outage(server, how, seconds)

        async with raw_client(server.url) as raw:

            async def completed() -> bool:
                return await raw.hget("emq:{jobs}:metrics:completed", "count") == str(len(ids)).encode()

            await wait_until(completed, "all jobs are completed")
            await worker.saw('"recovered"')
            left = await keyspace_of(raw)
        starts = Counter((note.id, note.attempts, note.pid) for note in workers.notes("start"))
        assert worker.alive

    assert starts == Counter((id, 1, worker.pid) for id in ids)
    assert not [key for key in left if ":job:" in key or key.endswith((":pending", ":active", ":schedule", ":gactive"))]
    troubles = [record["event"] for record in worker.records() if record["event"] not in _EVERYDAY]
    assert troubles == ["degraded", "recovered"]
    (recovered,) = worker.records("recovered")
    # A frozen server is noticed when the first command is overdue.
    assert seconds * 1000 - 3_000 < recovered["downtime_ms"] < seconds * 1000 + 15_000


_EVERYDAY = {"settings", "worker started", "job completed"}


@pytest.mark.parametrize("queue", ["jobs", "pool"], ids=["standalone", "pooled"])
async def test_a_worker_without_a_server_still_stops(own_server: OwnServer, queue: str) -> None:
    """SIGTERM while the server is away and nothing is in hand: exit 0 soon, with no grace and no last words.

    Report 58 (taskforcesh/bullmq#1975).
    """
    server = own_server()
    with fleet(server.url, grace_ms=GRACE_MS) as workers:
        worker = workers.start("--queue", queue, "--queue", "other")
        await _run_one(server, workers, worker, queue)
        server.stop()
        await worker.saw('"degraded"')
        await passes(4 * BEAT_MS, "claims are tried in vain")
        asked = time.monotonic()
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
        assert time.monotonic() - asked < GRACE_MS / 1000 / 2
        assert not worker.records("jobs left")


async def _run_one(server: ValkeyServer, workers: Fleet, worker: WorkerProcess, queue: str) -> None:
    await worker.saw("worker started")
    async with connect(server.url) as connector:
        id = (await Jobs(connector).enqueue(queue, {})).id
    await wait_until(lambda: id in workers.ended(), "a job runs")
    await worker.saw("job completed")


async def test_a_verdict_that_nobody_takes_is_named_at_the_end(own_server: OwnServer) -> None:
    """SIGTERM while the server is away and an ended job's verdict is still here: exit 0 when grace and last words are
    over, with the job's id in the log; its lease runs out and it runs again.

    Report 56 (oban-bg/oban#1076).
    """
    server = own_server(append_only=True)
    with fleet(server.url, grace_ms=500, lease_ms=3_000) as workers:
        worker = workers.start("--queue", "jobs")
        await worker.saw("worker started")
        async with connect(server.url) as connector:
            id = (await Jobs(connector).enqueue("jobs", {"sleep_ms": 1_500})).id
        await wait_until(workers.started, "it runs")
        # It does not end while the server takes its time to go.
        worker.send(signal.SIGSTOP)
        server.stop()
        worker.send(signal.SIGCONT)
        await wait_until(workers.ended, "it has ended without a server")
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
        assert worker.records("jobs left")[0]["ids"] == [id]
        server.start()
        workers.start("--queue", "jobs")
        await wait_until(lambda: len(workers.notes("end")) == 2, "it runs again")
        assert [note.attempts for note in workers.notes("start")] == [1, 2]


@pytest.mark.parametrize("consumers", [1, 2], ids=["standalone", "pooled"])
async def test_error_replies_of_a_failover_end_no_loop(server: ValkeyServer, url: str, consumers: int) -> None:
    """The blocked command, then a script, is answered with the errors of a failover, each in turn: the next job runs
    all the same.

    Report 8 (taskforcesh/bullmq#648).
    """
    worker = Worker()
    ran: set[str] = set()

    @worker.handler("a", consumers=consumers)
    async def handle(job: Job) -> None:
        ran.add(job.id)

    lines = [
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        "READONLY You can't write against a read only replica.",
        "LOADING Valkey is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "CLUSTERDOWN The cluster is down",
    ]
    async with connect(url) as connector, Proxy(server.port) as proxy, running(worker, proxy.url, beat_ms=50):
        for pattern in (b"BLPOP", b"EVALSHA"):
            for line in lines:
                rule = proxy.answer(line, pattern)

                await wait_until(partial(getattr, rule, "done"), f"{line.split()[0]} is the answer")
                id = (await Jobs(connector).enqueue("a", b"x")).id
                await wait_until(partial(ran.__contains__, id), "the next job runs")

    assert len(ran) == 2 * len(lines)


async def test_a_script_that_fails_once_is_an_outage_and_one_that_keeps_failing_ends_the_run(
    url: str, raw: Redis
) -> None:
    """A key of a foreign type under one of ours: as long as it stands a few beats fail and the worker heals; for good,
    the run ends with the server's error rather than live and do nothing.

    Report 14 (Bogdanp/dramatiq#258).
    """
    worker = Worker()
    ran = asyncio.Event()

    @worker.handler("a")
    async def handle() -> None:
        ran.set()

    async with connect(url) as connector, running(worker, url, beat_ms=20):
        await raw.set("emq:{a}:active", "not a set")
        await wait_until(lambda: worker.readiness().degraded, "beats fail")
        await raw.delete("emq:{a}:active")
        await Jobs(connector).enqueue("a", b"x")
        await asyncio.wait_for(ran.wait(), 20)

    await raw.set("emq:{a}:active", "not a set")
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(worker.run(quick(url, beat_ms=2), signals=False), 20)
    assert "WRONGTYPE" in repr(caught.value.exceptions)
    await raw.delete("emq:{a}:active")
