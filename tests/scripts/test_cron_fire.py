"""cron_fire: a due run of a calendar is claimed, enqueued and moved on in one script, once for the whole fleet."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.errors import KindRefused, ServerError
from tests.support.own import Own
from tests.support.plain import Queue, State, job, row

BOTH = {"every_ms": "5", "template": "t", "cron": "0 3 * * *", "tz": "UTC"}
CALENDAR = ("0 3 * * *", "UTC")


def registered(due: int = 1_000, **fields: str) -> State:
    """A registration and its record."""
    record = {"cron": CALENDAR[0], "tz": CALENDAR[1], "template": "report"} | fields
    return {"cron": {"nightly": due}, "repeat:nightly": record}


def told(id: str, due: Any = 1_000, after: Any = 5_000, name: str = "nightly") -> tuple[Any, ...]:
    """What a host says of a name."""
    return (name, id, due, after, *CALENDAR)


async def test_fires_once_and_moves_on(own: Own, queue: Queue) -> None:
    """A fresh job with the template, a token wakes somebody, the next run is the host's; a second Pump has nothing."""
    await queue.put(registered())

    assert await own.cron_fire(1_030, *told(job(1))) == ["fired", "5000"]

    expected = registered(5_000) | {f"job:{job(1)}": row(payload="report"), "pending": {job(1): 0}, "ready": ["1"]}
    assert await queue.state() == expected
    assert await own.cron_fire(1_030, *told(job(2))) == ["not_due", "5000"]
    assert await queue.state() == expected


@pytest.mark.parametrize(
    ("state", "words", "now", "answer"),
    [
        (registered(2_000), told(job(1), due=2_000), 1_999, "not_due"),
        (registered(2_000), told(job(1), due=1_000), 9_000, "not_due"),
        (registered(cron="0 4 * * *"), told(job(1)), 9_000, "changed"),
        (registered(tz="Asia/Tokyo"), told(job(1)), 9_000, "changed"),
        (registered(), told(job(1), after=1_000), 9_000, "changed"),
        (registered() | {f"job:{job(1)}": row("active", 3)}, told(job(1)), 9_000, "duplicate"),
        (registered(), told(job(1), name="other"), 9_000, "absent"),
    ],
)
async def test_what_does_not_fire_writes_nothing(
    own: Own, queue: Queue, state: State, words: tuple[Any, ...], now: int, answer: str
) -> None:
    """Not due yet, moved by somebody else, another calendar than the host has read, a run that would not move on, an id
    that is taken, a name that nobody knows.
    """
    await queue.put(state)
    before = await queue.state()

    answers = await own.cron_fire(now, *words)

    assert answers[0] == answer
    assert await queue.state() == before


@pytest.mark.parametrize("record", [{}, {"cron": "0 3 * * *", "tz": "UTC"}, {"every_ms": "5", "template": "t"}, BOTH])
async def test_a_record_that_cannot_run_is_dropped(own: Own, queue: Queue, record: dict[str, str]) -> None:
    """Cancelled by a client that knows no calendars, perhaps registered again with a period: the place goes."""
    await queue.put({"cron": {"nightly": 1_000}} | ({"repeat:nightly": record} if record else {}))

    assert await own.cron_fire(9_000, *told(job(1))) == ["absent", ""]

    assert "cron" not in await queue.state()
    assert "pending" not in await queue.state()


async def test_the_same_name_twice_and_one_id_twice(own: Own, queue: Queue) -> None:
    """Once per run, and no row is written over."""
    await queue.put(registered() | {"repeat:weekly": registered()["repeat:nightly"]})
    await queue.put({"cron": {"weekly": 1_000}})

    answers = await own.cron_fire(9_000, *told(job(1)), *told(job(2)), *told(job(1), name="weekly"))

    assert answers == ["fired", "not_due", "duplicate", "1000"]
    assert (await queue.state())["pending"] == {job(1): 0}


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ((*told(job(1)), *told(job(2, "USR"))), KindRefused),
        ((*told(job(1)), "weekly"), KindRefused),
        (told(job(1), due="noon"), ServerError),
        (told(job(1), after=""), ServerError),
    ],
)
async def test_what_is_wrong_is_refused_whole(
    own: Own, queue: Queue, words: tuple[Any, ...], refused: type[Exception]
) -> None:
    """An id of another namespace, a moment that is none: nothing of the call is written."""
    await queue.put(registered())
    before = await queue.state()

    with pytest.raises(refused):
        await own.cron_fire(9_000, *words)

    assert await queue.state() == before


async def test_no_time_is_refused(own: Own, queue: Queue) -> None:
    """Before anything is written."""
    with pytest.raises(ServerError, match="milliseconds"):
        await own.cron_fire("noon", *told(job(1)))

    assert await queue.state() == {}
