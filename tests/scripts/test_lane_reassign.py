"""lane_reassign: a pending job moves to another lane, at its place in mint order there."""

from __future__ import annotations

import pytest

from tests.support.control import Control
from tests.support.own import flat, lane, merged
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, Queue, State, job, row

ROW = f"job:{job(2)}"


async def test_from_one_lane_to_another(control: Control, queue: Queue) -> None:
    """Between an older and a younger one; its row names the new lane, both lanes are served."""
    await queue.put(merged(lane(2, 4), lane(1, 3, group=OTHER_GROUP)))

    assert await control.lane_reassign(job(2)) == 1

    assert await queue.state() == merged(
        lane(4), lane(1, 3, group=OTHER_GROUP), {f"g:{OTHER_GROUP}:pending": {job(2): 0}}
    ) | {ROW: row(group=OTHER_GROUP), "wake": ["1"]}
    assert [(await control.lane_claim())[0] for _ in range(4)] == [job(n) for n in (4, 1, 2, 3)]


async def test_the_last_one_leaves_no_hollow_lane_on_the_ring(control: Control, queue: Queue) -> None:
    """The lane that it came from is gone with its entry; the new one is offered."""
    await queue.put(lane(2))

    assert await control.lane_reassign(job(2)) == 1

    assert await queue.state() == lane(2, group=OTHER_GROUP) | {"wake": ["1"]}


@pytest.mark.parametrize(
    "shut", [{"paused": {OTHER_GROUP}}, {"glimit": {OTHER_GROUP: "1"}, "gactive": {OTHER_GROUP: "1"}}]
)
async def test_into_a_lane_that_is_shut(control: Control, queue: Queue, shut: State) -> None:
    """It waits there; the lane stays off the ring, and nobody is woken."""
    await queue.put(merged(lane(2), shut))

    assert await control.lane_reassign(job(2)) == 1

    assert await queue.state() == lane(2, group=OTHER_GROUP, on_ring=False) | shut


async def test_a_flat_job_gets_a_lane(control: Control, queue: Queue) -> None:
    """Out of flat pending, into the lane."""
    await queue.put(flat(2, 3))

    assert await control.lane_reassign(job(2)) == 1

    assert await queue.state() == merged(flat(3), lane(2, group=OTHER_GROUP)) | {"wake": ["1"]}


async def test_a_grouped_job_that_stands_in_flat_pending(control: Control, queue: Queue) -> None:
    """A foreign reprocess leaves it there: it moves all the same, also to the lane that its row names."""
    await queue.put({ROW: row(group=GROUP), "pending": {job(2): 0}})

    assert await control.lane_reassign(job(2), GROUP) == 1

    assert await queue.state() == lane(2) | {"wake": ["1"]}


async def test_where_it_is_already(control: Control, queue: Queue) -> None:
    """0, and nothing is written."""
    await queue.put(lane(2))

    assert await control.lane_reassign(job(2), GROUP) == 0

    assert await queue.state() == lane(2)


@pytest.mark.parametrize(
    ("state", "reply"),
    [
        ({}, -1),
        ({ROW: row("active", 1, group=GROUP), "active": {job(2): FAR_MS}, "gactive": {GROUP: "1"}}, -2),
        ({ROW: row("scheduled", group=GROUP), "schedule": {job(2): FAR_MS}}, -2),
        ({ROW: row("dead"), "dead": {job(2): 0}}, -2),
        ({ROW: row("awaiting_children")}, -2),
    ],
    ids=["gone", "active", "scheduled", "dead", "waits for children"],
)
async def test_what_is_not_pending_stays(control: Control, queue: Queue, state: State, reply: int) -> None:
    """The answer says why, and nothing is written."""
    await queue.put(state)

    assert await control.lane_reassign(job(2)) == reply

    assert await queue.state() == state
