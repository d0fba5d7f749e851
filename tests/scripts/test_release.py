"""release: jobs that were not started, or whose handler has ended, are claimable at once, as if never claimed.

Source: protocol section 4 (release).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.own import Own, delay, flat, lane, merged, retry
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, Queue, State, job, row

ROW, LANE = f"job:{job(1)}", f"g:{GROUP}:pending"
HELD = "3:ab"
KEPT: dict[str, Any] = {"failures": 2, "stalled": 1, "crashes": "1:3", "last_error": "e", "progress": "50"}


def in_hand(*numbers: int, **fields: Any) -> State:
    """Jobs of ours with token 3."""
    rows: State = {f"job:{job(n)}": row("active", 3, held=HELD, **fields) for n in numbers}
    return rows | {"active": {job(n): FAR_MS for n in numbers}}


async def test_a_flat_job_is_pending_again(own: Own, queue: Queue) -> None:
    """With a `ready` token; attempts, failures, stalled and crashes stay; `held` and the lock go, the log stays."""
    await queue.put(in_hand(1, **KEPT) | {f"{ROW}:logs": ["line"]})
    await queue.raw.set(queue.keys.lock(job(1)), "3", px=60_000)

    assert await own.release(job(1), HELD) == ["ok"]

    assert await queue.state() == {
        ROW: row("pending", 3, **KEPT),
        f"{ROW}:logs": ["line"],
        "pending": {job(1): 0},
        "ready": ["1"],
    }


async def test_a_grouped_job_is_in_its_lane_again(own: Own, queue: Queue) -> None:
    """Its slot is free, and the lane that was full is on the ring, with a token."""
    await queue.put(in_hand(1, group=GROUP) | {"gactive": {GROUP: "1"}, "glimit": {GROUP: "1"}})

    assert await own.release(job(1), HELD) == ["ok"]

    assert await queue.state() == lane(1, attempts=3) | {"glimit": {GROUP: "1"}, "wake": ["1"]}


async def test_to_a_lane_that_is_paused(own: Own, queue: Queue) -> None:
    """It waits there: no ring entry, no token."""
    await queue.put(in_hand(1, group=GROUP) | {"gactive": {GROUP: "2"}, "paused": {GROUP}})

    assert await own.release(job(1), HELD) == ["ok"]

    state = await queue.state()
    assert (state[LANE], state["gactive"]) == ({job(1): 0}, {GROUP: "1"})
    assert {"ring", "wake"}.isdisjoint(state)


async def test_many_at_once(own: Own, queue: Queue) -> None:
    """An answer each; a token per flat job, one per lane; the lane's slots are given back together."""
    await queue.put(merged(in_hand(1, 2), in_hand(3, 4, group=GROUP), in_hand(5, group=OTHER_GROUP)))
    await queue.put({"gactive": {GROUP: "2", OTHER_GROUP: "2"}})

    answers = await own.release(*(word for n in range(1, 6) for word in (job(n), HELD)))

    assert answers == ["ok"] * 5
    state = await queue.state()
    assert (state["ready"], state["wake"]) == (["1"] * 2, ["1"] * 2)
    assert sorted(state["ring"]) == [GROUP, OTHER_GROUP]
    assert state["gactive"] == {OTHER_GROUP: "1"}
    assert (list(state["pending"]), list(state[LANE])) == ([job(1), job(2)], [job(3), job(4)])


async def test_two_thousand(own: Own, queue: Queue) -> None:
    """More than a single command takes."""
    await queue.put(in_hand(*range(2_000)))

    assert await own.release(*(word for n in range(2_000) for word in (job(n), HELD))) == ["ok"] * 2_000

    state = await queue.state()
    assert len(state["pending"]) == 2_000
    assert "active" not in state


async def test_it_leaves_the_schedule(own: Own, queue: Queue) -> None:
    """An ending leaves the id in one set."""
    await queue.put(in_hand(1) | {"schedule": {job(1): 7, job(2): 7}})

    await own.release(job(1), HELD)

    state = await queue.state()
    assert (state["schedule"], state["pending"]) == ({job(2): 7}, {job(1): 0})


async def test_twice(own: Own, queue: Queue) -> None:
    """Also in one call: the second finds nothing active, and moves nothing."""
    await queue.put(in_hand(1, group=GROUP) | {"gactive": {GROUP: "2"}})

    assert await own.release(job(1), HELD, job(1), HELD) == ["ok", "not_active"]
    before = await queue.state()
    assert await own.release(job(1), HELD) == ["not_active"]

    assert await queue.state() == before
    assert before["gactive"] == {GROUP: "1"}


REFUSED: dict[str, tuple[State, str, str]] = {
    "another token": (in_hand(1), "2:ab", "stale"),
    "another random": (in_hand(1), "3:cd", "stale"),
    "no row": ({"active": {job(1): FAR_MS}}, HELD, "gone"),
    "reaped": ({ROW: row("pending", 3, held=HELD), "pending": {job(1): 0}}, HELD, "not_active"),
    "dead": (in_hand(1) | {ROW: row("dead", 3, held=HELD)}, HELD, "not_active"),
    "settled": (in_hand(1) | {ROW: row("active", 3, settled="3:delayed")}, HELD, "stale"),
}


@pytest.mark.parametrize("why", REFUSED)
async def test_a_refusal_writes_nothing(own: Own, queue: Queue, why: str) -> None:
    """Not the caller's, gone, reaped, dead, settled: the answer says which, and the others of the call are moved."""
    state, held, answer = REFUSED[why]
    await queue.put(state)
    before = await queue.state()

    assert await own.release(job(1), held) == [answer]
    assert await queue.state() == before
    await queue.put(in_hand(2))
    assert await own.release(job(1), held, job(2), HELD) == [answer, "ok"]


@pytest.mark.parametrize("verdict", [retry, delay])
async def test_a_verdict_that_had_arrived_stands(own: Own, queue: Queue, verdict: Any) -> None:
    """Its reply was lost and the process releases what it thinks it holds: the job stays where the verdict put it."""
    await queue.put(flat(1))
    (taken,) = (await own.claim_many(1)).jobs
    await own.settle(verdict(job(1), taken.held))
    before = await queue.state()

    assert await own.release(job(1), taken.held) == ["stale"]

    assert await queue.state() == before


async def test_the_next_claim_has_it(own: Own, queue: Queue) -> None:
    """First in mint order again, under the next token, no crash counted."""
    await queue.put(flat(1, 2))
    (taken,) = (await own.claim_many(1)).jobs
    await own.release(taken.id, taken.held)

    (again,) = (await own.claim_many(1)).jobs

    assert (again.id, again.token, again.crashes, again.failures) == (job(1), 2, 0, 0)
