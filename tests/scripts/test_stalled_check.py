"""stalled_check: the counting sweep; a job whose lease ran out goes back, or is dead at max_stalled."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.plain import FAR_MS, GROUP, Plain, Queue, job, row

LANE = f"g:{GROUP}:pending"
ROW = f"job:{job(1)}"


def expired(**fields: Any) -> dict[str, Any]:
    """Job 1 with token 3, its lease run out."""
    return {ROW: row("active", 3, **fields), "active": {job(1): 1}}


async def test_below_the_limit_it_goes_back_counted(plain: Plain, queue: Queue) -> None:
    """Stalled 1 of 2: pending with a token; `held` stays for the next claim to count; a live lease is left alone."""
    await queue.put(expired(held="3:ab"))
    await queue.put({f"job:{job(2)}": row("active", 1), "active": {job(2): FAR_MS}})

    assert await plain.stalled_check(2) == [[job(1)], []]

    assert await queue.state() == {
        ROW: row("pending", 3, held="3:ab", stalled=1),
        f"job:{job(2)}": row("active", 1),
        "active": {job(2): FAR_MS},
        "pending": {job(1): 0},
        "ready": ["1"],
    }


@pytest.mark.parametrize(("stalled", "max_stalled"), [(0, 1), (1, 2), (7, 3)])
async def test_at_the_limit_it_is_dead(plain: Plain, queue: Queue, stalled: int, max_stalled: int) -> None:
    """At max_stalled or more: buried with its reason and counted; held, crashes and the lock are gone."""
    before = {"stalled": stalled} if stalled else {}
    await queue.put(expired(held="3:ab", crashes="1:3", failures=1, **before) | {f"{ROW}:lock": "3"})

    assert await plain.stalled_check(max_stalled) == [[], [job(1)]]

    assert await queue.state() == {
        ROW: row("dead", 3, failures=1, stalled=stalled + 1, last_error="stalled"),
        "dead": {job(1): 0},
        "metrics:failed": {"count": "1"},
    }


async def test_a_pass_is_bounded_by_its_limit(plain: Plain, queue: Queue) -> None:
    """Three expired, limit 2: the earliest deadlines first."""
    await queue.put({f"job:{job(n)}": row("active", 1) for n in (1, 2, 3)})
    await queue.put({"active": {job(1): 3, job(2): 1, job(3): 2}})

    assert await plain.stalled_check(1, 2) == [[], [job(2), job(3)]]

    assert (await queue.state())["active"] == {job(1): 3}


async def test_grouped_jobs_free_their_slots(plain: Plain, queue: Queue) -> None:
    """One goes back to its lane, one dies: two slots are free, the lane is on the ring, the dead one is not in it."""
    await queue.put(
        {
            f"job:{job(1)}": row("active", 1, group=GROUP),
            f"job:{job(2)}": row("active", 1, group=GROUP, stalled=1),
            "active": {job(1): 1, job(2): 2},
            "gactive": {GROUP: "3"},
            "glimit": {GROUP: "3"},
        }
    )

    assert await plain.stalled_check(2) == [[job(1)], [job(2)]]

    state = await queue.state()
    assert state == {
        f"job:{job(1)}": row("pending", 1, group=GROUP, stalled=1),
        f"job:{job(2)}": row("dead", 1, group=GROUP, stalled=2, last_error="stalled"),
        LANE: {job(1): 0},
        "dead": {job(2): 0},
        "gactive": {GROUP: "1"},
        "glimit": {GROUP: "3"},
        "metrics:failed": {"count": "1"},
        "ring": [GROUP],
        "wake": state["wake"],
    }


async def test_a_burial_takes_the_id_out_of_every_set(plain: Plain, queue: Queue) -> None:
    """Left in pending and the schedule too by foreign clients: afterwards it is dead and nothing else."""
    await queue.put(expired() | {"pending": {job(1): 0}, "schedule": {job(1): 5}})

    await plain.stalled_check(1)

    state = await queue.state()
    assert set(state) == {ROW, "dead", "metrics:failed"}


async def test_a_burial_that_empties_a_lane_drops_its_ring_entry(plain: Plain, queue: Queue) -> None:
    """The same in a lane: nobody rotates to a lane without members."""
    await queue.put(expired(group=GROUP) | {LANE: {job(1): 0}, "ring": [GROUP], "gactive": {GROUP: "1"}})

    await plain.stalled_check(1)

    assert set(await queue.state()) == {ROW, "dead", "metrics:failed"}


@pytest.mark.parametrize(
    ("found", "left"),
    [
        ({}, {}),
        ({ROW: row("dead", 3), "dead": {job(1): 0}}, {ROW: row("dead", 3), "dead": {job(1): 0}}),
        (
            {ROW: row("scheduled", 3), "schedule": {job(1): FAR_MS}},
            {ROW: row("scheduled", 3), "schedule": {job(1): FAR_MS}},
        ),
    ],
    ids=["gone", "dead", "scheduled"],
)
async def test_what_cannot_run_is_only_dropped(
    plain: Plain, queue: Queue, found: dict[str, Any], left: dict[str, Any]
) -> None:
    """A row that is gone, dead, or waits in the schedule has not stalled: it leaves active and is in neither list."""
    await queue.put({"active": {job(1): 1}} | found)

    assert await plain.stalled_check(1) == [[], []]

    assert await queue.state() == left
