"""Repeats as a fleet meets them: many registrations, many Pumps, Pumps that die, workers that know other queues."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from itertools import pairwise

import pytest
from redis.asyncio import Redis

from echomq_worker.clock import Clock
from echomq_worker.connector import Wire, connect
from echomq_worker.errors import WireError
from echomq_worker.identity import Mint
from echomq_worker.jobs import Jobs
from echomq_worker.keyspace import Keys
from echomq_worker.pump import Pump
from echomq_worker.repeat import Repeat
from echomq_worker.worker import Worker
from tests.support.clock import ManualClock
from tests.support.keyspace import keyspace_of
from tests.support.proxy import Proxy
from tests.support.running import running
from tests.support.stations import degraded
from tests.support.valkey import ValkeyServer
from tests.support.waiting import passes, wait_until, works_for

HOUR_MS = 3_600_000
DEATHS = 200


def pump(wire: Wire, clock: Clock, node_id: int = 1) -> Pump:
    """A Pump of queue a."""
    wait = degraded("pump", clock=clock, beat_ms=1_000)
    return Pump(
        wire, Keys("a"), clock=clock, mint=Mint(clock, node_id), tick_ms=1_000, promote_batch=100, degraded=wait
    )


async def test_a_fleet_that_registers_at_each_start_has_one_repeat(url: str, raw: Redis) -> None:
    """Five workers register the same name at each of ten starts, all at once: one member, whose next run is that of the
    first registration.

    Report 60 (taskforcesh/bullmq#2889).
    """
    clock = ManualClock()
    async with connect(url) as connector:
        repeat = Repeat(connector, clock=clock)
        await repeat.register("a", "nightly", HOUR_MS, b"x")
        first = await keyspace_of(raw)
        for _ in range(10):
            clock.advance(1_000)
            outcomes = await asyncio.gather(*(repeat.register("a", "nightly", HOUR_MS, b"x") for _ in range(5)))
            assert set(map(str, outcomes)) == {"exists"}

    assert await keyspace_of(raw) == first
    assert await raw.zcard("emq:{a}:repeat") == 1


async def _takes_ms(made: Pump) -> float:
    """How long a tick of it takes here, mostly."""
    times = [time.perf_counter()]
    for _ in range(15):
        await made.beat()
        times.append(time.perf_counter())
    return 1000 * statistics.median(late - early for early, late in pairwise(times))


async def test_pumps_that_die_at_any_moment_fire_nothing_twice(server: ValkeyServer, url: str, raw: Redis) -> None:
    """200 times the connection of a Pump goes, as when it is killed, at a random moment of its tick; another Pump goes
    on. Each period has one job: those that the dead one had fired, and those that it had not.

    Report 61 (taskforcesh/bullmq#2876).
    """
    clock, draw, by_the_dead = ManualClock(), random.Random(61), 0
    async with connect(url) as connector, Proxy(server.port) as proxy, connect(proxy.url) as doomed_wire:
        await Repeat(connector, clock=clock).register("a", "often", 1_000, b"x")
        doomed, heir = pump(doomed_wire, clock, 1), pump(connector, clock, 2)
        tick_ms = await _takes_ms(pump(doomed_wire, ManualClock(), 3))
        for period in range(1, DEATHS + 1):
            await doomed_wire.call("PING")
            tick = asyncio.create_task(doomed.beat())
            await passes(draw.uniform(0, 2 * tick_ms), "it dies at any moment")
            proxy.reset()
            with suppress(WireError):
                await tick
            # What had left before may still be on its way.
            await connector.call("PING")
            before = await raw.zcard("emq:{a}:pending")
            by_the_dead += before == period
            assert (await heir.beat()).fired == period - before
            assert await raw.zcard("emq:{a}:pending") == period
            clock.advance(1_000)

    assert 10 < by_the_dead < DEATHS - 10, "some had fired, some had not"


async def test_thousands_of_due_names_on_a_slow_line(server: ValkeyServer, url: str, raw: Redis) -> None:
    """2,000 names are due at once, three Pumps read them over a line of 2 ms: nobody is elected, and yet each name
    fires once.

    Report 65 (rq/rq#1354).
    """
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(Proxy(server.port))
        wires = [await stack.enter_async_context(connect(proxy.url)) for _ in range(3)]
        repeat = Repeat(wires[0], clock=clock)
        await asyncio.gather(*(repeat.register("a", f"name-{number}", HOUR_MS, b"x") for number in range(2_000)))
        proxy.delay(2)
        pumps = [pump(wire, clock, node_id) for node_id, wire in enumerate(wires)]

        async def work_off(one: Pump) -> int:
            fired = 0
            while True:
                tick = await one.beat()
                fired += tick.fired
                if tick.next_due_ms is not None and tick.next_due_ms > clock.now_ms():
                    return fired

        fired = await asyncio.gather(*map(work_off, pumps))

    assert sum(fired) == 2_000
    assert await raw.zcard("emq:{a}:pending") == 2_000


@pytest.mark.parametrize(
    ("zone", "change"),
    [
        ("Europe/Berlin", "2026-03-29T01:00Z"),
        ("Europe/Berlin", "2026-10-25T01:00Z"),
        ("America/New_York", "2026-03-08T07:00Z"),
        ("America/New_York", "2026-11-01T06:00Z"),
    ],
)
async def test_a_change_to_summer_time_is_no_event(
    url: str, raw: Redis, zone: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hourly repeat on the day before and the day after either change, on a host of that zone: once an hour, 48
    times. A period is a number of milliseconds, no calendar is asked.

    Report 71 (celery/celery#6438). Report 72 (celery/celery#10107).
    """
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    clock = ManualClock(int(datetime.fromisoformat(change).timestamp() * 1000) - 24 * HOUR_MS)
    try:
        async with connect(url) as connector:
            await Repeat(connector, clock=clock).register("a", "hourly", HOUR_MS, b"x")
            made = pump(connector, clock)
            for hours in range(48):
                assert (await made.beat()).fired == 1, hours
                clock.advance(HOUR_MS)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert await raw.zcard("emq:{a}:pending") == 48


async def test_a_worker_leaves_queues_alone_that_it_has_no_handler_for(url: str, raw: Redis) -> None:
    """During a deploy an old worker meets a queue and a repeat that it does not know: it takes none of its jobs, fires
    none of its repeats, drops none. A repeat of a queue that it does serve it fires, whoever registered it.

    Report 75 (chrisguidry/docket#438).
    """
    worker = Worker()
    seen: list[bytes] = []

    @worker.handler("known")
    async def handle(payload: bytes) -> None:
        seen.append(payload)

    async with connect(url) as connector:
        jobs, repeat = Jobs(connector), Repeat(connector)
        await jobs.enqueue_many("new", [b"x"] * 10)
        await jobs.enqueue_in("new", b"due", 0)
        await repeat.register("new", "new", 100, b"x")
        before = {key: value for key, value in (await keyspace_of(raw)).items() if "{new}" in key}
        async with running(worker, url):
            await repeat.register("known", "by the new release", 50, b"from afar")
            await wait_until(lambda: len(seen) >= 5, "a repeat that it never registered fires")
        after = {key: value for key, value in (await keyspace_of(raw)).items() if "{new}" in key}

    assert after == before
    assert set(seen) == {b"from afar"}


async def test_a_slow_job_overlaps_with_its_next_occurrence_and_holds_up_no_stop(url: str) -> None:
    """A period of 50 ms, a handler of 300: an occurrence is made whether or not the last has ended, as the page on
    producing says. A stop does not wait for a repeat, only for what runs.

    Report 51 (chrisguidry/docket#260). Report 76 (python-arq/arq#292).
    """
    worker = Worker()
    at_once, most = 0, 0

    @worker.handler("a")
    async def handle() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await works_for(300)
        at_once -= 1

    async with connect(url) as connector:
        async with running(worker, url, grace_ms=60_000) as run:
            await Repeat(connector).register("a", "often", 50, b"x")
            await wait_until(lambda: most >= 3, "three run at once")
            asked = time.monotonic()
        assert time.monotonic() - asked < 20
        assert run.report.exit_code == 0
