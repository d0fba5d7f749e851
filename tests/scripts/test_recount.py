"""recount: lanes that a foreign worker left wrong are right again.

Source: protocol section 4 ("Next to a foreign worker": gactive from active, and the ring, cheap and bounded).
"""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from tests.support.foreign import Foreign
from tests.support.own import LEASE_MS, Own, lane, merged
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, QUEUE, Queue, State, job, row


def in_flight(*numbers: int, group: str = GROUP) -> State:
    """Jobs of a lane under a lease."""
    rows: State = {f"job:{job(n)}": row("active", 1, group=group) for n in numbers}
    return rows | {"active": {job(n): FAR_MS for n in numbers}}


RIGHT: dict[str, State] = {
    "nothing at all": {},
    "flat jobs in flight": {f"job:{job(1)}": row("active", 1), "active": {job(1): FAR_MS}},
    "a lane in flight": in_flight(1, 2) | {"gactive": {GROUP: "2"}},
    "a full lane": in_flight(1) | {"gactive": {GROUP: "1"}, "glimit": {GROUP: "1"}} | lane(2, on_ring=False),
    "a paused lane": lane(1, on_ring=False) | {"paused": {GROUP}, "glimit": {GROUP: "5"}},
    "a lane on the ring": merged(in_flight(1), lane(2, 3), {"gactive": {GROUP: "1"}, "glimit": {GROUP: "2"}}),
    "a lease of a row that is gone": {"active": {job(1): FAR_MS}},
}


@pytest.mark.parametrize("name", RIGHT)
async def test_what_is_right_is_left_alone(own: Own, queue: Queue, name: str) -> None:
    """No correction, no token, nothing written."""
    await queue.put(RIGHT[name])

    assert await own.recount() == 0

    assert await queue.state() == RIGHT[name]


async def test_a_slot_that_was_never_given_back(own: Own, queue: Queue) -> None:
    """The counter is what is in active, and the lane that it blocked is on the ring with a token."""
    await queue.put(merged(in_flight(1), lane(2, on_ring=False), {"gactive": {GROUP: "3"}, "glimit": {GROUP: "2"}}))

    assert await own.recount() == 2

    state = await queue.state()
    assert (state["gactive"], state["ring"], state["wake"]) == ({GROUP: "1"}, [GROUP], ["1"])


@pytest.mark.parametrize("stored", ["2", "-1", "x", "1.5"])
async def test_a_counter_of_nobody_goes(own: Own, queue: Queue, stored: str) -> None:
    """Nothing of the group is in flight: there is no counter, whatever stood there."""
    await queue.put({"gactive": {GROUP: stored}})

    assert await own.recount() == 1

    assert await queue.state() == {}


async def test_a_slot_that_was_given_back_twice(own: Own, queue: Queue) -> None:
    """Too low or missing: it is written, and a lane that is full then leaves the ring."""
    await queue.put(merged(in_flight(1, 2), lane(3), {"gactive": {GROUP: "1"}, "glimit": {GROUP: "2"}}))
    await queue.put(in_flight(4, group=OTHER_GROUP))

    assert await own.recount() == 3

    state = await queue.state()
    assert state["gactive"] == {GROUP: "2", OTHER_GROUP: "1"}
    assert "ring" not in state


async def test_ring_entries_that_cannot_be_served(own: Own, queue: Queue) -> None:
    """Hollow, paused, or standing twice: a correction per lane; the first of a good one stays in its place."""
    third = "GRP00000000003"
    await queue.put(merged(lane(group=third), lane(1), lane(2, group=OTHER_GROUP), {"paused": {OTHER_GROUP}}))
    await queue.put({"ring": [GROUP, third, GROUP]})

    assert await own.recount() == 3

    state = await queue.state()
    assert state["ring"] == [GROUP]
    assert "wake" not in state


@pytest.mark.parametrize("known", [{"glimit": {GROUP: "9"}}, in_flight(5) | {"gactive": {GROUP: "1"}}])
async def test_a_lane_that_fell_off_the_ring(own: Own, queue: Queue, known: State) -> None:
    """Not empty, not paused, below its limit, yet not on the ring: somebody lost the entry."""
    await queue.put(merged(lane(1, on_ring=False), known))

    assert await own.recount() == 1

    state = await queue.state()
    assert (state["ring"], state["wake"]) == ([GROUP], ["1"])


async def test_to_look_writes_nothing(own: Own, queue: Queue) -> None:
    """Group, key, what it has and what is right, for each that is wrong; a lane may be told that nothing else names."""
    third = "GRP00000000003"
    await queue.put(merged(lane(1), lane(2, group=third, on_ring=False), {"gactive": {OTHER_GROUP: "4"}}))
    await queue.put({"ring": [GROUP]})
    before = await queue.state()

    told = await own.run("recount", (own.keys.active,), own.keys.base, 100, "look", third)

    rows = {tuple(told[at : at + 4]) for at in range(0, len(told), 4)}
    assert rows == {(GROUP, "ring", "2", "1"), (third, "ring", "0", "1"), (OTHER_GROUP, "gactive", "4", "0")}
    assert await queue.state() == before
    assert await own.run("recount", (own.keys.active,), own.keys.base, 100, "", third) == 3
    assert sorted((await queue.state())["ring"]) == [GROUP, third]


@pytest.mark.parametrize(
    "state",
    [
        in_flight(1, 2, 3),
        {"gactive": {f"GRP0000000000{n}": "1" for n in range(3)}},
        {"glimit": {f"GRP0000000000{n}": "1" for n in range(3)}},
        {"ring": [f"GRP0000000000{n}" for n in range(3)]},
    ],
)
async def test_bounded(own: Own, queue: Queue, state: State) -> None:
    """A queue with more to look at than the limit is left alone."""
    await queue.put(state)

    assert await own.recount(limit=2) == -1

    assert await queue.state() == state


async def test_five_thousand_leases(own: Own, queue: Queue) -> None:
    """The worker's own limit: counted in one call."""
    await queue.put(in_flight(*range(5_000)))

    assert await own.recount(limit=5_000) == 1

    assert (await queue.state())["gactive"] == {GROUP: "5000"}


async def test_after_a_foreign_delay_of_a_grouped_job(own: Own, queue: Queue, raw: Redis) -> None:
    """It keeps the slot for good and blocks its lane; the recount serves it again."""
    foreign = Foreign(raw, QUEUE)
    await queue.put({"glimit": {GROUP: "1"}})
    for number in (1, 2):
        await foreign.genqueue(job(number), b"x", GROUP)
    taken = await foreign.gclaim(LEASE_MS)
    assert taken is not None
    await foreign.delay(taken.id, taken.token, 60_000)
    assert (await own.claim_many(9)).jobs == []

    await own.recount()

    assert (await own.claim_many(9)).ids == [job(2)]


async def test_after_a_foreign_release_of_a_slot_that_was_free(own: Own, queue: Queue, raw: Redis) -> None:
    """A foreign complete after a reap gives back a slot that another job has; the recount sees the lane full."""
    foreign = Foreign(raw, QUEUE)
    for number in (1, 2, 3):
        await foreign.genqueue(job(number), b"x", GROUP)
    first = await foreign.gclaim(LEASE_MS)
    assert first is not None
    await queue.put({"active": {job(1): 1}, "glimit": {GROUP: "1"}})
    await foreign.reap()
    (taken,) = (await own.claim_many(1)).jobs
    assert (taken.id, taken.token) == (job(1), 2)
    await own.settle(("c", job(1), taken.held, GROUP))
    (taken,) = (await own.claim_many(1)).jobs
    await queue.put({f"job:{job(1)}": row("pending", 1, group=GROUP)})
    await foreign.complete(job(1), 1)
    assert "gactive" not in await queue.state()

    await own.recount()

    state = await queue.state()
    assert state["gactive"] == {GROUP: "1"}
    assert (await own.claim_many(9)).jobs == []
