"""claim_many next to a foreign worker: what it leaves in pending that does not belong there, and rows that are gone.

Source: protocol section 4 ("A claim can return a row without payload", "Next to a foreign worker").
"""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis

from tests.support.foreign import Foreign
from tests.support.own import LEASE_MS, Own, flat, lane, merged
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, QUEUE, Queue, State, Within, job, row

ROW = f"job:{job(1)}"
LANE = f"g:{GROUP}:pending"


def place(where: str, **fields: Any) -> State:
    """Job 1 in flat pending or in its lane."""
    return flat(1, **fields) if where == "flat" else lane(1, **fields)


WHERE = pytest.mark.parametrize("where", ["flat", "lane"])


@WHERE
async def test_a_live_lease_is_not_handed_out_twice(own: Own, queue: Queue, where: str) -> None:
    """A member that somebody holds leaves pending or its lane, and that is all."""
    await queue.put(place(where, attempts=3, held="3:zz") | {"active": {job(1): FAR_MS}})
    before = await queue.state()

    claim = await own.claim_many(9)

    assert (claim.jobs, claim.buried, claim.why) == ([], {}, "ok")
    assert await queue.state() == {ROW: before[ROW], "active": {job(1): FAR_MS}}


@WHERE
@pytest.mark.parametrize(("state", "elsewhere"), [("scheduled", "schedule"), ("dead", "dead")])
async def test_what_waits_elsewhere_is_dropped(own: Own, queue: Queue, where: str, state: str, elsewhere: str) -> None:
    """A row that is scheduled or dead, and in that set, is not claimed: a foreign reap and a late verdict met."""
    await queue.put(merged(place(where, state=state, attempts=3), {elsewhere: {job(1): 7}}))
    before = await queue.state()

    assert (await own.claim_many(9)).jobs == []

    assert await queue.state() == {ROW: before[ROW], elsewhere: {job(1): 7}}


@WHERE
async def test_a_parent_that_waits_is_dropped(own: Own, queue: Queue, where: str) -> None:
    """Its id was left there by a foreign client, of a row before: it is not run before its children have reported."""
    await queue.put(place(where, state="awaiting_children") | {f"{ROW}:dependencies": "1"})
    before = await queue.state()

    assert (await own.claim_many(9)).jobs == []

    assert await queue.state() == {name: before[name] for name in (ROW, f"{ROW}:dependencies")}


@WHERE
@pytest.mark.parametrize("moment", ["", "soon", "nan"])
async def test_an_expiry_that_is_no_moment_is_none(own: Own, queue: Queue, where: str, moment: str) -> None:
    """Whatever another client has written there: one such row must not hold up the queue with an error."""
    await queue.put(place(where, expires_at=moment))

    assert (await own.claim_many(9)).ids == [job(1)]


@pytest.mark.parametrize("out", [{}, {f"{ROW}:dependencies": "0"}])
async def test_a_parent_whom_another_client_has_released_is_claimed(own: Own, queue: Queue, out: State) -> None:
    """Also where its row still says that it waits: with no child out it would be lost if it were dropped."""
    await queue.put(flat(1, state="awaiting_children") | out)

    assert (await own.claim_many(9)).ids == [job(1)]


@pytest.mark.parametrize("state", ["scheduled", "dead"])
async def test_a_state_alone_holds_nothing_back(own: Own, queue: Queue, state: str) -> None:
    """A row that says scheduled or dead but is in neither set would be lost if it were dropped: it is claimed."""
    await queue.put(flat(1, state=state, attempts=3))

    assert (await own.claim_many(9)).ids == [job(1)]

    assert (await queue.state())[ROW] == row("active", 4, held="4:ab")


@WHERE
async def test_what_is_taken_leaves_every_other_set(own: Own, queue: Queue, where: str) -> None:
    """The id is in active only: not in schedule, not in dead, not in flat pending beside its lane."""
    await queue.put(merged(place(where), {"schedule": {job(1): 7, job(8): FAR_MS}, "dead": {job(1): 0, job(9): 0}}))
    await queue.put({"pending": {job(1): 0}} if where == "lane" else {})

    assert (await own.claim_many(9)).ids == [job(1)]

    state = await queue.state()
    assert {"pending", LANE}.isdisjoint(state)
    assert (state["schedule"], state["dead"]) == ({job(8): FAR_MS}, {job(9): 0})
    assert list(state["active"]) == [job(1)]


async def test_a_slot_that_was_never_given_back_is_kept(own: Own, queue: Queue) -> None:
    """A job of a lane whose lease ran out in active, put back by somebody: it takes no second slot."""
    await queue.put(merged(lane(1), {"active": {job(1): 1}, "gactive": {GROUP: "1"}, "glimit": {GROUP: "2"}}))
    before = await queue.now_ms()

    assert (await own.claim_many(9)).ids == [job(1)]

    state = await queue.state()
    assert state["gactive"] == {GROUP: "1"}
    assert state["active"] == {job(1): Within(before + LEASE_MS, FAR_MS)}


async def test_a_grouped_job_in_flat_pending_goes_to_its_lane(own: Own, queue: Queue) -> None:
    """A foreign reprocess leaves it there: it is moved, its lane is on the ring with a token, and is claimed next."""
    await queue.put(merged(flat(1, group=GROUP), flat(2)))

    assert (await own.claim_many(9)).ids == [job(2)]

    state = await queue.state()
    state.pop("claimed:c")
    assert state == {
        ROW: row(group=GROUP),
        f"job:{job(2)}": row("active", 1, held="1:ab"),
        LANE: {job(1): 0},
        "ring": [GROUP],
        "wake": ["1"],
        "active": {job(2): Within(0, FAR_MS)},
    }
    assert [(one.id, one.group) for one in (await own.claim_many(9)).jobs] == [(job(1), GROUP)]


@pytest.mark.parametrize("shut", [{"paused": {GROUP}}, {"glimit": {GROUP: "1"}, "gactive": {GROUP: "1"}}])
async def test_a_job_that_is_moved_to_a_lane_that_is_shut_waits(own: Own, queue: Queue, shut: State) -> None:
    """Paused or full: no ring entry, no token."""
    await queue.put(merged(flat(1, group=GROUP), shut))

    await own.claim_many(9)

    assert await queue.state() == {ROW: row(group=GROUP), LANE: {job(1): 0}} | shut


async def test_many_are_moved_at_once(own: Own, queue: Queue) -> None:
    """Two thousand jobs of two groups in one claim: both lanes in mint order, one token each."""
    await queue.put(merged(flat(*range(1_000), group=GROUP), flat(*range(1_000, 2_000), group=OTHER_GROUP)))

    await own.claim_many(1)

    state = await queue.state()
    assert list(state[LANE]) == [job(n) for n in range(1_000)]
    assert list(state[f"g:{OTHER_GROUP}:pending"]) == [job(n) for n in range(1_000, 2_000)]
    assert (sorted(state["ring"]), state["wake"]) == ([GROUP, OTHER_GROUP], ["1", "1"])


async def test_an_id_in_its_lane_and_in_flat_pending_is_one_job(own: Own, queue: Queue) -> None:
    """It is handed out once, or moved and handed out by the next claim; never twice in one."""
    await queue.put(merged(lane(1, 2), {"pending": {job(1): 0, job(2): 0}}))

    claims = [await own.claim_many(9) for _ in range(3)]

    assert sorted(id for claim in claims for id in claim.ids) == [job(1), job(2)]
    state = await queue.state()
    assert {"pending", LANE, "ring"}.isdisjoint(state)
    assert state["gactive"] == {GROUP: "2"}


async def test_an_id_in_two_lanes_is_one_job(own: Own, queue: Queue) -> None:
    """The lane that is served first has it; it leaves the other one without a slot of it."""
    await queue.put(merged(lane(1), lane(1, group=OTHER_GROUP), {ROW: row(group=OTHER_GROUP)}))

    claim = await own.claim_many(9)

    assert [(one.id, one.group) for one in claim.jobs] == [(job(1), GROUP)]
    state = await queue.state()
    assert state[ROW] == row("active", 1, group=GROUP, held="1:ab")
    assert state["gactive"] == {GROUP: "1"}
    assert {"ring", LANE, f"g:{OTHER_GROUP}:pending"}.isdisjoint(state)


async def test_a_ghost_has_no_payload(own: Own, queue: Queue) -> None:
    """An id whose row is gone, and one whose row promote made anew: the reply says so, the worker retires them."""
    await queue.put({"pending": {job(1): 0, job(2): 0}, f"job:{job(2)}": {"state": "pending"}})

    claim = await own.claim_many(9)

    assert [(one.id, one.payload, one.token, one.held) for one in claim.jobs] == [
        (job(1), None, 1, "1:ab"),
        (job(2), None, 1, "1:ab"),
    ]
    assert (await queue.state())[ROW] == row("active", 1, None, held="1:ab")


async def test_the_ghost_of_a_lane_keeps_its_group(own: Own, queue: Queue) -> None:
    """The lane's group is written on the row, so that whoever ends the job can give its slot back."""
    await queue.put({LANE: {job(1): 0}, "ring": [GROUP]})

    (taken,) = (await own.claim_many(9)).jobs

    assert (taken.payload, taken.group) == (None, GROUP)
    state = await queue.state()
    assert (state[ROW], state["gactive"]) == (row("active", 1, None, group=GROUP, held="1:ab"), {GROUP: "1"})


async def lease_lost(queue: Queue) -> None:
    """The lease of job 1 has run out."""
    await queue.raw.zadd(queue.keys.active, {job(1): 1})


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("verdict", ["retry", "death", "delay"])
async def test_a_foreign_reap_and_a_late_verdict(
    own: Own, queue: Queue, raw: Redis, verdict: str, grouped: bool
) -> None:
    """Foreign claim, lease lost, foreign reap, late verdict: the id is in two sets until our claim, then in one."""
    foreign = Foreign(raw, QUEUE)
    await (foreign.genqueue(job(1), b"x", GROUP) if grouped else foreign.enqueue(job(1), b"x"))
    taken = await (foreign.gclaim(LEASE_MS) if grouped else foreign.claim(LEASE_MS))
    assert taken is not None
    await lease_lost(queue)
    await foreign.reap()
    if verdict == "delay":
        await foreign.delay(job(1), taken.token, 60_000)
    else:
        await foreign.retry(job(1), taken.token, 60_000, 1 if verdict == "death" else 3, "late")
    where = "dead" if verdict == "death" else "schedule"
    assert {LANE if grouped else "pending", where} <= set(await queue.state())

    assert (await own.claim_many(9)).jobs == []

    state = await queue.state()
    assert {"pending", LANE, "ring", "active"}.isdisjoint(state)
    assert list(state[where]) == [job(1)]


async def test_a_foreign_promote_of_what_is_held(own: Own, queue: Queue, raw: Redis) -> None:
    """The row says pending, the lease says held: our claim goes by the lease."""
    foreign = Foreign(raw, QUEUE)
    await foreign.enqueue(job(1), b"x")
    await foreign.claim(LEASE_MS)
    await queue.put({"schedule": {job(1): 1}})
    await foreign.promote()
    assert (await queue.state())[ROW] == row("pending", 1)

    assert (await own.claim_many(9)).jobs == []

    assert list((await queue.state())["active"]) == [job(1)]


async def test_a_foreign_reprocess_of_a_grouped_job(own: Own, queue: Queue, raw: Redis) -> None:
    """It lands in flat pending, and is served from its lane by the claim after next at the latest."""
    foreign = Foreign(raw, QUEUE)
    await queue.put({ROW: row("dead", 3, group=GROUP, last_error="e", failures=3), "dead": {job(1): 0}})
    assert await foreign.reprocess(job(1)) == 1

    claims = [await own.claim_many(9) for _ in range(2)]

    assert [(one.id, one.group) for claim in claims for one in claim.jobs] == [(job(1), GROUP)]
