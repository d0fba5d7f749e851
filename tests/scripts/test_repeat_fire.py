"""repeat_fire: a due occurrence is claimed, enqueued and advanced in one script.

Source: seeds ("Recurrence mints a fresh job per occurrence"), decisions P1 (once per period for a whole fleet) and P2
(`fixed_rate`).
"""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.errors import KindRefused, ServerError
from tests.support.own import Own, merged
from tests.support.plain import Queue, State, job, row


def repeat(name: str = "daily", due: float = 1_000, *, every_ms: Any = 100, **fields: Any) -> State:
    """A registration and its record."""
    record = {"every_ms": str(every_ms), "template": "report"} | {key: str(value) for key, value in fields.items()}
    return {"repeat": {name: due}, f"repeat:{name}": record}


async def test_fires_once_and_moves_on(own: Own, queue: Queue) -> None:
    """A fresh job carries the template, a token wakes somebody, the next run is now + period; the record stays."""
    await queue.put(repeat(due=1_000))

    assert await own.repeat_fire(1_030, "daily", job(1)) == ["fired", "1130"]

    assert await queue.state() == repeat(due=1_130) | {
        f"job:{job(1)}": row(payload="report"),
        "pending": {job(1): 0},
        "ready": ["1"],
    }


async def test_due_at_the_very_millisecond(own: Own, queue: Queue) -> None:
    """At or before now, as the seed's `due` reads it."""
    await queue.put(repeat(due=1_000))

    assert await own.repeat_fire(999, "daily", job(1)) == ["not_due", "1000"]
    assert await own.repeat_fire(1_000, "daily", job(1)) == ["fired", "1100"]


async def test_a_second_pump_finds_nothing_due(own: Own, queue: Queue) -> None:
    """Both have read the same due name; the second writes nothing, with its own fresh id."""
    await queue.put(repeat())
    await own.repeat_fire(1_000, "daily", job(1))
    before = await queue.state()

    assert await own.repeat_fire(1_000, "daily", job(2)) == ["not_due", "1100"]

    assert await queue.state() == before


@pytest.mark.parametrize("every_ms", ["nan", "-nan", "", "daily", "0", "-5", "0.5"])
async def test_a_record_with_a_period_that_is_none_is_dropped(own: Own, queue: Queue, every_ms: str) -> None:
    """Whatever another client has written there: no Pump stumbles over it again."""
    await queue.put(repeat(every_ms=every_ms))

    assert await own.repeat_fire(1_000, "daily", job(1)) == ["absent", ""]
    assert "repeat" not in await queue.state()


async def test_the_same_name_twice_in_one_call(own: Own, queue: Queue) -> None:
    """Once per period also there."""
    await queue.put(repeat())

    assert await own.repeat_fire(1_000, "daily", job(1), "daily", job(2)) == ["fired", "not_due", "1100"]

    assert (await queue.state())["pending"] == {job(1): 0}


async def test_late_by_many_periods_is_one_run(own: Own, queue: Queue) -> None:
    """A late tick does not accumulate: one occurrence, and the next one is a period from now."""
    await queue.put(repeat(due=1_000))

    assert await own.repeat_fire(9_999, "daily", job(1)) == ["fired", "10099"]


@pytest.mark.parametrize(
    ("now", "next_at"),
    [(1_000, 1_100), (1_001, 1_100), (1_099, 1_100), (1_100, 1_200), (1_950, 2_000), (9_999, 10_000)],
)
async def test_fixed_rate_keeps_the_grid(own: Own, queue: Queue, now: int, next_at: int) -> None:
    """due + period, whole missed periods skipped: always after now, always on the grid."""
    await queue.put(repeat(due=1_000, fixed_rate=1))

    assert await own.repeat_fire(now, "daily", job(1)) == ["fired", str(next_at)]


async def test_a_cancelled_name_is_dropped(own: Own, queue: Queue) -> None:
    """Its record went while the Pump had its name: no job, no member."""
    await queue.put({"repeat": {"daily": 1_000}})

    assert await own.repeat_fire(1_000, "daily", job(1), "never", job(2)) == ["absent", "absent", ""]

    assert await queue.state() == {}


BROKEN: list[dict[str, str]] = [
    {"template": "t"},
    {"every_ms": "0", "template": "t"},
    {"every_ms": "-5", "template": "t", "fixed_rate": "1"},
    {"every_ms": "soon", "template": "t"},
    {"every_ms": "100"},
]


@pytest.mark.parametrize("record", BROKEN)
async def test_a_record_that_cannot_run_stops_nobody(own: Own, queue: Queue, record: dict[str, str]) -> None:
    """Without a period or a template it is dropped from the registry, and the other names fire."""
    await queue.put(merged({"repeat": {"broken": 1}, "repeat:broken": record}, repeat()))

    assert await own.repeat_fire(1_000, "broken", job(1), "daily", job(2)) == ["absent", "fired", "1100"]

    state = await queue.state()
    assert (state["repeat"], state["pending"]) == ({"daily": 1_100}, {job(2): 0})


async def test_an_id_that_is_taken_loses_no_run(own: Own, queue: Queue) -> None:
    """The row that is there stays as it is; the occurrence stays due, for a try with another id."""
    await queue.put(repeat() | {f"job:{job(1)}": row("active", 3)})
    before = await queue.state()

    assert await own.repeat_fire(1_000, "daily", job(1)) == ["duplicate", "1000"]
    assert await queue.state() == before
    assert await own.repeat_fire(1_000, "daily", job(2)) == ["fired", "1100"]


async def test_one_id_for_two_names(own: Own, queue: Queue) -> None:
    """The second does not write over the first."""
    await queue.put(merged(repeat("a"), repeat("b", template="other")))

    assert await own.repeat_fire(1_000, "a", job(1), "b", job(1)) == ["fired", "duplicate", "1000"]

    assert (await queue.state())[f"job:{job(1)}"] == row(payload="report")


async def test_a_hundred_names(own: Own, queue: Queue) -> None:
    """Each with a job of its own and a next run of its own; the lowest is answered; tokens as for any admission."""
    await queue.put(merged(*(repeat(f"r{n}", due=n, every_ms=1_000 + n) for n in range(100))))

    answers = await own.repeat_fire(50, *(word for n in range(100) for word in (f"r{n}", job(n))))

    assert answers == ["fired"] * 51 + ["not_due"] * 49 + ["51"]
    state = await queue.state()
    assert list(state["pending"]) == [job(n) for n in range(51)]
    assert state["repeat"] == {f"r{n}": 50 + 1_000 + n if n <= 50 else n for n in range(100)}
    assert state["ready"] == ["1"] * 51


async def test_names_and_templates_are_bytes(own: Own, queue: Queue) -> None:
    """Spaces, colons, braces, any bytes: data, not syntax."""
    name, template = "a b:c{d}é", b"\x00\xff{}"
    await own.repeat_register(name, 100, template, 1)

    assert await own.repeat_fire(5, name, job(1)) == ["fired", "105"]

    assert await queue.raw.hget(queue.keys.job(job(1)), "payload") == template


@pytest.mark.parametrize("pairs", [("daily", job(1), "other", job(2, "USR")), ("daily", job(1), "other")])
async def test_a_foreign_id_is_refused_whole(own: Own, queue: Queue, pairs: tuple[str, ...]) -> None:
    """EMQKIND as for every admission, and nothing of the call is written."""
    await queue.put(repeat())
    before = await queue.state()

    with pytest.raises(KindRefused, match=r"^EMQKIND job id must be JOB-namespaced$"):
        await own.repeat_fire(1_000, *pairs)

    assert await queue.state() == before


async def test_no_time_is_refused(own: Own, queue: Queue) -> None:
    """Before anything is written."""
    await queue.put(repeat())
    before = await queue.state()

    with pytest.raises(ServerError, match="milliseconds"):
        await own.repeat_fire("noon", "daily", job(1))

    assert await queue.state() == before


async def test_without_names_the_next_run_is_answered(own: Own, queue: Queue) -> None:
    """An empty call tells a Pump when to wake."""
    await queue.put(repeat(due=777))

    assert await own.repeat_fire(1) == ["777"]
