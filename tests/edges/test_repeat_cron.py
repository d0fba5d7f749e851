"""Repeats by a calendar, as users and Pumps have them: a fleet fires each run once, runs that were missed are one, a
Pump that knows periods only does no harm.

Source: issue "Made for the people who run it" (cron repeats), decision 0033. The clocks are the tests', months away
from the server's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.calendars import BATCH
from echomq_worker.connector import Connector, Wire, connect
from echomq_worker.cron import Cron
from echomq_worker.errors import ConfigError, EchoMQError, InvalidArgument
from echomq_worker.identity import Mint
from echomq_worker.jobs import Jobs
from echomq_worker.keyspace import Keys
from echomq_worker.metrics import Metrics
from echomq_worker.pump import Pump
from echomq_worker.repeat import Repeat, RepeatRecord
from tests.support.clock import ManualClock
from tests.support.plain import QUEUE, Queue
from tests.support.stations import Lines, degraded

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ZONE = "Europe/Berlin"


def ms(text: str) -> int:
    """ISO 8601 with its offset to ms since 1970."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


START_MS = ms("2026-03-27T12:00+01:00")


def pump(wire: Wire, clock: ManualClock, *, node: int = 1, lines: Lines | None = None) -> Pump:
    """Of the tests' queue."""
    return Pump(
        wire,
        Keys(QUEUE),
        clock=clock,
        mint=Mint(clock, node),
        tick_ms=1_000,
        promote_batch=100,
        degraded=degraded("pump", clock=clock, beat_ms=1_000),
        log=lines,
    )


@pytest.fixture
def clock() -> ManualClock:
    """The hosts' clock: two days before the hour from 2 to 3 is skipped."""
    return ManualClock(START_MS)


@pytest.fixture
def repeat(wire: Connector, clock: ManualClock) -> Repeat:
    """The registry, priced on the hosts' clock."""
    return Repeat(wire, clock=clock)


async def test_register_list_and_cancel(repeat: Repeat, wire: Connector, queue: Queue) -> None:
    """The first run is the calendar's next one; it is listed among the others by its next run, and counted."""
    assert await repeat.register(QUEUE, "nightly", cron=" 0  3 * * *", tz=ZONE, template={"a": 1}) == "registered"
    assert await repeat.register(QUEUE, "often", 1_000, b"t", first_in_ms=DAY_MS) == "registered"

    nightly = RepeatRecord("nightly", 0, b'{"a":1}', ms("2026-03-28T03:00+01:00"), cron="0 3 * * *", tz=ZONE)
    listed = await repeat.list(QUEUE)
    assert listed == [nightly, RepeatRecord("often", 1_000, b"t", START_MS + DAY_MS)]
    assert await Metrics(wire).repeats(QUEUE) == listed
    assert await repeat.count(QUEUE) == (await Jobs(wire).counts(QUEUE)).repeats == 2
    assert [await repeat.cancel(QUEUE, "nightly") for _ in range(2)] == [True, False]
    assert [record.name for record in await repeat.list(QUEUE)] == ["often"]


async def test_a_live_name_is_left_alone_and_the_difference_is_told(repeat: Repeat) -> None:
    """Over both kinds; `update` replaces, and is `exists` when asked again."""
    await repeat.register(QUEUE, "n", cron="0 3 * * *", template=b"t")

    same = await repeat.register(QUEUE, "n", cron="0 3 * * *", template=b"t")
    other = await repeat.register(QUEUE, "n", cron="0 4 * * *", tz=ZONE, template=b"u")
    period = await repeat.register(QUEUE, "n", 5_000, b"t")

    assert (same, same.difference) == ("exists", ())
    assert (other, other.difference) == ("exists", ("template", "cron", "tz"))
    assert (period, period.difference) == ("exists", ("every_ms", "cron"))
    assert await repeat.register(QUEUE, "n", 5_000, b"t", update=True) == "updated"
    assert (await repeat.list(QUEUE))[0].every_ms == 5_000
    assert await repeat.register(QUEUE, "n", cron="0 4 * * *", template=b"t", update=True) == "updated"
    assert await repeat.register(QUEUE, "n", cron="0 4 * * *", template=b"t", update=True) == "exists"


BAD_CALLS: dict[str, tuple[Any, type[EchoMQError], str]] = {
    "none": (lambda repeat: repeat.register(QUEUE, "a", template=b"t"), InvalidArgument, "neither every_ms nor cron"),
    "both": (lambda r: r.register(QUEUE, "a", 5, b"t", cron="0 3 * * *"), InvalidArgument, "expected no every_ms"),
    "grid": (
        lambda r: r.register(QUEUE, "a", cron="0 3 * * *", template=b"", fixed_rate=True),
        InvalidArgument,
        "expected no every_ms",
    ),
    "cron": (lambda repeat: repeat.register(QUEUE, "a", cron="daily", template=b"t"), InvalidArgument, "1 fields"),
    "tz": (lambda r: r.register(QUEUE, "a", cron="0 3 * * *", tz="X/Y", template=b"t"), InvalidArgument, "time zone"),
    "name": (lambda repeat: repeat.register(QUEUE, "", cron="0 3 * * *", template=b"t"), InvalidArgument, "empty"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
async def test_what_is_refused_writes_nothing(repeat: Repeat, queue: Queue, case: str) -> None:
    """Each guard with its class and what was expected; the server is as empty as before."""
    call, refused, said = BAD_CALLS[case]

    with pytest.raises(refused, match=said):
        await call(repeat)

    assert await queue.state() == {}


@pytest.fixture
async def wires(url: str) -> AsyncIterator[list[Connector]]:
    """A connection for each Pump of a fleet."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connect(url)) for _ in range(4)]


@pytest.mark.parametrize(("start", "days"), [("2026-03-27T12:00+01:00", 4), ("2026-10-23T12:00+02:00", 4)])
async def test_a_fleet_fires_each_run_once_over_both_changes_of_summer_time(
    wires: list[Connector], raw: Redis, start: str, days: int
) -> None:
    """Four Pumps with clocks of their own, up to a second apart, tick at random over days with an hour that is skipped,
    or comes twice: of each calendar exactly the runs that it has, each one job.

    Report 71 (celery/celery#6438).
    """
    draw, begun = random.Random(71), ms(start)
    calendars = {"nightly": "30 2 * * *", "half past": "30 * * * *", "quarters": "*/15 1-3 * * *"}
    clocks = [ManualClock(begun + ahead) for ahead in (0, 250, 700, 1_000)]
    repeat = Repeat(wires[0], clock=clocks[0])
    for name, expression in calendars.items():
        await repeat.register(QUEUE, name, cron=expression, tz=ZONE, template=name.encode())
    pumps = [pump(wire, clock, node=node) for node, (wire, clock) in enumerate(zip(wires, clocks, strict=True))]
    fired = 0
    while clocks[0].now_ms() < begun + days * DAY_MS:
        ticks = await asyncio.gather(*(one.beat() for one in pumps))
        fired += sum(tick.fired for tick in ticks)
        due = min(tick.next_due_ms for tick in ticks if tick.next_due_ms is not None)
        step = max(1_000, due - clocks[0].now_ms() + draw.randrange(1_000))
        for clock in clocks:
            clock.advance(step)

    runs = dict.fromkeys(calendars, 0)
    for name, expression in calendars.items():
        at = Cron(expression, ZONE).after(begun)
        while at < begun + days * DAY_MS:
            runs[name] += 1
            at = Cron(expression, ZONE).after(at)
    ids: Any = await raw.zrange("emq:{q}:pending", 0, -1)
    payloads = [await raw.hget(f"emq:{{q}}:job:{id.decode()}", "payload") for id in ids]
    assert {name: payloads.count(name.encode()) for name in calendars} == runs
    assert fired == len(payloads) == sum(runs.values())
    assert runs["nightly"] == days


async def test_runs_that_nobody_was_there_for_are_one(repeat: Repeat, wire: Connector, clock: ManualClock) -> None:
    """Three days without a Pump: one run, late, and the next is the calendar's, as if nothing had been."""
    await repeat.register(QUEUE, "nightly", cron="0 3 * * *", tz=ZONE, template=b"t")
    clock.set(ms("2026-03-30T14:00+02:00"))
    made = pump(wire, clock)

    assert [(await made.beat()).fired for _ in range(3)] == [1, 0, 0]

    assert (await repeat.list(QUEUE))[0].next_at_ms == ms("2026-03-31T03:00+02:00")


async def test_a_clock_that_is_set_back_fires_nothing_again(
    repeat: Repeat, wire: Connector, clock: ManualClock
) -> None:
    """What ran has run; the next run stays where it is."""
    await repeat.register(QUEUE, "hourly", cron="0 * * * *", template=b"t")
    made = pump(wire, clock)
    clock.set(START_MS + HOUR_MS + 5)
    assert (await made.beat()).fired == 1
    clock.set(START_MS - DAY_MS)

    tick = await made.beat()

    assert (tick.fired, tick.next_due_ms) == (0, START_MS + 2 * HOUR_MS)


async def test_a_pump_that_knows_periods_only_does_no_harm(
    repeat: Repeat, wire: Connector, clock: ManualClock, queue: Queue
) -> None:
    """The reference's loop, step by step, on a due calendar: it finds nothing; then ours fires it. What the reference
    cancels is gone for ours.
    """
    await repeat.register(QUEUE, "nightly", cron="0 3 * * *", tz=ZONE, template=b"t")
    await repeat.register(QUEUE, "other", cron="0 3 * * *", tz=ZONE, template=b"t")
    clock.set(ms("2026-03-28T04:00+01:00"))
    before = await queue.state()

    due = await wire.call("ZRANGEBYSCORE", "emq:{q}:repeat", "-inf", clock.now_ms())
    assert due == []
    assert await repeat.due(QUEUE) == []
    assert not await repeat.advance(QUEUE, "nightly", 1_000)
    assert await queue.state() == before
    # As the reference cancels: out of the registry that it knows, and the record.
    await wire.pipeline([("ZREM", "emq:{q}:repeat", "other"), ("DEL", "emq:{q}:repeat:other")])

    assert (await pump(wire, clock).beat()).fired == 1
    assert (await queue.state())["cron"] == {"nightly": ms("2026-03-29T03:00+02:00")}


async def test_a_name_that_another_client_has_given_a_period_runs_by_that(
    repeat: Repeat, wire: Connector, clock: ManualClock, queue: Queue
) -> None:
    """Such as our release before, with `update`: it is in both registries then, and one of them fires it."""
    await repeat.register(QUEUE, "nightly", cron="0 3 * * *", template=b"t")
    await queue.put({"repeat": {"nightly": START_MS}, "repeat:nightly": {"every_ms": "1000"}})

    (listed,) = {record.name: record for record in await repeat.list(QUEUE)}.values()
    assert (listed.every_ms, listed.cron, listed.next_at_ms) == (1_000, None, START_MS)
    clock.set(ms("2026-03-28T14:00+01:00"))
    made = pump(wire, clock)
    assert [(await made.beat()).fired for _ in range(2)] == [1, 0]
    assert "cron" not in await queue.state()
    assert len(await repeat.list(QUEUE)) == 1


async def test_a_pump_that_cannot_compute_leaves_it_to_another(
    repeat: Repeat, wire: Connector, clock: ManualClock, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the extra, or without the zone: told once, it rests for a tick and not for a millisecond, and other names
    are not held up, however many stand in front.
    """
    for number in range(BATCH):
        await queue.put({"cron": {f"n{number:03}": 5.0}, f"repeat:n{number:03}": {"cron": "0 3 * *", "template": "t"}})
    await repeat.register(QUEUE, "hourly", cron="0 * * * *", template=b"t")
    clock.set(START_MS + HOUR_MS)
    lines = Lines()
    made = pump(wire, clock, lines=lines)

    ticks = [await made.beat() for _ in range(4)]

    assert [tick.fired for tick in ticks] == [0, 1, 0, 0]
    assert [tick.next_due_ms for tick in ticks if not tick.fired] == [None] * 3
    assert len([event for event in lines.events if event == "repeat cannot run here"]) == BATCH

    def missing() -> Any:
        raise ConfigError("cron: cronsim is not installed")

    monkeypatch.setattr("echomq_worker.cron._cronsim", missing)
    clock.advance(HOUR_MS)
    assert [(await made.beat()).fired for _ in range(3)] == [0, 0, 0]
    monkeypatch.undo()
    assert sum([(await made.beat()).fired for _ in range(2)]) == 1


async def test_what_cannot_be_computed_keeps_no_pump_awake(
    repeat: Repeat, wire: Connector, clock: ManualClock, queue: Queue
) -> None:
    """Beside one that fires: the earliest run is over and stays so here, which is no reason to look at once again."""
    await queue.put({"cron": {"odd": 5.0}, "repeat:odd": {"cron": "0 3 * * *", "tz": "Nowhere/Else", "template": "t"}})
    await repeat.register(QUEUE, "hourly", cron="0 * * * *", template=b"t")
    clock.set(START_MS + HOUR_MS)

    tick = await pump(wire, clock).beat()

    assert (tick.fired, tick.next_due_ms) == (1, None)


async def test_an_update_between_reading_and_firing_waits_for_the_next_tick(
    repeat: Repeat, wire: Connector, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that a host computed by the old calendar is not written over the new one."""
    await repeat.register(QUEUE, "n", cron="0 * * * *", template=b"t")
    clock.set(START_MS + HOUR_MS)
    record = "emq:{q}:repeat:n"
    pipeline = Connector.pipeline

    async def meanwhile(self: Connector, commands: Any) -> Any:
        replies = await pipeline(self, commands)
        if any(command[0] == "HMGET" for command in commands):
            await self.call("HSET", record, "cron", "30 * * * *")
        return replies

    monkeypatch.setattr(Connector, "pipeline", meanwhile)
    assert (await pump(wire, clock).beat()).fired == 0
    monkeypatch.undo()

    tick = await pump(wire, clock).beat()

    assert (tick.fired, tick.next_due_ms) == (1, START_MS + HOUR_MS + HOUR_MS // 2)
