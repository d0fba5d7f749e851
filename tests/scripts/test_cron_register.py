"""cron_register: a registration by a calendar is a record and a place in a registry that other Pumps never read."""

from __future__ import annotations

import pytest

from echomq_worker.errors import ServerError
from tests.support.plain import Plain, Queue, State

RECORD = {"cron": "0 3 * * *", "tz": "UTC", "template": "report"}
NIGHTLY: State = {"cron": {"nightly": 5}, "repeat:nightly": RECORD}
BY_PERIOD: State = {
    "repeat": {"nightly": 7},
    "repeat:nightly": {"every_ms": "1000", "template": "t", "fixed_rate": "1"},
}


async def test_registers_once(plain: Plain, queue: Queue) -> None:
    """Nothing in `repeat`, no `every_ms`; a second registration answers exists and writes nothing, whatever it says."""
    assert await plain.cron_register("nightly", "0 3 * * *", "UTC", "report", 5) == 1
    assert await queue.state() == NIGHTLY

    assert await plain.cron_register("nightly", "0 3 * * *", "UTC", "report", 99) == 0
    assert await plain.cron_register("nightly", "0 4 * * *", "Asia/Tokyo", "other", 99) == 0
    assert await queue.state() == NIGHTLY


async def test_a_name_is_one_over_both_registries(plain: Plain, queue: Queue) -> None:
    """A foreign client that registers a period under the name is told that it exists, and the other way round."""
    await queue.put(NIGHTLY)
    assert await plain.repeat_register("nightly", 1_000, "t", 9) == 0
    assert await queue.state() == NIGHTLY

    await queue.raw.flushall()
    await queue.put(BY_PERIOD)
    assert await plain.cron_register("nightly", "0 3 * * *", "UTC", "report", 5) == 0
    assert await queue.state() == BY_PERIOD


@pytest.mark.parametrize(
    ("words", "answer", "next_at"),
    [
        (("0 3 * * *", "UTC", "report"), 0, 5),
        (("0 3 * * *", "UTC", "better"), 2, 5),
        (("0 4 * * *", "UTC", "report"), 2, 99),
        (("0 3 * * *", "Asia/Tokyo", "report"), 2, 99),
    ],
)
async def test_an_update_moves_the_next_run_only_with_the_calendar(
    plain: Plain, queue: Queue, words: tuple[str, str, str], answer: int, next_at: int
) -> None:
    """So a deployment may register with `update` at each start."""
    await queue.put(NIGHTLY)

    assert await plain.cron_register("nightly", *words, 99, "update") == answer

    record = dict(zip(("cron", "tz", "template"), words, strict=True))
    assert await queue.state() == {"cron": {"nightly": next_at}, "repeat:nightly": record}


async def test_an_update_changes_a_period_into_a_calendar_and_back(plain: Plain, queue: Queue) -> None:
    """The name moves from one registry to the other, and nothing of what it was is left on the record."""
    await queue.put(BY_PERIOD)
    assert await plain.cron_register("nightly", "0 3 * * *", "UTC", "report", 5, "update") == 2
    assert await queue.state() == NIGHTLY

    assert await plain.repeat_register("nightly", 1_000, "t", 7, "fixed", "update") == 2
    assert await queue.state() == BY_PERIOD


async def test_cancel_removes_it(plain: Plain, queue: Queue) -> None:
    """By the verb that cancels periods: record and place; so does one that knows the record only, at the next tick."""
    await queue.put(NIGHTLY)
    assert [await plain.repeat_cancel("nightly") for _ in range(2)] == [1, 0]
    assert await queue.state() == {}


async def test_advance_leaves_it_alone(plain: Plain, queue: Queue) -> None:
    """It answers absent and makes no member of the registry of periods, where a Pump would find no period."""
    await queue.put(NIGHTLY)

    assert await plain.repeat_advance("nightly", 9) == 0

    assert await queue.state() == NIGHTLY


async def test_what_is_no_number_is_refused_before_the_record(plain: Plain, queue: Queue) -> None:
    """No record without a place in the registry is left behind."""
    with pytest.raises(ServerError, match="first_at must be a number"):
        await plain.cron_register("nightly", "0 3 * * *", "UTC", "report", "soon")

    assert await queue.state() == {}
