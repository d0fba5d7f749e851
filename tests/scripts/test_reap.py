"""reap: expired leases come back to pending or their lane, at most 100 a pass; the next claim counts the crash."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.plain import FAR_MS, GROUP, Plain, Queue, job, row

LANE = f"g:{GROUP}:pending"
ROW = f"job:{job(1)}"


async def test_returns_what_expired_and_nothing_else(plain: Plain, queue: Queue) -> None:
    """The row is pending with its token; `held`, `crashes`, failures and the lock stay; a live lease is left alone."""
    fields: dict[str, Any] = {"held": "3:ab", "crashes": "1:3", "failures": 1}
    live = row("active", 1)
    await queue.put({ROW: row("active", 3, **fields), f"job:{job(2)}": live})
    await queue.put({"active": {job(1): await queue.now_ms() - 1, job(2): FAR_MS}})

    assert await plain.reap() == 1
    assert await plain.reap() == 0

    assert await queue.state() == {
        ROW: row("pending", 3, **fields),
        f"job:{job(2)}": live,
        "pending": {job(1): 0},
        "active": {job(2): FAR_MS},
        "ready": ["1"],
    }


async def test_at_most_100_a_pass(plain: Plain, queue: Queue) -> None:
    """Two hundred and one: 100, 100, 1, and every one is back."""
    await queue.put({f"job:{job(n)}": row("active", 1) for n in range(201)})
    await queue.put({"active": {job(n): 1 for n in range(201)}})

    assert [await plain.reap() for _ in range(4)] == [100, 100, 1, 0]

    assert list((await queue.state())["pending"]) == [job(n) for n in range(201)]


async def test_a_pass_of_ghosts_is_a_full_pass(plain: Plain, queue: Queue) -> None:
    """What is only dropped counts too, else a loop that repeats full passes would stop in the middle."""
    await queue.put({"active": {job(n): 1 for n in range(150)}})

    assert [await plain.reap() for _ in range(3)] == [100, 50, 0]

    assert await queue.state() == {}


async def test_a_grouped_job_returns_to_its_lane(plain: Plain, queue: Queue) -> None:
    """Its slot is freed, so a lane that was full is on the ring again, with one token."""
    await queue.put(
        {
            ROW: row("active", 3, group=GROUP, held="3:ab"),
            "active": {job(1): 1},
            "gactive": {GROUP: "1"},
            "glimit": {GROUP: "1"},
        }
    )

    assert await plain.reap() == 1

    assert await queue.state() == {
        ROW: row("pending", 3, group=GROUP, held="3:ab"),
        LANE: {job(1): 0},
        "glimit": {GROUP: "1"},
        "ring": [GROUP],
        "wake": ["1"],
    }


async def test_two_jobs_of_one_lane_free_two_slots(plain: Plain, queue: Queue) -> None:
    """Each is decided on fresh values: the counter reaches 0 and goes, the lane is on the ring once."""
    await queue.put({f"job:{job(n)}": row("active", 1, group=GROUP) for n in (1, 2)})
    await queue.put({"active": {job(1): 1, job(2): 2}, "gactive": {GROUP: "2"}, "glimit": {GROUP: "2"}})

    assert await plain.reap() == 2

    assert await queue.state() == {
        f"job:{job(1)}": row("pending", 1, group=GROUP),
        f"job:{job(2)}": row("pending", 1, group=GROUP),
        LANE: {job(1): 0, job(2): 0},
        "glimit": {GROUP: "2"},
        "ring": [GROUP],
        "wake": ["1", "1"],
    }


async def test_a_paused_lane_stays_off_the_ring(plain: Plain, queue: Queue) -> None:
    """The job is back in its lane, nobody is woken."""
    await queue.put({ROW: row("active", 1, group=GROUP), "active": {job(1): 1}, "paused": {GROUP}})
    await queue.put({"gactive": {GROUP: "1"}})

    await plain.reap()

    assert await queue.state() == {ROW: row("pending", 1, group=GROUP), LANE: {job(1): 0}, "paused": {GROUP}}


async def test_a_member_without_a_row_is_only_dropped(plain: Plain, queue: Queue) -> None:
    """No row is made anew, nothing goes to pending, nobody is woken."""
    await queue.put({"active": {job(1): 1}})

    assert await plain.reap() == 1

    assert await queue.state() == {}


async def test_a_parent_that_waits_is_only_dropped(plain: Plain, queue: Queue) -> None:
    """Its id was left in active by a foreign client, of a row before."""
    waits = {ROW: row("awaiting_children"), f"{ROW}:dependencies": "1"}
    await queue.put(waits | {"active": {job(1): 1}})

    assert await plain.reap() == 1

    assert await queue.state() == waits


@pytest.mark.parametrize(("state", "where"), [("dead", "dead"), ("scheduled", "schedule")])
async def test_a_row_that_waits_elsewhere_is_only_dropped(plain: Plain, queue: Queue, state: str, where: str) -> None:
    """A foreign verdict left it in active as well: it leaves that, and its lane gets the slot."""
    await queue.put({ROW: row(state, 3, group=GROUP), "active": {job(1): 1}, where: {job(1): 5}})
    await queue.put({"gactive": {GROUP: "1"}, "glimit": {GROUP: "1"}, LANE: {job(2): 0}})

    assert await plain.reap() == 1

    assert await queue.state() == {
        ROW: row(state, 3, group=GROUP),
        where: {job(1): 5},
        LANE: {job(2): 0},
        "glimit": {GROUP: "1"},
        "ring": [GROUP],
        "wake": ["1"],
    }


async def test_what_comes_back_leaves_the_schedule(plain: Plain, queue: Queue) -> None:
    """An active job that a foreign client left in the schedule too is in pending alone."""
    await queue.put({ROW: row("active", 3), "active": {job(1): 1}, "schedule": {job(1): FAR_MS}})

    assert await plain.reap() == 1

    assert await queue.state() == {ROW: row("pending", 3), "pending": {job(1): 0}, "ready": ["1"]}
