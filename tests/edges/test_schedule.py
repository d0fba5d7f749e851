"""Scheduled jobs as a user meets them: on time by the server's clock, refused or admitted as the seed has it.

Source: the seed "Scheduling & recurrence" (guards and outcomes of enqueue_at and enqueue_in, the ghost that promote
makes a row for).
"""

from __future__ import annotations

import time

import pytest
from redis.asyncio import Redis

from echomq_worker.clock import SystemClock
from echomq_worker.connector import connect
from echomq_worker.errors import InvalidArgument, InvalidId, KindRefused
from echomq_worker.identity import Mint
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs, New
from echomq_worker.worker import Worker
from tests.support.keyspace import keyspace_of
from tests.support.running import running
from tests.support.waiting import passes, wait_until

HOUR_MS = 3_600_000
DELAY_MS = 2_000
BEAT_MS = 500
# A process of a shared machine that is asked to run.
MARGIN_MS = 2_000
GHOST = "JOB00000000042"


class WrongClock(SystemClock):
    """A host whose wall clock is `off_ms` from the server's; a test may step it."""

    def __init__(self, off_ms: int) -> None:
        self.off_ms = off_ms

    def now_ms(self) -> int:
        """The wrong time."""
        return super().now_ms() + self.off_ms


async def _server_ms(raw: Redis) -> int:
    seconds, micros = await raw.time()
    return int(seconds) * 1000 + int(micros) // 1000


@pytest.mark.parametrize("consumers", [1, 2], ids=["standalone", "pooled"])
@pytest.mark.parametrize("off_ms", [-HOUR_MS, HOUR_MS], ids=["hour-behind", "hour-ahead"])
async def test_a_delayed_job_runs_on_the_servers_clock(url: str, raw: Redis, off_ms: int, consumers: int) -> None:
    """enqueue_in 2,000 ms: nothing can claim it before, it runs within one beat after, though the clocks of producer
    and worker are an hour off. No Pump helps.

    Report 24 (tobymao/saq#277).
    """
    clock = WrongClock(off_ms)
    worker = Worker(clock=clock)
    began: list[int] = []

    @worker.handler("a", consumers=consumers)
    async def handle() -> None:
        began.append(await _server_ms(raw))

    async with connect(url, clock=clock) as connector:
        jobs = Jobs(connector, mint=Mint(clock))
        async with running(worker, url, options={"pump": False}, beat_ms=BEAT_MS, lease_ms=2 * BEAT_MS):
            before = await _server_ms(raw)
            await jobs.enqueue_in("a", b"x", DELAY_MS)
            after = await _server_ms(raw)
            early: list[int] = []
            while await _server_ms(raw) < before + DELAY_MS - 100:
                # Should this machine stand still until the job is due, the claim gives it back soon.
                claimed, promoted = await jobs.claim("a", 200), await jobs.promote("a")
                if await _server_ms(raw) < before + DELAY_MS:
                    early.append(promoted if claimed is None else -1)
                await passes(20, "the server's time goes on")
            assert len(early) > 5
            assert set(early) == {0}, "neither claim nor promote found it before its time"
            await wait_until(lambda: began, "the job runs")

    assert len(began) == 1
    assert before + DELAY_MS <= began[0] <= after + DELAY_MS + BEAT_MS + MARGIN_MS


async def test_a_step_of_the_host_clock_while_parked_is_no_event(url: str, raw: Redis) -> None:
    """The wall clock steps an hour ahead and back while the worker is parked: jobs run on, and nothing spins.

    Report 77 (sidekiq/sidekiq#796).
    """
    clock = WrongClock(0)
    worker = Worker(clock=clock)
    seen: list[bytes] = []

    @worker.handler("a")
    async def handle(payload: bytes) -> None:
        seen.append(payload)

    async with connect(url) as connector, running(worker, url) as run:
        jobs = Jobs(connector)
        await jobs.enqueue("a", b"before")
        await wait_until(lambda: seen, "the first job has run")
        for number, off_ms in enumerate((HOUR_MS, -HOUR_MS, 0), 2):
            clock.off_ms = off_ms
            calls = (await raw.info("commandstats"))["cmdstat_evalsha"]["calls"]
            started = time.monotonic()
            # A beat of 100 ms and a tick of 50 ms: a second holds ten and twenty of them.
            await passes(1_000, "beats and ticks are counted")
            spent = (await raw.info("commandstats"))["cmdstat_evalsha"]["calls"] - calls
            assert spent < 150 * (time.monotonic() - started)
            await jobs.enqueue("a", b"after")

            def ran(number: int = number) -> bool:
                return len(seen) == number

            await wait_until(ran, "the next job has run")
        assert not run.task.done()


async def test_what_the_seed_refuses_writes_nothing(url: str, raw: Redis) -> None:
    """A negative delay, an id of a foreign namespace, one of 13 bytes: each its own refusal, the keyspace as it was."""
    async with connect(url) as connector:
        jobs = Jobs(connector)
        await jobs.enqueue("a", b"there already")
        before = await keyspace_of(raw)
        with pytest.raises(InvalidArgument, match="delay_ms"):
            await jobs.enqueue_in("a", b"x", -1)
        with pytest.raises(InvalidArgument, match="in_ms"):
            await jobs.enqueue_many("a", [b"good", New(b"x", in_ms=-1)])
        for id in ("USR0KHTOWnGLuC", "GRP00000000001"):
            with pytest.raises(KindRefused, match="job id must be JOB-namespaced"):
                await jobs.enqueue_in("a", b"x", 0, id=id)
            with pytest.raises(KindRefused, match="job id must be JOB-namespaced"):
                await jobs.enqueue_at("a", b"x", 0, id=id)
            with pytest.raises(KindRefused, match="job id must be JOB-namespaced"):
                await jobs.enqueue("a", b"x", id=id)
        for verb in (jobs.enqueue("a", b"x", id="JOB0000000001"), jobs.enqueue_in("a", b"x", 0, id="JOB0000000001")):
            with pytest.raises(InvalidId):
                await verb
        with pytest.raises(InvalidId):
            await jobs.enqueue_at("a", b"x", 0, id="JOB0000000001")

        assert await keyspace_of(raw) == before


async def test_what_the_seed_admits_is_admitted(url: str, raw: Redis) -> None:
    """A negative run-at is due at once and runs; a ghost on the schedule gets a row from promote, and the worker
    retires it without a call of the handler.

    Report 81 (Bogdanp/dramatiq#375). Report 85 (taskforcesh/bullmq#419).
    """
    worker = Worker()
    seen: list[str] = []

    @worker.handler("a")
    async def handle(job: Job) -> None:
        seen.append(job.id)

    async with connect(url) as connector:
        jobs = Jobs(connector)
        id = (await jobs.enqueue_at("a", b"x", -1)).id
        assert await raw.zscore("emq:{a}:schedule", id) == -1
        await raw.zadd("emq:{a}:schedule", {GHOST: 0})
        assert await jobs.promote("a") == 2
        assert await raw.hgetall(f"emq:{{a}}:job:{GHOST}") == {b"state": b"pending"}
        async with running(worker, url):
            await wait_until(lambda: seen, "the job with a negative run-at has run")
            await wait_until(lambda: raw.zcard("emq:{a}:dead"), "the ghost is retired")

    assert seen == [id]
    assert b"payload" in (await raw.hget(f"emq:{{a}}:job:{GHOST}", "last_error") or b"")
