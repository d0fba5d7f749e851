"""Station: what one queue has in a process, and how its numbers are split."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from echomq_worker.connector import connect
from echomq_worker.errors import Unavailable
from echomq_worker.jobs import Jobs, New
from echomq_worker.lanes import Lanes
from echomq_worker.options import Limits
from tests.support.plain import Queue, job
from tests.support.stations import BEAT_MS, Gate, parked, pending, stand
from tests.support.valkey import OwnServer, raw_client
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("concurrency", "consumers", "sizes"),
    [(10, 1, [10]), (10, 3, [4, 3, 3]), (7, 7, [1] * 7), (2, 5, [1, 1]), (1, 9, [1])],
)
async def test_concurrency_is_the_total_of_a_queue_in_a_process(
    url: str, concurrency: int, consumers: int, sizes: list[int]
) -> None:
    """It is split over the consumers; none is without a slot, and one alone needs no metronome."""
    async with stand(url, concurrency=concurrency, consumers=consumers) as made:
        assert [consumer.slots.size for consumer in made.station.consumers] == sizes
        assert (made.station.metronome is not None) == (len(sizes) > 1)
        assert made.station.pump is None


@pytest.mark.parametrize("consumers", [1, 3])
async def test_never_more_jobs_at_once_than_the_concurrency(url: str, raw: Redis, consumers: int) -> None:
    """However many consumers share it."""
    gate = Gate()
    await pending(raw, range(30))
    async with (
        stand(url, gate.handler, concurrency=7, consumers=consumers) as made,
        anyio.create_task_group() as loops,
    ):
        made.station.start(loops)
        await wait_until(lambda: len(gate.began) == 7, "all slots run")
        deadline = made.clock.monotonic_ms() + 3 * BEAT_MS
        await wait_until(lambda: made.clock.monotonic_ms() > deadline, "three more beats")
        assert len(gate.began) == 7
        assert len(made.station.running) == 7
        assert not made.station.idle
        gate.gate.set()
        await wait_until(lambda: made.counts.get("done") == 30, "all are done")
        assert made.station.idle
        made.station.stop()


async def test_what_the_handler_sets_wins_over_the_defaults(url: str, raw: Redis) -> None:
    """Lease and attempts, of which the server hears."""
    defaults = Limits(lease_ms=60_000, max_attempts=9)
    gate = Gate()
    await pending(raw, range(1))
    async with stand(url, gate.handler, limits=defaults, lease_ms=5_000, max_attempts=2) as made:
        beat = await made.consumer.beat()
        assert beat.claimed is not None
        assert beat.claimed.jobs[0].max_attempts == 2
        score = await raw.zscore("emq:{q}:active", job(0))
        assert score is not None
        assert score - await Queue(raw).now_ms() < 5_001


async def test_consumers_of_a_process_have_names_of_their_own(url: str, raw: Redis) -> None:
    """So each has its own receipt; the name of the process start is in all of them."""
    gate = Gate()
    await pending(raw, range(2))
    async with stand(url, gate.handler, consumers=2, concurrency=2, name="start") as made:
        for consumer in made.station.consumers:
            await consumer.beat()
    assert sorted(await raw.keys("*claimed*")) == [b"emq:{q}:claimed:start-0", b"emq:{q}:claimed:start-1"]


async def test_a_pump_runs_where_it_is_asked_for(url: str, raw: Redis) -> None:
    """As a class it is opt-in."""
    await Queue(raw).put({"repeat": {"r": 1.0}, "repeat:r": {"every_ms": "3600000", "template": "x"}})
    gate = Gate()
    async with stand(url, gate.handler, pump=True) as made, anyio.create_task_group() as loops:
        made.station.start(loops)
        await wait_until(lambda: gate.began, "the occurrence runs")
        made.station.stop()


async def test_a_stop_ends_every_loop_at_once(url: str, raw: Redis) -> None:
    """Consumers, metronome and pump; what runs goes on."""
    gate = Gate()
    await pending(raw, range(1))
    async with stand(
        url, gate.handler, pump=True, consumers=2, beat_ms=60_000, limits=Limits(lease_ms=120_000)
    ) as made:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as loops:
                made.station.start(loops)
                await wait_until(lambda: gate.began, "it runs")
                await parked(raw)
                made.station.stop()
                made.station.stop()
        assert len(made.station.running) == 1
        gate.gate.set()
        await wait_until(lambda: made.counts.get("done") == 1, "its verdict goes out")


@pytest.mark.parametrize("where", ["pending", "lane", "soon", "hand"])
async def test_a_burst_is_not_over_while_something_is_left(url: str, raw: Redis, where: str) -> None:
    """Flat or in a lane, due within the horizon, or in hand."""
    gate = Gate()
    async with stand(url, gate.handler) as made:
        assert await made.station.exhausted(5_000)
        jobs = Jobs(made.connector)
        match where:
            case "lane":
                await jobs.enqueue_many("q", [New(b"x", group=Lanes.group_for("a"))])
            case "soon":
                await jobs.enqueue_in("q", b"x", 3_000)
            case _:
                await jobs.enqueue("q", b"x")
        if where == "hand":
            await made.consumer.beat()
            await wait_until(lambda: gate.began, "it runs")
            assert not await raw.exists("emq:{q}:pending")
        assert not await made.station.exhausted(5_000)


@pytest.mark.parametrize("where", ["far", "paused", "paused lane"])
async def test_a_burst_is_over_though_jobs_are_left_that_it_cannot_have(url: str, raw: Redis, where: str) -> None:
    """Due tomorrow, or on a queue or lane that is paused."""
    async with connect(url) as connector, stand(url) as made:
        jobs, group = Jobs(connector), Lanes.group_for("a")
        match where:
            case "far":
                await jobs.enqueue_in("q", b"x", 86_400_000)
            case "paused":
                await jobs.enqueue("q", b"x")
                await raw.hset("emq:{q}:meta", "paused", "1")
            case _:
                paused: Any = "emq:{q}:paused"
                await raw.sadd(paused, group)
                await jobs.enqueue_many("q", [New(b"x", group=group)])
        assert await made.station.exhausted(5_000)


async def test_a_burst_hears_of_a_server_that_is_busy(own_server: OwnServer) -> None:
    """As an error of the wire, which the burst outlasts: it is neither over nor a crash."""
    server = own_server(args=("--busy-reply-threshold", "1"))
    async with (
        stand(server.url) as made,
        raw_client(server.url) as raw,
        raw_client(server.url) as other,
        anyio.create_task_group() as group,
    ):

        async def hang() -> None:
            with pytest.raises(ResponseError):
                await other.eval("while true do end", 0)

        async def busy() -> bool:
            with suppress(ResponseError):
                await raw.ping()
                return False
            return True

        group.start_soon(hang)
        await wait_until(busy, "the script blocks the server")
        with pytest.raises(Unavailable, match="BUSY"):
            await made.station.exhausted(5_000)
        await raw.script_kill()


async def test_what_ends_during_a_look_is_looked_at_again(
    url: str, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane at its ceiling is off the ring while its job runs. Where that ends before the look does, the next job of
    the lane may be claimed, and a burst is not over.
    """
    gate = Gate()
    async with connect(url) as connector, stand(url, gate.handler, concurrency=1) as made:
        lanes, group = Lanes(connector), Lanes.group_for("x")
        await lanes.limit("q", group, 1)
        for _ in range(2):
            await lanes.enqueue("q", group, b"x")
        wire = made.station._shared.connector
        pipeline, call = wire.pipeline, wire.call

        async def as_it_is_claimed(commands: Any) -> list[Any]:
            if commands[0][0] == "HEXISTS":
                await made.consumer.beat()
                await wait_until(lambda: gate.began, "the first one runs")
            return await pipeline(commands)

        async def as_it_ends(*words: Any) -> Any:
            answer = await call(*words)
            if words[0] == "ZCOUNT":
                gate.gate.set()
                await wait_until(lambda: made.counts.get("done"), "the first one is done")
            return answer

        with monkeypatch.context() as patched:
            patched.setattr(wire, "pipeline", as_it_is_claimed)
            patched.setattr(wire, "call", as_it_ends)
            assert not await made.station.exhausted(1_000)
        assert await raw.llen("emq:{q}:ring") == 1
        assert made.station.idle
