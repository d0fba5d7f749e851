"""claim_many and crashes: counted at the claim, suspects one at a time, buried when the row is full.

Source: protocol section 4 ("A crash is counted at the claim", "A job that kills its process").
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.support.foreign import Foreign
from tests.support.own import LEASE_MS, Own, Taken, delay, flat, lane, merged, retry
from tests.support.plain import FAR_MS, GROUP, QUEUE, Queue, State, Within, job, row

ROW = f"job:{job(1)}"
REASON = "crashed: 5 claims in a row never ended"


async def lose_leases(queue: Queue) -> None:
    """Every lease has run out."""
    leases = (await queue.state()).get("active", {})
    await queue.put({"active": dict.fromkeys(leases, 1)})


async def crash(own: Own, queue: Queue, times: int, *, max_crashes: int = 5) -> Taken:
    """Claim, never end it, reap: so many times. Answers the last one."""
    taken = None
    for _ in range(times):
        (taken,) = (await own.claim_many(1, max_crashes=max_crashes)).jobs
        await lose_leases(queue)
        await own.reap()
    assert taken is not None
    return taken


async def fields(queue: Queue) -> State:
    """The row's own fields of a claim."""
    row_now = (await queue.state())[ROW]
    assert isinstance(row_now, dict)
    return {name: str(value) for name, value in row_now.items() if name in {"attempts", "held", "crashes"}}


async def test_five_in_a_row_bury_at_the_sixth_claim(own: Own, queue: Queue) -> None:
    """Each claim that finds the one before unended counts it; the one that has counted five gives nothing out."""
    await queue.put(flat(1, failures=1, stalled=2))

    for crashes in range(5):
        assert (await crash(own, queue, 1)).crashes == crashes
    assert await fields(queue) == {"attempts": "5", "held": "5:ab", "crashes": "4:5"}
    claim = await own.claim_many(9)

    assert (claim.jobs, claim.buried, claim.number) == ([], {job(1): REASON}, 5)
    state = await queue.state()
    state.pop("claimed:c")
    assert state == {
        ROW: row("dead", 5, failures=1, stalled=2, last_error=REASON),
        "dead": {job(1): 0},
        "metrics:failed": {"count": "1"},
    }


@pytest.mark.parametrize("most", [3, 4])
async def test_max_crashes_is_the_callers(own: Own, queue: Queue, most: int) -> None:
    """The limit comes with the claim, and stands in the reason."""
    await queue.put(flat(1))
    await crash(own, queue, most, max_crashes=most)

    claim = await own.claim_many(1, max_crashes=most)

    assert claim.buried == {job(1): f"crashed: {most} claims in a row never ended"}


RETURNS: dict[str, Callable[[Own, Foreign], Awaitable[object]]] = {
    "our reap": lambda own, foreign: own.reap(),
    "a foreign reap": lambda own, foreign: foreign.reap(),
    "the sweep": lambda own, foreign: own.stalled_check(99),
}


@pytest.mark.parametrize("by", RETURNS)
async def test_counted_whoever_returned_the_job(own: Own, queue: Queue, raw: Redis, by: str) -> None:
    """Our reap, a foreign one, the sweep: the claim behind it finds `held`."""
    await queue.put(flat(1))
    await own.claim_many(1)
    await lose_leases(queue)

    await RETURNS[by](own, Foreign(raw, QUEUE))

    assert (await own.claim_many(1)).jobs[0].crashes == 1
    assert await fields(queue) == {"attempts": "2", "held": "2:ab", "crashes": "1:2"}


async def test_somebody_else_in_between_breaks_the_row(own: Own, queue: Queue, raw: Redis) -> None:
    """Four crashes of ours, then a foreign claim that lost its lease too: the next claim counts from 0 again."""
    foreign = Foreign(raw, QUEUE)
    await queue.put(flat(1))
    await crash(own, queue, 5)
    assert await foreign.claim(LEASE_MS) is not None
    await lose_leases(queue)
    await foreign.reap()

    (taken,) = (await own.claim_many(1)).jobs

    assert (taken.token, taken.crashes) == (7, 1)


async def test_a_release_leaves_the_count(own: Own, queue: Queue) -> None:
    """What was handed back is no crash, and makes none of those before undone."""
    await queue.put(flat(1))
    await crash(own, queue, 3)
    (taken,) = (await own.claim_many(1)).jobs
    assert await own.release(taken.id, taken.held) == ["ok"]

    assert await fields(queue) == {"attempts": "4", "crashes": "3:4"}
    assert (await own.claim_many(1)).jobs[0].crashes == 3
    assert await fields(queue) == {"attempts": "5", "held": "5:ab", "crashes": "3:5"}


async def test_a_disowned_job_is_no_crash(own: Own, queue: Queue) -> None:
    """Its lease runs out as if its process had died, but nothing is counted."""
    await queue.put(flat(1))
    await crash(own, queue, 1)
    for _ in range(6):
        (taken,) = (await own.claim_many(1)).jobs
        await own.disown(taken.id, taken.held)
        await lose_leases(queue)
        await own.reap()
        assert taken.crashes == 1


@pytest.mark.parametrize("verdict", [retry, delay])
async def test_a_verdict_ends_the_row(
    own: Own, queue: Queue, verdict: Callable[[str, str], tuple[object, ...]]
) -> None:
    """Five in a row matter, not five over months."""
    await queue.put(flat(1))
    await crash(own, queue, 4)
    (taken,) = (await own.claim_many(1)).jobs
    await own.settle(verdict(taken.id, taken.held))
    await queue.raw.zadd(queue.keys.schedule, {job(1): 1})
    await own.promote()

    assert (await own.claim_many(1)).jobs[0].crashes == 0
    assert await fields(queue) == {"attempts": "6", "held": "6:ab"}


def suspect(*numbers: int) -> State:
    """Jobs in flat pending that have crashed once and were held when they crashed again."""
    return flat(*numbers, attempts=4, held="4:zz", crashes="1:4")


async def test_one_suspect_a_claim(own: Own, queue: Queue) -> None:
    """Of three suspects the first is taken; the others stay where they are, and those behind them are served."""
    await queue.put(merged(suspect(1, 2, 4), flat(3, 5)))

    claim = await own.claim_many(9)

    assert [(one.id, one.crashes) for one in claim.jobs] == [(job(1), 2), (job(3), 0), (job(5), 0)]
    assert claim.why == "suspects"
    state = await queue.state()
    assert state["pending"] == {job(2): 0, job(4): 0}
    assert state[f"job:{job(2)}"] == row(attempts=4, held="4:zz", crashes="1:4")


async def test_no_suspect_where_the_process_has_one(own: Own, queue: Queue) -> None:
    """All are passed over; where every slot was filled the reply does not ask to wait for them."""
    await queue.put(merged(suspect(1, 2), flat(3)))

    claim = await own.claim_many(1, suspects=0)

    assert (claim.ids, claim.why) == ([job(3)], "ok")
    assert (await own.claim_many(1, suspects=0)).why == "suspects"


async def test_a_job_that_crashed_once_is_none(own: Own, queue: Queue) -> None:
    """The first crash counted makes no suspect: one batch that died together comes back together."""
    await queue.put(flat(1, 2, attempts=1, held="1:zz"))

    claim = await own.claim_many(9, suspects=0)

    assert [one.crashes for one in claim.jobs] == [1, 1]


async def test_a_thousand_suspects_do_not_hide_the_rest(own: Own, queue: Queue) -> None:
    """A claim goes on behind the last one passed over."""
    await queue.put(merged(suspect(*range(1_000)), flat(1_000, 1_001)))

    assert (await own.claim_many(2, suspects=0)).ids == [job(1_000), job(1_001)]


async def test_a_suspect_of_a_lane(own: Own, queue: Queue) -> None:
    """It is passed over in its lane; the lane stays on the ring for somebody who may take it, others are served."""
    await queue.put(lane(1, attempts=4, held="4:zz", crashes="1:4"))
    await queue.put(lane(2, on_ring=False))

    claim = await own.claim_many(9, suspects=0)

    assert (claim.ids, claim.why) == ([job(2)], "suspects")
    state = await queue.state()
    assert (state["ring"], state[f"g:{GROUP}:pending"]) == ([GROUP], {job(1): 0})
    assert (await own.claim_many(9)).ids == [job(1)]


DOOMED: dict[str, Any] = {"attempts": 5, "held": "5:zz", "crashes": "4:5"}


async def test_a_burial_frees_no_slot(own: Own, queue: Queue) -> None:
    """Whoever took the job from active gave its slot back; the emptied lane leaves the ring."""
    await queue.put(merged(lane(1, **DOOMED), {"gactive": {GROUP: "2"}, "schedule": {job(1): FAR_MS}}))
    await queue.raw.set(queue.keys.lock(job(1)), "5", px=60_000)

    claim = await own.claim_many(9)

    assert claim.buried == {job(1): REASON}
    assert await queue.state() == {
        ROW: row("dead", 5, group=GROUP, last_error=REASON),
        "dead": {job(1): 0},
        "metrics:failed": {"count": "1"},
        "gactive": {GROUP: "2"},
    }


async def test_a_burial_of_what_is_still_in_active(own: Own, queue: Queue) -> None:
    """Somebody put it back and left it in active: the burial takes it out, and so frees the slot."""
    full = {"gactive": {GROUP: "1"}, "glimit": {GROUP: "1"}}
    await queue.put(merged(lane(2), full, {ROW: row(group=GROUP, **DOOMED), "active": {job(1): 1}}))
    await queue.put({"pending": {job(1): 0}})
    # In flat pending it is only moved; the lane is full, so it waits there.
    await own.claim_many(9)
    await queue.raw.hdel(queue.keys.glimit, GROUP)
    await queue.raw.rpush(queue.keys.ring, GROUP)

    claim = await own.claim_many(1)

    assert (claim.ids, claim.buried) == ([job(2)], {job(1): REASON})
    state = await queue.state()
    assert state["active"] == {job(2): Within(0, FAR_MS)}
    assert state["gactive"] == {GROUP: "1"}


async def test_a_burial_takes_neither_slot_nor_place(own: Own, queue: Queue) -> None:
    """With one slot and no suspect allowed, the doomed one is buried and the next one is handed out."""
    await queue.put(merged(flat(1, **DOOMED), flat(2, **DOOMED), flat(3)))

    claim = await own.claim_many(1, suspects=0)

    assert (claim.ids, list(claim.buried), claim.why) == ([job(3)], [job(1), job(2)], "ok")
    assert (await queue.state())["metrics:failed"] == {"count": "2"}
