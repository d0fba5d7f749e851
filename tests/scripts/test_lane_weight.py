"""lane_weight and lane_claim_weighted: a lane's share of each turn."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.errors import ServerError
from tests.support.control import Control
from tests.support.own import lane, merged
from tests.support.plain import GROUP, OTHER_GROUP, Queue, State, Within, job, row

LEASE_MS = 30_000


async def test_a_weight_is_written_and_one_is_none(control: Control, queue: Queue) -> None:
    """A weight of 1 is what every lane has: the field goes."""
    await queue.put({"gweight": {OTHER_GROUP: "2"}})

    assert await control.lane_weight(3) == 1
    assert await queue.state() == {"gweight": {OTHER_GROUP: "2", GROUP: "3"}}
    assert await control.lane_weight(1) == 1

    assert await queue.state() == {"gweight": {OTHER_GROUP: "2"}}


@pytest.mark.parametrize("w", [0, -1, "heavy", ""])
async def test_a_weight_below_one_is_refused(control: Control, queue: Queue, w: Any) -> None:
    """Nothing is written."""
    with pytest.raises(ServerError, match="1 or more"):
        await control.lane_weight(w)

    assert await queue.state() == {}


async def test_a_limit_that_is_no_number_limits_nothing(control: Control, queue: Queue) -> None:
    """As for every other verb: whatever another client has written there, the lane is served."""
    await queue.put(merged(lane(1), {"glimit": {GROUP: "few"}}))

    assert [one[0] for one in await control.lane_claim_weighted()] == [job(1)]


async def test_heads_by_weight_then_the_next_lane(control: Control, queue: Queue) -> None:
    """Three of a lane of weight 3 under one lease, then one of the other, then the first again."""
    state = merged(lane(1, 2, 3, 4), lane(11, 12, group=OTHER_GROUP), {"gweight": {GROUP: "3"}})
    await queue.put(state)
    before = await queue.now_ms()

    first = await control.lane_claim_weighted()

    assert first == [[job(n), "x", 1, GROUP] for n in (1, 2, 3)]
    deadline = Within(before + LEASE_MS, await queue.now_ms() + LEASE_MS)
    after = await queue.state()
    assert after == state | {
        **{f"job:{job(n)}": row("active", 1, group=GROUP) for n in (1, 2, 3)},
        "active": {job(n): deadline for n in (1, 2, 3)},
        f"g:{GROUP}:pending": {job(4): 0},
        "gactive": {GROUP: "3"},
        "ring": [OTHER_GROUP, GROUP],
    }
    assert len(set(after["active"].values())) == 1
    assert [one[0] for one in await control.lane_claim_weighted()] == [job(11)]
    assert [one[0] for one in await control.lane_claim_weighted()] == [job(4)]
    assert (await queue.state())["ring"] == [OTHER_GROUP]


@pytest.mark.parametrize(
    ("bound", "served"),
    [
        ({"gweight": {GROUP: "2"}}, 2),
        ({"gweight": {GROUP: "9"}}, 3),
        ({"gweight": {GROUP: "9"}, "glimit": {GROUP: "2"}}, 2),
        ({"gweight": {GROUP: "9"}, "glimit": {GROUP: "3"}, "gactive": {GROUP: "2"}}, 1),
        ({"gweight": {GROUP: "none"}}, 1),
        ({}, 1),
    ],
)
async def test_min_of_weight_depth_and_room(control: Control, queue: Queue, bound: State, served: int) -> None:
    """However much the weight says; a weight that is no number is 1."""
    await queue.put(lane(1, 2, 3) | bound)

    assert [one[0] for one in await control.lane_claim_weighted()] == [job(n) for n in range(1, served + 1)]


async def test_a_lane_that_is_emptied_or_full_leaves_the_ring(control: Control, queue: Queue) -> None:
    """Neither is rotated back."""
    await queue.put(merged(lane(1), lane(11, 12, group=OTHER_GROUP), {"glimit": {OTHER_GROUP: "1"}}))

    await control.lane_claim_weighted()
    assert (await queue.state())["ring"] == [OTHER_GROUP]
    await control.lane_claim_weighted()

    state = await queue.state()
    assert "ring" not in state
    assert state["gactive"] == {GROUP: "1", OTHER_GROUP: "1"}


@pytest.mark.parametrize(
    "head",
    [
        {"ring": [GROUP]},
        lane(1) | {"paused": {GROUP}},
        lane(1) | {"glimit": {GROUP: "1"}, "gactive": {GROUP: "1"}},
    ],
    ids=["hollow", "paused", "full"],
)
async def test_what_cannot_be_served_falls_off_the_ring(control: Control, queue: Queue, head: State) -> None:
    """The one behind it is served."""
    await queue.put(merged(head, lane(11, 12, group=OTHER_GROUP)))

    assert [one[0] for one in await control.lane_claim_weighted()] == [job(11)]

    assert (await queue.state())["ring"] == [OTHER_GROUP]


async def test_nothing_to_serve(control: Control, queue: Queue) -> None:
    """No ring, and a ring of hollow lanes, which is cleaned."""
    assert await control.lane_claim_weighted() == []
    await queue.put({"ring": [GROUP, OTHER_GROUP]})

    assert await control.lane_claim_weighted() == []

    assert await queue.state() == {}


async def test_a_member_without_a_row(control: Control, queue: Queue) -> None:
    """It is claimed without payload, with its lane written on the row."""
    await queue.put({f"g:{GROUP}:pending": {job(1): 0}, "ring": [GROUP]})

    assert await control.lane_claim_weighted() == [[job(1), None, 1, GROUP]]

    assert (await queue.state())[f"job:{job(1)}"] == {"state": "active", "attempts": "1", "group": GROUP}
