"""lane_claim: the head of the next lane on the ring, one step of rotation per claim."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.errors import ServerError
from tests.support.plain import GROUP, OTHER_GROUP, Plain, Queue, Within, job, row

LANE, OTHER_LANE = f"g:{GROUP}:pending", f"g:{OTHER_GROUP}:pending"


def lanes(**more: Any) -> dict[str, Any]:
    """Jobs 1 and 2 in one lane, 3 in another, both on the ring."""
    groups = {1: GROUP, 2: GROUP, 3: OTHER_GROUP}
    rows = {f"job:{job(n)}": row(group=group) for n, group in groups.items()}
    return rows | {LANE: {job(1): 0, job(2): 0}, OTHER_LANE: {job(3): 0}, "ring": [GROUP, OTHER_GROUP]} | more


async def test_takes_the_head_and_rotates(plain: Plain, queue: Queue) -> None:
    """Lane by lane, oldest mint first; a slot is counted; a lane that is emptied leaves the ring."""
    await queue.put(lanes())
    before = await queue.now_ms()

    assert await plain.lane_claim(30_000) == [job(1), "x", 1, GROUP]

    deadline = Within(before + 30_000, await queue.now_ms() + 30_000)
    first = lanes(ring=[OTHER_GROUP, GROUP]) | {
        f"job:{job(1)}": row("active", 1, group=GROUP),
        LANE: {job(2): 0},
        "active": {job(1): deadline},
        "gactive": {GROUP: "1"},
    }
    assert await queue.state() == first

    assert await plain.lane_claim() == [job(3), "x", 1, OTHER_GROUP]
    assert await plain.lane_claim() == [job(2), "x", 1, GROUP]
    assert await plain.lane_claim() == []
    state = await queue.state()
    assert set(state["active"]) == {job(1), job(2), job(3)}
    assert state["gactive"] == {GROUP: "2", OTHER_GROUP: "1"}
    assert "ring" not in state


async def test_a_lane_that_becomes_full_leaves_the_ring(plain: Plain, queue: Queue) -> None:
    """Limit 1: after one claim its second job waits for the slot."""
    await queue.put(lanes(glimit={GROUP: "1"}))

    assert await plain.lane_claim() == [job(1), "x", 1, GROUP]

    state = await queue.state()
    assert state["ring"] == [OTHER_GROUP]
    assert state[LANE] == {job(2): 0}


@pytest.mark.parametrize(
    "hindrance",
    [{"paused": {GROUP}}, {"glimit": {GROUP: "1"}, "gactive": {GROUP: "1"}}, {LANE: None}],
    ids=["paused", "full", "hollow"],
)
async def test_a_lane_that_cannot_serve_falls_off_and_does_not_end_the_claim(
    plain: Plain, queue: Queue, hindrance: dict[str, Any]
) -> None:
    """The next lane's job is handed out in the same call."""
    await queue.put({name: value for name, value in lanes(**hindrance).items() if value is not None})

    assert await plain.lane_claim() == [job(3), "x", 1, OTHER_GROUP]

    assert "ring" not in await queue.state()


async def test_a_limit_that_is_no_number_limits_nothing(plain: Plain, queue: Queue) -> None:
    """As for every other verb: whatever another client has written there, the lane is served."""
    await queue.put(lanes(glimit={GROUP: "few"}))

    assert await plain.lane_claim() == [job(1), "x", 1, GROUP]


async def test_a_ring_of_hollow_lanes_is_cleared(plain: Plain, queue: Queue) -> None:
    """Nothing to hand out: an empty answer, and nobody walks that ring again."""
    await queue.put({"ring": [GROUP, OTHER_GROUP]})

    assert await plain.lane_claim() == []

    assert await queue.state() == {}


async def test_a_row_that_is_gone_gets_its_lane_as_group(plain: Plain, queue: Queue) -> None:
    """No payload; the group is written, so that whoever ends it frees the slot."""
    await queue.put({LANE: {job(1): 0}, "ring": [GROUP]})

    assert await plain.lane_claim() == [job(1), None, 1, GROUP]

    assert (await queue.state())[f"job:{job(1)}"] == row("active", 1, payload=None, group=GROUP)
    assert await plain.complete(job(1), 1) == 1
    assert await queue.state() == {"metrics:completed": {"count": "1"}}


async def test_flat_jobs_are_not_served(plain: Plain, queue: Queue) -> None:
    """The ring is empty, flat pending is not: nothing, and nothing is written."""
    await plain.enqueue(job(1))
    before = await queue.state()

    assert await plain.lane_claim() == []

    assert await queue.state() == before


async def test_attempts_that_are_no_number_refuse_before_anything_moves(plain: Plain, queue: Queue) -> None:
    """A row that somebody has spoilt raises; ring, lane and counters are as they were."""
    await queue.put(lanes() | {f"job:{job(1)}": row(group=GROUP) | {"attempts": "many"}})
    before = await queue.state()

    with pytest.raises(ServerError, match="integer"):
        await plain.lane_claim()

    assert await queue.state() == before
