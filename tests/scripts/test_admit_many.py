"""admit_many: flat, grouped and scheduled jobs in one call, each as its own verb would admit it."""

from __future__ import annotations

import pytest

from echomq_worker.errors import ServerError
from tests.support.plain import GROUP, OTHER_GROUP, Plain, Queue, Within, job, row

NOW = ("", "", "")


async def test_each_kind_goes_where_its_own_verb_puts_it(plain: Plain, queue: Queue) -> None:
    """Flat, a lane, in, at, and a scheduled job of a lane, whose promotion brings it there."""
    before = await queue.now_ms()
    values = [
        *(job(1), "a", *NOW),
        *(job(2), "b", GROUP, "", ""),
        *(job(3), "c", "", "in", 2_000),
        *(job(4), "d", "", "at", -7),
        *(job(5), "e", OTHER_GROUP, "at", 1),
    ]

    assert await plain.admit_many(*values) == [1] * 5

    state = await queue.state()
    assert state == {
        f"job:{job(1)}": row(payload="a"),
        f"job:{job(2)}": row(payload="b", group=GROUP),
        f"job:{job(3)}": row("scheduled", payload="c"),
        f"job:{job(4)}": row("scheduled", payload="d"),
        f"job:{job(5)}": row("scheduled", payload="e", group=OTHER_GROUP),
        "pending": {job(1): 0},
        f"g:{GROUP}:pending": {job(2): 0},
        "schedule": {
            job(3): Within(before + 2_000, await queue.now_ms() + 2_000),
            job(4): -7,
            job(5): 1,
        },
        "ring": [GROUP],
        "wake": ["1"],
        "ready": ["1"],
    }
    assert await plain.promote() == 2
    assert (await queue.state())[f"g:{OTHER_GROUP}:pending"] == {job(5): 0}


async def test_each_gets_its_verdict_in_order(plain: Plain, queue: Queue) -> None:
    """Duplicates of a row that stood and within the call, and foreign ids, hold up no other and write nothing."""
    await queue.put({f"job:{job(1)}": row("active", 1, "old"), "active": {job(1): 5}})

    values = [job(1), "new", GROUP, "", "", job(2), "a", *NOW, job(2), "b", GROUP, "in", 5, job(3, "USR"), "c", *NOW]
    assert await plain.admit_many(*values) == [0, 1, 0, -1]

    assert await queue.state() == {
        f"job:{job(1)}": row("active", 1, "old"),
        f"job:{job(2)}": row(payload="a"),
        "active": {job(1): 5},
        "pending": {job(2): 0},
        "ready": ["1"],
    }


async def test_a_closed_lane_takes_jobs_without_ring_and_token(plain: Plain, queue: Queue) -> None:
    """Paused: the jobs wait in the lane."""
    await queue.put({"paused": {GROUP}})

    assert await plain.admit_many(job(1), "a", GROUP, "", "", job(2), "b", GROUP, "", "") == [1, 1]

    assert set(await queue.state()) == {
        f"job:{job(1)}",
        f"job:{job(2)}",
        f"g:{GROUP}:pending",
        "paused",
    }


async def test_one_bad_value_refuses_the_call_before_its_first_write(plain: Plain, queue: Queue) -> None:
    """The host checks numbers; should one come through, no job of the call is admitted."""
    with pytest.raises(ServerError, match="value must be a number"):
        await plain.admit_many(job(1), "a", *NOW, job(2), "b", "", "in", "soon")

    assert await queue.state() == {}
