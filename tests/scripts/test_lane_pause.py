"""lane_pause and lane_resume: a lane leaves the ring, and returns where it can be served."""

from __future__ import annotations

import pytest

from tests.support.control import Control
from tests.support.own import lane, merged
from tests.support.plain import GROUP, OTHER_GROUP, Queue, State, job


async def test_a_paused_lane_is_off_the_ring(control: Control, queue: Queue) -> None:
    """Its jobs and what is in hand stay; the other lanes too. Once more changes nothing."""
    before = merged(lane(1, 2), lane(3, group=OTHER_GROUP), {"gactive": {GROUP: "1"}})
    await queue.put(before)

    assert [await control.lane_pause(), await control.lane_pause()] == [1, 1]

    assert await queue.state() == before | {"paused": {GROUP}, "ring": [OTHER_GROUP]}


async def test_all_entries_of_a_lane_leave_the_ring(control: Control, queue: Queue) -> None:
    """A lane that stands twice is not left there once."""
    await queue.put(lane(1) | {"ring": [GROUP, OTHER_GROUP, GROUP]})

    await control.lane_pause()

    assert (await queue.state())["ring"] == [OTHER_GROUP]


async def test_nobody_serves_a_paused_lane(control: Control, queue: Queue) -> None:
    """Neither claim takes of it, and what comes in does not put it back on the ring."""
    await queue.put(lane(1) | {"meta": {"flat_turn": "0"}})
    await control.lane_pause()
    await control.lane_enqueue(job(2))

    assert await control.lane_claim() == []
    assert await control.lane_claim_weighted() == []
    assert (await control.claim_many(9)).ids == []
    assert (await queue.state())[f"g:{GROUP}:pending"] == {job(1): 0, job(2): 0}


async def test_resumed_it_is_served_again(control: Control, queue: Queue) -> None:
    """Back on the ring, behind the others, with one token."""
    before = merged(lane(1, on_ring=False), lane(3, group=OTHER_GROUP))
    await queue.put(before | {"paused": {GROUP, OTHER_GROUP}})

    assert await control.lane_resume() == 1

    assert await queue.state() == before | {"paused": {OTHER_GROUP}, "ring": [OTHER_GROUP, GROUP], "wake": ["1"]}


@pytest.mark.parametrize(
    "state",
    [
        {},
        lane(1, on_ring=False) | {"glimit": {GROUP: "1"}, "gactive": {GROUP: "1"}},
        lane(1, on_ring=False) | {"glimit": {GROUP: "0"}},
    ],
    ids=["empty", "full", "held at 0"],
)
async def test_a_lane_that_cannot_be_served_stays_off_the_ring(control: Control, queue: Queue, state: State) -> None:
    """Not paused any more, and no token: nobody wakes for nothing."""
    await queue.put(state | {"paused": {GROUP}})

    assert await control.lane_resume() == 1

    assert await queue.state() == state


async def test_resuming_a_lane_that_is_on_the_ring_adds_no_entry(control: Control, queue: Queue) -> None:
    """It was not paused at all: the ring is as it was."""
    await queue.put(lane(1))

    await control.lane_resume()

    assert await queue.state() == lane(1) | {"wake": ["1"]}
