"""A reply that is lost on the wire: a claim's jobs are found again by their receipt, a verdict counts once.

Source: protocol section 4 (receipts, "Sent twice"). The proxy lets the server carry the command out and loses the
answer; then the connection is reset, or hangs until the command's time is up.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from echomq_worker.connector import Connector, connect
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs, New
from echomq_worker.script import scripts
from echomq_worker.verdict import Delay
from echomq_worker.worker import Worker
from tests.support.keyspace import keyspace_of
from tests.support.proxy import Proxy, Then
from tests.support.running import running
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until, works_for

THEN = pytest.mark.parametrize("then", ["reset", "hang"])
GROUP = "GRP00000000001"
# Nothing in these tests may wait for it.
LEASE_MS = 40_000
COMMAND_TIMEOUT_MS = 300


@asynccontextmanager
async def _proxied(server: ValkeyServer, connector: Connector, script: str) -> AsyncIterator[tuple[Proxy, bytes]]:
    """A proxy, and the bytes by which calls of `script` are told; the server knows its text already."""
    await connector.call("SCRIPT", "LOAD", scripts()[script].source)
    async with Proxy(server.port) as proxy:
        yield proxy, scripts()[script].sha.encode()


@THEN
@pytest.mark.parametrize("consumers", [1, 3], ids=["standalone", "pooled"])
@pytest.mark.parametrize("losses", [1, 3])
async def test_jobs_of_a_claim_whose_reply_was_lost_run_after_the_reconnect(
    server: ValkeyServer, url: str, raw: Redis, then: Then, consumers: int, losses: int
) -> None:
    """Flat and grouped jobs were claimed, nobody heard of it, once or three times in a row: all run once, attempts 1,
    long before their lease is over. None of them counts as crashed.

    Report 38 (rq/rq#2061).
    """
    worker = Worker()
    ran: list[tuple[str, int]] = []
    looked = asyncio.Event()

    @worker.handler("a", concurrency=30, consumers=consumers)
    async def handle(job: Job) -> None:
        ran.append((job.id, job.attempts))
        await looked.wait()

    async with connect(url) as connector, _proxied(server, connector, "claim_many") as (proxy, sha):
        items = [New(b"x", group=GROUP if number % 3 == 0 else None) for number in range(20)]
        ids = [one.id for one in await Jobs(connector).enqueue_many("a", items)]
        lost = [proxy.swallow_reply(sha, then=then) for _ in range(losses)]
        started = time.monotonic()
        async with running(worker, proxy.url, lease_ms=LEASE_MS, command_timeout_ms=COMMAND_TIMEOUT_MS) as run:
            await wait_until(lambda: len(ran) == 20, "all 20 run")
            took_s = time.monotonic() - started
            # The consumers of a pool share a connection: a reset loses the replies of all at once.
            assert sum(loss.done for loss in lost) >= (losses if consumers == 1 else 1)
            crashes = [await raw.hexists(f"emq:{{a}}:job:{id}", "crashes") for id in ids]
            looked.set()
            await wait_until(lambda: raw.hget("emq:{a}:metrics:completed", "count"), "completions are counted")
        left = await keyspace_of(raw)

    assert Counter(ran) == Counter((id, 1) for id in ids)
    assert took_s < LEASE_MS / 1000 / 2
    assert run.report.completed == 20
    assert not any(crashes)
    assert left["emq:{a}:metrics:completed"] == {"count": "20"}
    assert not {"emq:{a}:active", "emq:{a}:gactive", "emq:{a}:dead"} & left.keys()


async def test_a_stop_finds_the_jobs_of_a_lost_claim(server: ValkeyServer, url: str, raw: Redis) -> None:
    """The worker stops before it has heard what it claimed: the jobs are back in pending, as if never claimed."""
    worker = Worker()

    @worker.handler("a")
    async def handle(job: Job) -> None:
        raise AssertionError(f"{job.id} may not start")

    async with connect(url) as connector, _proxied(server, connector, "claim_many") as (proxy, sha):
        await Jobs(connector).enqueue_many("a", [b"x"] * 5)
        lost = proxy.swallow_reply(sha)
        # The beat, and so the sleep after the loss, is longer than the test.
        async with running(worker, proxy.url, lease_ms=LEASE_MS, beat_ms=10_000) as run:
            await wait_until(lambda: lost.done, "the reply is lost")
            assert await raw.zcard("emq:{a}:active") == 5
            run.task.get_loop().call_soon(worker.stop)
        assert await raw.zcard("emq:{a}:pending") == 5
        assert not await raw.exists("emq:{a}:active")

    assert run.report.released == 5


@THEN
async def test_verdicts_whose_reply_was_lost_count_once(server: ValkeyServer, url: str, raw: Redis, then: Then) -> None:
    """The reply to a settle is lost three times in a row: what was completed is counted once, a failure is one failure,
    a death one death, a delay one delay; the slots of the lane are given back once.
    """
    worker = Worker()
    runs: Counter[str] = Counter()

    @worker.handler("a", concurrency=40, max_attempts=2, retry=3_600_000)
    async def handle(job: Job, payload: str) -> None:
        runs[payload] += 1
        await works_for(200)
        match payload:
            case "fails":
                raise ValueError("once")
            case "dies":
                raise ValueError("for the last time")
            case "waits":
                raise Delay(3_600_000)

    async with connect(url) as connector, _proxied(server, connector, "settle") as (proxy, sha):
        await raw.hset("emq:{a}:glimit", GROUP, "20")
        kinds, jobs = ["done", "fails", "dies", "waits"], Jobs(connector)
        receipts = await jobs.enqueue_many("a", [New(kind, group=GROUP) for kind in kinds for _ in range(3)])
        ids = {kind: [one.id for one in receipts[3 * at : 3 * at + 3]] for at, kind in enumerate(kinds)}
        for id in ids["dies"]:
            await raw.hset(f"emq:{{a}}:job:{id}", "failures", "1")
        lost = [proxy.swallow_reply(sha, then=then) for _ in range(3)]
        async with running(worker, proxy.url, lease_ms=LEASE_MS, command_timeout_ms=COMMAND_TIMEOUT_MS) as run:
            await wait_until(lambda: all(loss.done for loss in lost), "three replies were lost")
            await wait_until(lambda: proxy.count(sha) > 3, "the verdicts are sent once more")
            # A worker that stood still for its verdicts goes on.
            await jobs.enqueue("a", "after")
            await wait_until(lambda: runs["after"], "the next job runs")
        left = await keyspace_of(raw)

    assert runs == dict.fromkeys(kinds, 3) | {"after": 1}
    assert left["emq:{a}:metrics:completed"] == {"count": "4"}
    assert left["emq:{a}:metrics:failed"] == {"count": "3"}
    assert set(left["emq:{a}:dead"]) == set(ids["dies"])
    assert set(left["emq:{a}:schedule"]) == {*ids["fails"], *ids["waits"]}
    assert not {"emq:{a}:active", "emq:{a}:gactive"} & left.keys()
    rows = {id: await _failures(raw, id) for kind in kinds for id in ids[kind]}
    assert {kind: {rows[id] for id in ids[kind]} for kind in kinds} == {
        "done": {None},
        "fails": {b"1"},
        "dies": {b"2"},
        "waits": {None},
    }
    assert (run.report.completed, run.report.retried, run.report.dead) == (4, 3, 3)
    assert run.report.counts["delayed"] == 3


async def _failures(raw: Redis, id: str) -> bytes | str | None:
    return (await raw.hmget(f"emq:{{a}}:job:{id}", ["failures"]))[0]
