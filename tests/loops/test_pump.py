"""Pump: repeats fire when they are due, once for a whole fleet, whatever the host's clock does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from echomq_worker.clock import Clock
from echomq_worker.connector import Connector, connect
from echomq_worker.errors import ServerError, Unreachable
from echomq_worker.identity import Mint
from echomq_worker.keyspace import Keys
from echomq_worker.pump import BATCH, Pump, Tick
from echomq_worker.repeat import Repeat
from tests.support.clock import START_MS, ManualClock
from tests.support.plain import QUEUE, Queue, job, row
from tests.support.stations import FastClock, Lines, degraded
from tests.support.waiting import wait_until

TICK_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class Counted(Pump):
    """A pump that keeps its ticks."""

    ticks: list[Tick]

    async def beat(self) -> Tick:
        """As it is, and kept."""
        tick = await super().beat()
        self.ticks.append(tick)
        return tick


def pump(connector: Connector, clock: Clock, *, node: int = 1, lines: Lines | None = None, mint: Any = None) -> Counted:
    """Of the tests' queue: a tick of 1 s, promoting 100."""
    made = Counted(
        connector,
        Keys(QUEUE),
        clock=clock,
        mint=mint or Mint(clock, node),
        tick_ms=TICK_MS,
        promote_batch=100,
        degraded=degraded("pump", clock=clock, beat_ms=TICK_MS, lines=lines),
    )
    made.ticks = []
    return made


@asynccontextmanager
async def pumping(made: Pump) -> AsyncIterator[None]:
    """The pump runs."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        yield
        tasks.cancel_scope.cancel()


async def waits(clock: ManualClock) -> None:
    """Until the pump has done its tick and sleeps."""
    await wait_until(lambda: clock.sleepers == 1, "it waits for the next tick")


async def fired(raw: Redis) -> int:
    """How many occurrences there are."""
    return int(await raw.zcard("emq:{q}:pending"))


async def payloads(raw: Redis) -> list[bytes]:
    """Those of all occurrences."""
    ids: Any = await raw.zrange("emq:{q}:pending", 0, -1)
    pipeline: Any = raw.pipeline(transaction=False)
    for id in ids:
        pipeline.hget(f"emq:{{q}}:job:{id.decode()}", "payload")
    return list(await pipeline.execute())


async def test_a_tick_fires_what_is_due_and_says_when_it_is_needed_next(url: str, raw: Redis) -> None:
    """Each occurrence is a new job with the template; nothing registered is nothing to do."""
    clock = ManualClock()
    async with connect(url) as connector:
        made, repeat = pump(connector, clock), Repeat(connector, clock=clock)
        assert await made.beat() == Tick(0, 0, None)
        await repeat.register(QUEUE, "report", MINUTE_MS, "daily")
        await repeat.register(QUEUE, "later", MINUTE_MS, "x", first_in_ms=90_000)
        assert await made.beat() == Tick(1, 0, START_MS + 60_000)
        assert await made.beat() == Tick(0, 0, START_MS + 60_000)
        clock.advance(60_007)
        assert await made.beat() == Tick(1, 0, START_MS + 90_000)
        clock.advance(60_000)
        assert await made.beat() == Tick(2, 0, START_MS + 150_000 + 30_007)
    assert sorted(await payloads(raw)) == [b"daily"] * 3 + [b"x"]


async def test_a_day_of_repeats(url: str, raw: Redis) -> None:
    """On the grid every period is fired, 1,440 in a day, however late the ticks; now + period adds the lateness up."""
    clock, draw, late = ManualClock(), random.Random(1), 0
    async with connect(url) as connector:
        made, repeat = pump(connector, clock), Repeat(connector, clock=clock)
        await repeat.register(QUEUE, "grid", MINUTE_MS, "grid", fixed_rate=True, first_in_ms=MINUTE_MS)
        await repeat.register(QUEUE, "plain", MINUTE_MS, "plain", first_in_ms=MINUTE_MS)
        due = START_MS + MINUTE_MS
        while due <= START_MS + DAY_MS:
            lateness = draw.randrange(21)
            late += lateness
            clock.advance(max(0, due - clock.now_ms()) + lateness)
            tick = await made.beat()
            assert tick.next_due_ms is not None
            due = tick.next_due_ms
        records = {record.name: record for record in await repeat.list(QUEUE)}
    assert (records["grid"].next_at_ms - START_MS) % MINUTE_MS == 0
    seen = await payloads(raw)
    assert seen.count(b"grid") == 1_440
    assert 1_440 - late // MINUTE_MS - 1 <= seen.count(b"plain") <= 1_440
    await raw.flushall()


async def test_it_wakes_earlier_for_a_repeat_that_is_due_earlier(url: str, raw: Redis) -> None:
    """And otherwise at its tick."""
    clock = ManualClock()
    async with connect(url) as connector:
        await Repeat(connector, clock=clock).register(QUEUE, "soon", 10 * MINUTE_MS, "x", first_in_ms=2_300)
        async with pumping(pump(connector, clock)):
            for step in (TICK_MS, TICK_MS, 299):
                await waits(clock)
                clock.advance(step)
            await waits(clock)
            assert await fired(raw) == 0
            clock.advance(1)
            await wait_until(lambda: fired(raw), "it has fired")
            await waits(clock)
    assert await fired(raw) == 1


async def test_two_pumps_fire_one_job_a_period(url: str, raw: Redis) -> None:
    """Whoever comes first; the other finds it done."""
    clock = ManualClock()
    async with connect(url) as one, connect(url) as other:
        await Repeat(one, clock=clock).register(QUEUE, "r", 1_000, "x")
        pumps = [pump(one, clock, node=1), pump(other, clock, node=2)]
        for period in range(1, 31):
            ticks = await asyncio.gather(*(each.beat() for each in pumps))
            assert sum(tick.fired for tick in ticks) == 1
            assert await fired(raw) == period
            clock.advance(1_000)


async def test_an_id_that_is_there_already_does_not_stop_the_repeat(url: str, raw: Redis) -> None:
    """Another process minted the same one: the occurrence is not lost, it fires at once with the next id, and once.

    Report 63 (taskforcesh/bullmq#2954).
    """

    class Taken:
        def __init__(self) -> None:
            self.number = 0

        def next(self) -> str:
            self.number += 1
            return job(self.number)

    clock = ManualClock()
    await Queue(raw).put({f"job:{job(1)}": row("dead")})
    async with connect(url) as connector:
        await Repeat(connector, clock=clock).register(QUEUE, "r", MINUTE_MS, "x")
        made = pump(connector, clock, mint=Taken())
        async with pumping(made):
            for _ in range(3):
                await waits(clock)
                clock.advance(1)
    assert [tick.fired for tick in made.ticks[:2]] == [0, 1]
    assert await raw.zrange("emq:{q}:pending", 0, -1) == [job(2).encode()]


async def test_a_tick_is_bounded_and_the_rest_follows_at_once(url: str, raw: Redis) -> None:
    """A hundred at a time; what is left is due, so the next tick does not wait."""
    clock = ManualClock()
    async with connect(url) as connector:
        repeat = Repeat(connector, clock=clock)
        for number in range(2 * BATCH + 50):
            await repeat.register(QUEUE, f"r{number}", HOUR_MS, "x")
        made = pump(connector, clock)
        assert (await made.beat()).fired == BATCH
        async with pumping(made):
            await waits(clock)
            clock.advance(1)
            await waits(clock)
            assert await fired(raw) == 2 * BATCH + 50


@pytest.mark.parametrize("fixed_rate", [True, False])
@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
async def test_a_stepped_clock_makes_no_storm_and_no_stall(
    url: str, raw: Redis, step_ms: int, *, fixed_rate: bool
) -> None:
    """An hour forth fires once, not sixty times; an hour back fires nothing. It looks once a tick all the while."""
    clock = ManualClock()
    async with connect(url) as connector:
        await Repeat(connector, clock=clock).register(
            QUEUE, "r", MINUTE_MS, "x", fixed_rate=fixed_rate, first_in_ms=MINUTE_MS
        )
        made = pump(connector, clock)
        async with pumping(made):
            await waits(clock)
            clock.set(clock.now_ms() + step_ms)
            for ticks in range(2, 12):
                clock.advance(TICK_MS - 1)
                for _ in range(3):
                    await asyncio.sleep(0)
                assert clock.sleepers == 1
                clock.advance(1)
                await wait_until(lambda ticks=ticks: len(made.ticks) == ticks, "it looks once a tick")  # type: ignore[misc]  # a default
                await waits(clock)
    assert sum(tick.fired for tick in made.ticks) == (1 if step_ms > 0 else 0)


async def test_due_jobs_are_promoted(url: str, raw: Redis) -> None:
    """A bounded batch each tick, on the server's clock."""
    await Queue(raw).put(
        {
            "schedule": {job(n): 1 if n < 150 else 4_000_000_000_000 for n in range(151)},
            **{f"job:{job(n)}": row("scheduled") for n in range(151)},
        }
    )
    async with connect(url) as connector:
        made = pump(connector, ManualClock())
        assert [(await made.beat()).promoted for _ in range(3)] == [100, 50, 0]
    assert await raw.zrange("emq:{q}:schedule", 0, -1) == [job(150).encode()]


async def test_a_name_that_was_cancelled_in_between_is_dropped(url: str, raw: Redis) -> None:
    """A member without its record fires nothing; a run-at that never comes is none."""
    await Queue(raw).put({"repeat": {"gone": 1.0}})
    async with connect(url) as connector:
        made = pump(connector, ManualClock())
        assert await made.beat() == Tick(0, 0, None)
        assert not await raw.exists("emq:{q}:repeat")
        await raw.zadd("emq:{q}:repeat", {"never": float("inf")})
        assert await made.beat() == Tick(0, 0, None)


@pytest.mark.parametrize("broken", ["repeat", "schedule", "repeat:r"])
async def test_an_error_of_the_server_is_raised_and_ends_the_run_when_it_stays(
    url: str, raw: Redis, broken: str
) -> None:
    """Ten in a row, whichever leg it is; one line for all of them."""
    lines, clock = Lines(), FastClock()
    if broken == "repeat:r":
        await Queue(raw).put({"repeat": {"r": 1.0}})
    await raw.set(f"emq:{{q}}:{broken}", "text")
    async with connect(url) as connector:
        with pytest.raises(ServerError, match="WRONGTYPE"):
            await pump(connector, clock, lines=lines).run()
    assert lines.events == ["degraded"]
    await raw.delete(f"emq:{{q}}:{broken}")


async def test_a_wire_error_waits_on_the_curve_and_a_stop_ends_it(url: str) -> None:
    """Without a server: 1, 2, 4 s; stop ends the wait, whichever it is."""
    clock, lines = ManualClock(), Lines()
    made = pump(Connector("redis://127.0.0.1:1/0"), clock, lines=lines)
    with pytest.raises(Unreachable):
        await made.beat()
    running = asyncio.create_task(made.run())
    for wait_ms in (1_000, 2_000):
        await waits(clock)
        clock.advance(wait_ms - 1)
        await asyncio.sleep(0)
        assert clock.sleepers == 1
        clock.advance(1)
    await waits(clock)
    made.stop()
    made.stop()
    await asyncio.wait_for(running, 20)
    assert made._degraded.streak == 3

    async with connect(url) as connector:
        made = pump(connector, clock)
        running = asyncio.create_task(made.run())
        await waits(clock)
        made.stop()
        await asyncio.wait_for(running, 20)
