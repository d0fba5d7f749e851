"""Repeat: registrations priced on the host's clock, and occurrences that fire once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from echomq_worker.connector import Connector
from echomq_worker.errors import EchoMQError, InvalidArgument, InvalidQueueName
from echomq_worker.repeat import Registration, Repeat, RepeatRecord
from tests.support.clock import START_MS, ManualClock
from tests.support.plain import QUEUE, Queue, row

NOW = START_MS


@pytest.fixture
def clock() -> ManualClock:
    """The host's clock, months away from the server's."""
    return ManualClock(NOW)


@pytest.fixture
def repeat(wire: Connector, clock: ManualClock) -> Repeat:
    """The registry, priced on the host's clock."""
    return Repeat(wire, clock=clock)


async def test_register_is_priced_on_the_hosts_clock(repeat: Repeat, queue: Queue) -> None:
    """First run at the host's now plus first_in_ms; the server's clock has no say."""
    assert await repeat.register(QUEUE, "daily", 86_400_000, {"a": 1}, first_in_ms=500) == "registered"
    assert await repeat.register(QUEUE, "often", 1_000, b"t", fixed_rate=True) == "registered"

    assert await queue.state() == {
        "repeat": {"daily": NOW + 500, "often": NOW},
        "repeat:daily": {"every_ms": "86400000", "template": '{"a":1}'},
        "repeat:often": {"every_ms": "1000", "template": "t", "fixed_rate": "1"},
    }


async def test_a_live_name_is_left_alone_and_the_difference_is_told(
    repeat: Repeat, clock: ManualClock, queue: Queue
) -> None:
    """Exists, with what stands and the names of what differs; the same again differs in nothing."""
    await repeat.register(QUEUE, "daily", 1_000, b"t")
    before = await queue.state()
    clock.advance(10)

    same = await repeat.register(QUEUE, "daily", 1_000, b"t")
    other = await repeat.register(QUEUE, "daily", 2_000, b"u", fixed_rate=True)

    standing = RepeatRecord("daily", 1_000, b"t", NOW)
    assert (same, same.standing, same.difference) == ("exists", standing, ())
    assert (other, other.standing, other.difference) == ("exists", standing, ("every_ms", "template", "fixed_rate"))
    assert await queue.state() == before


async def test_update_replaces_what_differs(repeat: Repeat, clock: ManualClock, queue: Queue) -> None:
    """Updated once, exists when asked again: a deployment may ask at each start."""
    await repeat.register(QUEUE, "daily", 1_000, b"t")
    clock.advance(10)

    updated = await repeat.register(QUEUE, "daily", 2_000, b"t", first_in_ms=5, update=True)
    again = await repeat.register(QUEUE, "daily", 2_000, b"t", first_in_ms=5, update=True)

    assert (updated, updated.standing, updated.difference) == ("updated", None, ())
    assert (again, again.difference) == ("exists", ())
    assert await queue.state() == {
        "repeat": {"daily": NOW + 15},
        "repeat:daily": {"every_ms": "2000", "template": "t"},
    }


async def test_due_list_count_cancel(repeat: Repeat, clock: ManualClock, queue: Queue) -> None:
    """Due at or before the host's now, earliest first, with their records; cancel removes one and only one."""
    for name, first_in_ms in (("late", 500), ("soon", 100), ("now", 0)):
        await repeat.register(QUEUE, name, 1_000, name.encode(), first_in_ms=first_in_ms)

    assert [record.name for record in await repeat.due(QUEUE)] == ["now"]
    clock.advance(100)
    assert await repeat.due(QUEUE) == [
        RepeatRecord("now", 1_000, b"now", NOW),
        RepeatRecord("soon", 1_000, b"soon", NOW + 100),
    ]
    assert [record.name for record in await repeat.due(QUEUE, NOW + 500)] == ["now", "soon", "late"]
    assert [record.name for record in await repeat.list(QUEUE)] == ["now", "soon", "late"]
    assert await repeat.count(QUEUE) == 3

    assert [await repeat.cancel(QUEUE, "soon") for _ in range(2)] == [True, False]
    assert await repeat.count(QUEUE) == 2
    assert "repeat:soon" not in await queue.state()


async def test_a_dangling_member_has_no_record(repeat: Repeat, queue: Queue) -> None:
    """Counted as a member, listed by nobody; advance drops it."""
    await queue.put({"repeat": {"ghost": 5}})

    assert await repeat.count(QUEUE) == 1
    assert await repeat.due(QUEUE) == await repeat.list(QUEUE) == []
    assert not await repeat.advance(QUEUE, "ghost", 1_000)
    assert await queue.state() == {}


async def test_what_others_have_written_is_listed_all_the_same(repeat: Repeat, queue: Queue) -> None:
    """A run that never comes, one that was always due, a period that is no number: none of them hides the others."""
    await repeat.register(QUEUE, "daily", 1_000, b"t")
    record = {"every_ms": "1000", "template": "x"}
    await queue.put(
        {
            "repeat": {"never": float("inf"), "ever": float("-inf"), "odd": NOW - 1},
            "repeat:never": record,
            "repeat:ever": record,
            "repeat:odd": {**record, "every_ms": "daily"},
        }
    )

    listed = [(record.name, record.every_ms, record.next_at_ms) for record in await repeat.list(QUEUE)]
    expected = [("ever", 1_000, -(2**53)), ("odd", 0, NOW - 1), ("daily", 1_000, NOW), ("never", 1_000, 2**53)]
    assert listed == expected
    assert [record.name for record in await repeat.due(QUEUE)] == ["ever", "odd", "daily"]
    await repeat.cancel(QUEUE, "ever")
    assert (await repeat.fire(QUEUE, ["odd", "daily"])).next_at_ms == NOW + 1_000
    await repeat.cancel(QUEUE, "daily")
    assert (await repeat.fire(QUEUE, ["never"])).next_at_ms == 2**53


async def test_advance_is_now_plus_the_period(repeat: Repeat, clock: ManualClock, queue: Queue) -> None:
    """A late advance does not catch up: measured from the host's now, not from the old score."""
    await repeat.register(QUEUE, "daily", 1_000, b"t")
    clock.advance(5_432)

    assert await repeat.advance(QUEUE, "daily", 1_000)

    assert (await queue.state())["repeat"] == {"daily": NOW + 6_432}


async def test_fire_enqueues_each_due_name_once(repeat: Repeat, clock: ManualClock, queue: Queue) -> None:
    """Due, not due, unknown: the due one is a job of its own with the template, advanced; the next run is told."""
    await repeat.register(QUEUE, "now", 1_000, b"t")
    await repeat.register(QUEUE, "grid", 1_000, b"g", fixed_rate=True)
    await repeat.register(QUEUE, "later", 9_000, b"l", first_in_ms=9_000)
    clock.advance(2_300)

    firing = await repeat.fire(QUEUE, ["now", "grid", "later", "unknown"])

    assert [(one.name, one.outcome) for one in firing.fired] == [
        ("now", "fired"),
        ("grid", "fired"),
        ("later", "not_due"),
        ("unknown", "absent"),
    ]
    assert firing.next_at_ms == NOW + 3_000
    now, grid, *others = [one.id for one in firing.fired]
    assert now is not None
    assert grid is not None
    assert others == [None, None]
    state = await queue.state()
    assert state["pending"] == {now: 0, grid: 0}
    assert (state[f"job:{now}"], state[f"job:{grid}"]) == (row(payload="t"), row(payload="g"))
    assert state["repeat"] == {"now": NOW + 3_300, "grid": NOW + 3_000, "later": NOW + 9_000}
    assert [one.outcome for one in (await repeat.fire(QUEUE, ["now", "grid"])).fired] == ["not_due", "not_due"]
    assert (await repeat.fire(QUEUE, ["now"], NOW + 3_300)).fired[0].outcome == "fired"


async def test_an_empty_registry_has_no_next_run(repeat: Repeat) -> None:
    """Nothing registered, nothing named."""
    assert await repeat.fire(QUEUE, []) == ([], None)


async def test_a_fleet_that_fires_at_once_fires_once(repeat: Repeat, queue: Queue) -> None:
    """Twenty at the same moment: one occurrence."""
    await repeat.register(QUEUE, "now", 1_000, b"t")

    firings = await asyncio.gather(*(repeat.fire(QUEUE, ["now"]) for _ in range(20)))

    assert sorted(firing.fired[0].outcome for firing in firings) == ["fired"] + ["not_due"] * 19
    assert len((await queue.state())["pending"]) == 1


async def test_a_record_that_goes_meanwhile(repeat: Repeat, queue: Queue) -> None:
    """A record without a period (another's, or half gone) answers exists with nothing to compare."""
    await queue.put({"repeat:odd": {"template": "t"}})

    answer = await repeat.register(QUEUE, "odd", 1_000, b"t")

    assert (answer, answer.standing, answer.difference) == ("exists", None, ())


def test_a_registration_is_its_outcome() -> None:
    """Text that can be compared and printed."""
    assert Registration.of("registered") == "registered"
    assert f"{Registration.of('exists')}" == "exists"


BAD_CALLS: dict[str, tuple[Any, type[EchoMQError]]] = {
    "period 0": (lambda repeat: repeat.register(QUEUE, "a", 0, b"t"), InvalidArgument),
    "period bool": (lambda repeat: repeat.register(QUEUE, "a", True, b"t"), InvalidArgument),
    "period float": (lambda repeat: repeat.register(QUEUE, "a", 1.5, b"t"), InvalidArgument),
    "first negative": (lambda repeat: repeat.register(QUEUE, "a", 1, b"t", first_in_ms=-1), InvalidArgument),
    "name": (lambda repeat: repeat.register(QUEUE, 7, 1, b"t"), InvalidArgument),
    "queue": (lambda repeat: repeat.register("emq", "a", 1, b"t"), InvalidQueueName),
    "advance 0": (lambda repeat: repeat.advance(QUEUE, "a", 0), InvalidArgument),
    "due": (lambda repeat: repeat.due(QUEUE, 1.5), InvalidArgument),
    "fire": (lambda repeat: repeat.fire(QUEUE, ["a"], False), InvalidArgument),
}


@pytest.mark.parametrize("case", BAD_CALLS)
async def test_what_is_refused_writes_nothing(repeat: Repeat, queue: Queue, case: str) -> None:
    """Each guard with its class; the server is as empty as before."""
    call, refused = BAD_CALLS[case]

    with pytest.raises(refused):
        await call(repeat)

    assert await queue.state() == {}
