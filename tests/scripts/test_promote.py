"""promote: due jobs leave the schedule for pending or their lane; the seeds' counts and skeleton rows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.native import SCRIPT_ALONE
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, Plain, Queue, job, row

LANE = f"g:{GROUP}:pending"
ROW = f"job:{job(1)}"


def due(*numbers: int, score: int = 1) -> dict[str, Any]:
    """Scheduled jobs whose time has come."""
    return {f"job:{job(n)}": row("scheduled") for n in numbers} | {"schedule": {job(n): score for n in numbers}}


async def test_releases_what_is_due_and_nothing_else(plain: Plain, queue: Queue) -> None:
    """Two due, one negative and one past; one an hour off stays fenced. Flat ones get their `ready` tokens."""
    await queue.put(due(1, score=-9) | {f"job:{job(n)}": row("scheduled") for n in (2, 3)})
    now = await queue.now_ms()
    await queue.put({"schedule": {job(2): now, job(3): now + 3_600_000}})

    assert await plain.promote() == 2
    assert await plain.promote() == 0

    assert await queue.state() == {
        f"job:{job(1)}": row(),
        f"job:{job(2)}": row(),
        f"job:{job(3)}": row("scheduled"),
        "pending": {job(1): 0, job(2): 0},
        "schedule": {job(3): now + 3_600_000},
        "ready": ["1", "1"],
    }


async def test_a_pass_is_bounded_by_the_batch(plain: Plain, queue: Queue) -> None:
    """Five due, batch 2: 2, 2, 1, 0, earliest run-at first."""
    await queue.put({f"job:{job(n)}": row("scheduled") for n in range(5)})
    await queue.put({"schedule": {job(n): 10 - n for n in range(5)}})

    assert await plain.promote(2) == 2
    assert (await queue.state())["pending"] == {job(3): 0, job(4): 0}
    assert [await plain.promote(2) for _ in range(3)] == [2, 1, 0]


async def test_at_most_64_tokens(plain: Plain, queue: Queue) -> None:
    """Two hundred at once wake at most 64 waits."""
    await queue.put(due(*range(200)))

    assert await plain.promote(500) == 200

    state = await queue.state()
    assert len(state["pending"]) == 200
    assert state["ready"] == ["1"] * 64


@SCRIPT_ALONE
async def test_a_ghost_gets_a_skeleton_row(plain: Plain, queue: Queue) -> None:
    """A scheduled id without a row is released and counted like any other, as the seeds' script does it."""
    await queue.put({"schedule": {job(1): 1}})

    assert await plain.promote() == 1

    assert await queue.state() == {ROW: {"state": "pending"}, "pending": {job(1): 0}, "ready": ["1"]}


async def test_a_released_job_keeps_the_rest_of_its_row(plain: Plain, queue: Queue) -> None:
    """Only the state changes: attempts, failures, reason and `settled` stay."""
    fields: dict[str, Any] = {"failures": 1, "last_error": "boom", "settled": "3:scheduled"}
    await queue.put({ROW: row("scheduled", 3, **fields), "schedule": {job(1): 1}})

    await plain.promote()

    assert (await queue.state())[ROW] == row("pending", 3, **fields)


async def test_grouped_jobs_rejoin_their_lanes(plain: Plain, queue: Queue) -> None:
    """Each to its own lane, both lanes on the ring, a wake token each and none for flat consumers."""
    await queue.put(
        {
            f"job:{job(1)}": row("scheduled", group=GROUP),
            f"job:{job(2)}": row("scheduled", group=OTHER_GROUP),
            "schedule": {job(1): 1, job(2): 2},
        }
    )

    assert await plain.promote() == 2

    assert await queue.state() == {
        f"job:{job(1)}": row(group=GROUP),
        f"job:{job(2)}": row(group=OTHER_GROUP),
        LANE: {job(1): 0},
        f"g:{OTHER_GROUP}:pending": {job(2): 0},
        "ring": [GROUP, OTHER_GROUP],
        "wake": ["1", "1"],
    }


@pytest.mark.parametrize(
    ("lane", "ring"),
    [
        ({"paused": {GROUP}}, None),
        ({"glimit": {GROUP: "1"}, "gactive": {GROUP: "1"}}, None),
        ({"ring": [GROUP]}, [GROUP]),
    ],
    ids=["paused", "full", "there already"],
)
async def test_a_lane_that_cannot_be_served_stays_off_the_ring(
    plain: Plain, queue: Queue, lane: dict[str, Any], ring: list[str] | None
) -> None:
    """The job is in its lane all the same; a token only where the lane can be served."""
    await queue.put({ROW: row("scheduled", group=GROUP), "schedule": {job(1): 1}} | lane)

    assert await plain.promote() == 1

    state = await queue.state()
    assert state[LANE] == {job(1): 0}
    assert state.get("ring") == ring
    assert ("wake" in state) == (ring is not None)


@SCRIPT_ALONE
async def test_many_lanes_at_once(plain: Plain, queue: Queue) -> None:
    """Twelve lanes, the first with two jobs: each that can be served is on the ring once, in the order of jobs, with
    a token for each job; of those that are paused or full nothing is said.
    """
    groups = [f"GRP{n:011d}" for n in range(20, 32)]
    there, paused, full = groups[3], groups[5], groups[7]
    jobs = {job(n): groups[n % 12] for n in range(13)}
    await queue.put(
        {
            **{f"job:{id}": row("scheduled", group=group) for id, group in jobs.items()},
            "schedule": {id: n for n, id in enumerate(jobs, 1)},
            "ring": [OTHER_GROUP, there],
            "paused": {paused},
            "glimit": {full: "1", there: "2"},
            "gactive": {full: "1", there: "1"},
        }
    )

    assert await plain.promote() == 13

    state = await queue.state()
    assert state["ring"] == [OTHER_GROUP, there, *(g for g in groups if g not in {there, paused, full})]
    assert state["wake"] == ["1"] * 11
    assert all(job(n) in state[f"g:{group}:pending"] for n, group in enumerate([*groups, groups[0]]))


async def test_an_id_under_a_live_lease_is_passed_over(plain: Plain, queue: Queue) -> None:
    """A foreign late retry left it in the schedule: it leaves that, counted, and its holder keeps it."""
    await queue.put({ROW: row("active", 3), "active": {job(1): FAR_MS}, "schedule": {job(1): 1}})

    assert await plain.promote() == 1

    assert await queue.state() == {ROW: row("active", 3), "active": {job(1): FAR_MS}}


async def test_an_id_whose_lease_ran_out_leaves_active_too(plain: Plain, queue: Queue) -> None:
    """In one set afterwards, and its slot is freed once."""
    await queue.put(
        {
            ROW: row("active", 3, group=GROUP, held="3:ab"),
            "active": {job(1): 1},
            "schedule": {job(1): 1},
            "gactive": {GROUP: "1"},
        }
    )

    assert await plain.promote() == 1

    assert await queue.state() == {
        ROW: row("pending", 3, group=GROUP, held="3:ab"),
        LANE: {job(1): 0},
        "ring": [GROUP],
        "wake": ["1"],
    }


async def test_a_parent_that_waits_is_only_dropped(plain: Plain, queue: Queue) -> None:
    """Its id was left in the schedule by a foreign client, of a row before."""
    waits = {ROW: row("awaiting_children"), f"{ROW}:dependencies": "1"}
    await queue.put(waits | {"schedule": {job(1): 1}})

    assert await plain.promote() == 1

    assert await queue.state() == waits


async def test_a_dead_row_is_only_dropped(plain: Plain, queue: Queue) -> None:
    """What was buried while it stood in the schedule is not brought back to life."""
    await queue.put({ROW: row("dead", 3), "dead": {job(1): 0}, "schedule": {job(1): 1}})

    assert await plain.promote() == 1

    assert await queue.state() == {ROW: row("dead", 3), "dead": {job(1): 0}}
