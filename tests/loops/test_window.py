"""Window: nothing is claimed until it is worth a call, or the first has waited long enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.consumer import Consumer
from echomq_worker.job import Job
from echomq_worker.options import Limits
from echomq_worker.recovery import Swept
from echomq_worker.verdict import Reject
from echomq_worker.window import BatchConsumer, Window
from tests.support.clock import ManualClock
from tests.support.plain import GROUP, Queue, job, row
from tests.support.proxy import Proxy
from tests.support.stations import BEAT_MS, Stand, expired, parked, pending, stand
from tests.support.valkey import ValkeyServer
from tests.support.waiting import passes, wait_until

WINDOW_MS = 2_000


class Calls:
    """A batch handler that notes its calls, and waits while the gate is shut."""

    def __init__(self, *, shut: bool = False) -> None:
        self.gate = asyncio.Event()
        self.ids: list[list[str]] = []
        if not shut:
            self.gate.set()

    async def handler(self, jobs: list[Job]) -> dict[str, Any]:
        """What is registered."""
        self.ids.append([job.id for job in jobs])
        await self.gate.wait()
        return {job.id: Reject("never") if job.payload == b"bad" else None for job in jobs}


@asynccontextmanager
async def window(url: str, calls: Calls, *, min_size: int = 3, **options: Any) -> AsyncIterator[Stand]:
    """A station of a batch handler with room for ten."""
    async with stand(url, calls.handler, batch={"min_size": min_size, "timeout_ms": WINDOW_MS}, **options) as made:
        assert all(isinstance(one, BatchConsumer) for one in made.station.consumers)
        yield made


def is_open_of(consumer: Consumer) -> bool:
    """Whether a consumer has seen something and waits for more."""
    assert isinstance(consumer, BatchConsumer)
    return consumer._window.left_ms(0) is not None


def is_open(made: Stand) -> bool:
    """Whether the first consumer has."""
    return is_open_of(made.consumer)


def test_when_a_window_is_over() -> None:
    """Enough is ready, or the first was seen so long ago; without any it begins anew."""
    made = Window(min_size=3, window_ms=100)
    made.see(0, 0)
    assert (made.is_over, made.left_ms(0)) == (False, None)
    made.see(2, 10)
    assert (made.is_over, made.left_ms(60)) == (False, 50)
    made.see(1, 109)
    assert not made.is_over
    made.see(1, 110)
    assert (made.is_over, made.left_ms(120)) == (True, 0)
    made.see(0, 111)
    made.see(2, 200)
    assert (made.is_over, made.left_ms(200)) == (False, 100)
    made.see(3, 201)
    assert made.is_over
    made.begin_anew()
    assert (made.is_over, made.left_ms(201)) == (False, None)


async def test_nothing_is_claimed_before_enough_is_ready(url: str, raw: Redis) -> None:
    """The jobs stay in pending, without a lease, for whoever wants them; then one call for all that is ready."""
    clock, calls = ManualClock(), Calls()
    async with window(url, calls, clock=clock) as made:
        ids = await pending(raw, range(2))
        for _ in range(5):
            beat = await made.consumer.beat()
            assert (beat.claimed, beat.looked) == (None, True)
            clock.advance(WINDOW_MS // 10)
        assert not await raw.exists("emq:{q}:active")
        ids += await pending(raw, range(2, 5))
        beat = await made.consumer.beat()
        assert beat.claimed is not None
        await wait_until(lambda: made.counts.get("done") == 5, "all are done")
    assert calls.ids == [ids]


async def test_the_first_job_waits_no_longer_than_the_window(url: str, raw: Redis) -> None:
    """Then what is there is a batch; the next one waits anew."""
    clock, calls = ManualClock(), Calls()
    async with window(url, calls, clock=clock) as made:
        ids = await pending(raw, range(1))
        await made.consumer.beat()
        clock.advance(WINDOW_MS - 1)
        assert (await made.consumer.beat()).claimed is None
        clock.advance(1)
        assert (await made.consumer.beat()).claimed is not None
        await wait_until(lambda: made.counts.get("done") == 1, "it is done")
        await pending(raw, range(1, 2))
        assert (await made.consumer.beat()).claimed is None
    assert calls.ids == [ids]


@pytest.mark.parametrize("most", [10, 60])
async def test_a_batch_is_at_most_what_fits(url: str, raw: Redis, most: int) -> None:
    """One at a time, all of it by one claim: the rest is claimed when it has ended."""
    calls, half = Calls(shut=True), most // 2
    ids = await pending(raw, range(2 * most + half))
    async with window(url, calls, concurrency=most) as made:
        assert (await made.consumer.beat()).claimed is not None
        beat = await made.consumer.beat()
        assert (beat.claimed, beat.looked) == (None, False)
        calls.gate.set()
        for size in (most, half):
            await wait_until(lambda: made.station.idle, "the batch has ended")
            claimed = (await made.consumer.beat()).claimed
            assert claimed is not None
            assert len(claimed.jobs) == size
        await wait_until(lambda: made.counts.get("done") == len(ids), "all are done")
    assert calls.ids == [ids[:most], ids[most : 2 * most], ids[2 * most :]]


async def test_several_consumers_share_the_room(url: str, raw: Redis) -> None:
    """Each with a batch of its own."""
    calls = Calls(shut=True)
    await pending(raw, range(12))
    async with window(url, calls, consumers=2, concurrency=9) as made:
        for consumer in made.station.consumers:
            assert (await consumer.beat()).claimed is not None
        await wait_until(lambda: len(calls.ids) == 2, "both run")
        calls.gate.set()
        await wait_until(lambda: made.counts.get("done") == 9, "they are done")
    assert sorted(map(len, calls.ids)) == [4, 5]


async def test_an_answer_becomes_a_verdict_for_each(url: str, raw: Redis) -> None:
    """Settled together, with what each came to."""
    calls = Calls()
    good, bad = await pending(raw, range(1)), await pending(raw, range(1, 2), payload="bad")
    async with window(url, calls, min_size=2) as made:
        await made.consumer.beat()
        await wait_until(lambda: made.station.idle, "it has ended")
        assert made.counts == {"done": 1, "dead": 1}
    assert calls.ids == [good + bad]
    assert await raw.zrange("emq:{q}:dead", 0, -1) == [bad[0].encode()]
    starts = made.lines.of("job started")
    assert [line["id"] for line in starts] == good + bad


async def test_recovery_goes_on_while_a_window_is_open(url: str, raw: Redis) -> None:
    """Expired leases and due jobs come back at each beat, and count as ready."""
    clock, calls = ManualClock(), Calls()
    await pending(raw, range(1))
    async with window(url, calls, clock=clock) as made:
        assert (await made.consumer.beat()).swept == Swept()
        back = await expired(raw, 7)
        await Queue(raw).put({"schedule": {job(8): 1}, f"job:{job(8)}": row("scheduled")})
        clock.advance(BEAT_MS)
        beat = await made.consumer.beat()
        assert (beat.swept, beat.claimed) == (Swept(1, 1), None)
        assert (await made.consumer.beat()).claimed is not None
        await wait_until(lambda: made.counts.get("done") == 3, "all are done")
    assert sorted(calls.ids[0]) == [job(0), back, job(8)]


async def test_what_cannot_be_claimed_does_not_count(url: str, raw: Redis) -> None:
    """A paused queue, a lane at its limit."""
    clock, calls = ManualClock(), Calls()
    lanes = {f"job:{job(n)}": row(group=GROUP) for n in range(5)} | {
        f"g:{GROUP}:pending": {job(n): 0 for n in range(5)}
    }
    await Queue(raw).put(lanes | {"ring": [GROUP], "glimit": {GROUP: "2"}})
    async with window(url, calls, clock=clock) as made:
        assert (await made.consumer.beat()).claimed is None, "two of three"
        await raw.hset("emq:{q}:meta", "paused", "1")
        clock.advance(WINDOW_MS)
        assert (await made.consumer.beat()).claimed is None, "paused"
        await raw.hdel("emq:{q}:meta", "paused")
        assert (await made.consumer.beat()).claimed is None, "the window begins anew"
        clock.advance(WINDOW_MS)
        claimed = (await made.consumer.beat()).claimed
        assert claimed is not None
        assert len(claimed.jobs) == 2


async def test_a_consumer_without_work_parks(url: str, raw: Redis) -> None:
    """It looks when a token comes, waits for the window by itself, and serves what came meanwhile."""
    calls = Calls()
    async with window(url, calls, min_size=2, beat_ms=60_000, limits=Limits(lease_ms=120_000)) as made:
        run = asyncio.create_task(made.consumer.run())
        await parked(raw)
        ids = await pending(raw, range(1))
        await raw.lpush("emq:{q}:ready", "1")
        await wait_until(lambda: is_open(made), "it has seen the first")
        assert calls.ids == []
        ids += await pending(raw, range(1, 2))
        await wait_until(lambda: made.counts.get("done") == 2, "both are done")
        await parked(raw)
        made.station.stop()
        await run
    assert calls.ids == [ids]


async def test_a_stop_ends_the_window(url: str, raw: Redis) -> None:
    """Nothing was claimed, so nothing is to be given back."""
    calls = Calls()
    await pending(raw, range(1))
    async with window(url, calls) as made:
        run = asyncio.create_task(made.consumer.run())
        await wait_until(lambda: is_open(made), "it has seen the first")
        made.station.stop()
        await asyncio.wait_for(run, 20)
    assert calls.ids == []
    assert await raw.zcard("emq:{q}:pending") == 1


@pytest.mark.parametrize("consumers", [1, 2])
async def test_a_stream_of_jobs_is_served_in_batches(url: str, raw: Redis, consumers: int) -> None:
    """Standalone or pooled, every job runs once."""
    calls = Calls()
    async with window(url, calls, consumers=consumers, concurrency=20, beat_ms=50) as made:
        runs = [asyncio.create_task(one.run()) for one in made.station.consumers]
        if made.station.metronome is not None:
            runs.append(asyncio.create_task(made.station.metronome.run()))
        for n in range(0, 60, 3):
            await pending(raw, range(n, n + 3))
            await raw.lpush("emq:{q}:ready", "1")
            await passes(5, "jobs come one after the other")
        await wait_until(lambda: made.counts.get("done") == 60, "all are done")
        made.station.stop()
        await asyncio.gather(*runs)
    assert sorted(id for ids in calls.ids for id in ids) == [job(n) for n in range(60)]


@pytest.mark.parametrize("consumers", [1, 2])
async def test_an_outage_is_survived(url: str, raw: Redis, server: ValkeyServer, consumers: int) -> None:
    """A look that fails is a degraded beat like any other; when the server is back the jobs are served."""
    calls = Calls()
    async with (
        Proxy(server.port) as proxy,
        window(proxy.url, calls, consumers=consumers, concurrency=20, beat_ms=20) as made,
    ):
        runs = [asyncio.create_task(one.run()) for one in made.station.consumers]
        if made.station.metronome is not None:
            runs.append(asyncio.create_task(made.station.metronome.run()))
        await pending(raw, range(1))
        await wait_until(lambda: any(map(is_open_of, made.station.consumers)), "one has seen the first")
        await proxy.refuse()
        proxy.reset()
        await wait_until(lambda: made.shared.outage.degraded, "it is degraded")
        await proxy.accept()
        await pending(raw, range(1, 3))
        await wait_until(lambda: made.counts.get("done") == 3, "they are done")
        await wait_until(lambda: not made.shared.outage.degraded, "it has recovered")
        made.station.stop()
        await asyncio.gather(*runs)
    assert made.lines.events.count("degraded") == made.lines.events.count("recovered") == 1
