"""lane_limit: a lane leaves the ring at its limit, and returns below it."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.errors import ServerError
from tests.support.control import Control
from tests.support.own import complete, lane, merged
from tests.support.plain import GROUP, Queue, State, job

TWO_IN_HAND: State = {"gactive": {GROUP: "2"}}


@pytest.mark.parametrize("n", [2, 1, 0])
async def test_at_or_over_the_limit_it_is_off_the_ring(control: Control, queue: Queue, n: int) -> None:
    """With two in hand a limit of two, one and none take the lane off; what is in hand goes on."""
    await queue.put(merged(lane(1), TWO_IN_HAND))

    assert await control.lane_limit(n) == 1

    assert await queue.state() == merged(lane(1, on_ring=False), TWO_IN_HAND, {"glimit": {GROUP: str(n)}})


@pytest.mark.parametrize(("n", "glimit"), [(3, {"glimit": {GROUP: "3"}}), ("", {})])
async def test_below_the_limit_it_returns(control: Control, queue: Queue, n: Any, glimit: State) -> None:
    """A limit that is raised, or taken away, puts the lane back on the ring with a token."""
    await queue.put(merged(lane(1, on_ring=False), TWO_IN_HAND, {"glimit": {GROUP: "2"}}))

    assert await control.lane_limit(n) == 1

    assert await queue.state() == merged(lane(1), TWO_IN_HAND, glimit, {"wake": ["1"]})


@pytest.mark.parametrize("state", [TWO_IN_HAND, lane(1, on_ring=False) | {"paused": {GROUP}}])
async def test_an_empty_or_paused_lane_is_not_put_on_the_ring(control: Control, queue: Queue, state: State) -> None:
    """The limit is written, and that is all."""
    await queue.put(state)

    await control.lane_limit(9)

    assert await queue.state() == state | {"glimit": {GROUP: "9"}}


async def test_the_limit_holds_over_claims_and_endings(control: Control, queue: Queue) -> None:
    """Two of three are taken, the lane leaves the ring; one ends, and the third can be had."""
    await queue.put(lane(1, 2, 3))
    await control.lane_limit(2)

    claim = await control.claim_many(9)
    assert claim.ids == [job(1), job(2)]
    assert "ring" not in await queue.state()
    await control.settle(complete(job(1), claim.jobs[0].held, GROUP))

    assert (await queue.state())["ring"] == [GROUP]
    assert (await control.claim_many(9)).ids == [job(3)]


async def test_what_is_no_number_is_refused(control: Control, queue: Queue) -> None:
    """Nothing is written."""
    await queue.put(lane(1))

    with pytest.raises(ServerError, match="number"):
        await control.lane_limit("many")

    assert await queue.state() == lane(1)
