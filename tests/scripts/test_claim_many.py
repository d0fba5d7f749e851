"""claim_many on flat pending: what is taken and written, and what the queue's own limits hold back.

Source: protocol section 4 (claim, rate limit, wake). Lanes, crashes, receipts and repairs have files of their own.
"""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.errors import ServerError
from tests.support.keyspace import expiring_of
from tests.support.own import LEASE_MS, Own, flat, lane, merged
from tests.support.plain import FAR_MS, GROUP, Queue, State, Within, job, row
from tests.support.waiting import wait_until


async def test_takes_the_oldest_and_leaves_a_receipt(own: Own, queue: Queue) -> None:
    """Rows are active with the next token and `held`, the ids have a lease on the server's clock, the rest stays."""
    await queue.put(merged(flat(3, 1), flat(2, attempts=7, failures=2, payload="y")))
    before = await queue.now_ms()

    claim = await own.claim_many(2)

    deadline = Within(before + LEASE_MS, await queue.now_ms() + LEASE_MS)
    assert (claim.number, claim.why, claim.random, claim.buried) == (1, "ok", "ab", {})
    assert [(one.id, one.payload, one.token, one.group, one.failures, one.crashes) for one in claim.jobs] == [
        (job(1), "x", 1, "", 0, 0),
        (job(2), "y", 8, "", 2, 0),
    ]
    assert await queue.state() == {
        f"job:{job(1)}": row("active", 1, held="1:ab"),
        f"job:{job(2)}": row("active", 8, "y", held="8:ab", failures=2),
        f"job:{job(3)}": row(),
        "pending": {job(3): 0},
        "active": {job(1): deadline, job(2): deadline},
        "claimed:c": f"1 ab {job(1)} 1 {job(2)} 8",
    }
    assert await expiring_of(queue.raw) == {queue.keys.receipt("c"): Within(LEASE_MS - 10_000, LEASE_MS)}


FIELDS: dict[str, tuple[dict[Any, Any], tuple[str | None, int, int]]] = {
    "payload first": ({"payload": "x", "attempts": "1", "state": "pending"}, ("x", 2, 0)),
    "attempts first": ({"attempts": "1", "state": "pending", "payload": "x"}, ("x", 2, 0)),
    "no payload": ({"state": "pending", "attempts": "1", "trace": "x"}, (None, 2, 0)),
    "no attempts": ({"state": "pending", "trace": "7", "payload": "x"}, ("x", 1, 0)),
    "more": ({"state": "pending", "attempts": "1", "payload": "x", "failures": "3"}, ("x", 2, 3)),
    "long": ({"state": "pending", "attempts": "1", "payload": "x" * 200, "parent": job(9)}, ("x" * 200, 2, 0)),
}


@pytest.mark.parametrize(("fields", "told"), FIELDS.values(), ids=FIELDS)
async def test_a_row_is_read_by_the_names_of_its_fields(
    own: Own, queue: Queue, fields: dict[Any, Any], told: tuple[str | None, int, int]
) -> None:
    """In whichever order somebody wrote them, with others among them, and some missing."""
    await queue.raw.hset(f"{queue.keys.base}job:{job(1)}", mapping=fields)
    await queue.put({"pending": {job(1): 0}})

    claim = await own.claim_many(1)

    assert [(one.payload, one.token, one.failures) for one in claim.jobs] == [told]
    assert claim.kin == ([job(1)] if "parent" in fields else [])


async def test_an_empty_queue_gives_nothing_and_writes_nothing(own: Own, queue: Queue) -> None:
    """No job, no receipt, the number stays what was read."""
    claim = await own.claim_many(5, read=7)

    assert (claim.number, claim.why, claim.jobs, claim.buried) == (7, "ok", [], {})
    assert await queue.state() == {}


async def test_no_slot_takes_nothing(own: Own, queue: Queue) -> None:
    """n = 0 only reads: there is no receipt, so pending stays as it is, whatever else the queue says."""
    await queue.put(flat(1) | {"meta": {"paused": "1"}})
    before = await queue.state()

    assert (await own.claim_many(0)).jobs == []

    assert await queue.state() == before


async def test_a_paused_queue_gives_nothing(own: Own, queue: Queue) -> None:
    """`meta.paused`, whatever it holds: the sets are left alone, flat and lanes alike."""
    await queue.put(merged(flat(1), lane(2), {"meta": {"paused": "0"}, "wake": ["1"]}))
    before = await queue.state()

    assert (await own.claim_many(5)).why == "paused"

    assert await queue.state() == before


async def test_the_ceiling_counts_everybody(own: Own, queue: Queue) -> None:
    """`meta.concurrency` 3 with one lease of somebody else: two, then none, and then nothing is written."""
    await queue.put(flat(1, 2, 3) | {"active": {job(9): FAR_MS}, "meta": {"concurrency": "3"}})

    assert (await own.claim_many(5)).ids == [job(1), job(2)]
    before = await queue.state()
    full = await own.claim_many(5)

    assert (full.why, full.jobs, full.number) == ("ceiling", [], 1)
    assert await queue.state() == before


async def test_the_rate_limit_opens_with_its_window(own: Own, queue: Queue) -> None:
    """`max` 3 per window: three are started however they are asked for, then none until the window is over."""
    await queue.put(flat(1, 2, 3, 4) | {"meta": {"max": "3", "window_ms": "60000"}})

    assert (await own.claim_many(2)).ids == [job(1), job(2)]
    assert (await expiring_of(queue.raw))[queue.keys.limiter] == Within(50_000, 60_000)
    assert (await own.claim_many(5)).ids == [job(3)]
    before = await queue.state()
    assert before["limiter"] == "3"
    what, _, wait_ms = (await own.claim_many(5)).why.partition(":")
    assert what == "rate"
    assert 50_000 < int(wait_ms) <= 60_000
    assert await queue.state() == before

    await queue.raw.pexpire(queue.keys.limiter, 1)
    await wait_until(lambda: _is_over(queue), "the window is over")
    assert (await own.claim_many(5)).ids == [job(4)]
    assert (await queue.state())["limiter"] == "1"


async def _is_over(queue: Queue) -> bool:
    return not await queue.raw.exists(queue.keys.limiter)


async def test_the_later_claims_of_a_window_do_not_lengthen_it(own: Own, queue: Queue) -> None:
    """The window runs from its first job on."""
    await queue.put(flat(1, 2) | {"meta": {"max": "9", "window_ms": "60000"}})
    await own.claim_many(1)
    await queue.raw.pexpire(queue.keys.limiter, 20_000)

    await own.claim_many(1)

    assert (await expiring_of(queue.raw))[queue.keys.limiter] == Within(10_000, 20_000)


@pytest.mark.parametrize("window", ["1e17", "99999999999999999999", "1e300", "inf"])
async def test_a_window_without_measure_ends_no_claim(own: Own, queue: Queue, window: str) -> None:
    """What a foreign client writes there bounds what starts, and is cut to what an expiry can be."""
    await queue.put(flat(1, 2) | {"meta": {"max": "1", "window_ms": window}})
    assert (await own.claim_many(5)).ids == [job(1)]
    what, _, wait_ms = (await own.claim_many(5)).why.partition(":")
    assert (what, int(wait_ms) <= 10**13) == ("rate", True)
    assert (await expiring_of(queue.raw))[queue.keys.limiter] == Within(10**13 - 60_000, 10**13)
    await queue.raw.pexpire(queue.keys.limiter, 10**16)
    assert (await own.claim_many(5)).why == f"rate:{10**13}"


@pytest.mark.parametrize(
    "meta", [{"max": "1"}, {"max": "1", "window_ms": "0"}, {"window_ms": "5"}, {"concurrency": "x"}]
)
async def test_half_a_limit_is_none(own: Own, queue: Queue, meta: dict[str, str]) -> None:
    """A limit without a window, or what is no number, limits nothing and leaves no `limiter`."""
    await queue.put(flat(1, 2) | {"meta": meta})

    assert len((await own.claim_many(5)).jobs) == 2

    assert "limiter" not in await queue.state()


@pytest.mark.parametrize("lease_ms", [0, -1, "1.5"])
async def test_a_lease_that_is_none_is_refused(own: Own, queue: Queue, lease_ms: Any) -> None:
    """The receipt could not be written with it, so nothing is."""
    await queue.put(flat(1))
    before = await queue.state()

    with pytest.raises(ServerError, match="lease_ms"):
        await own.claim_many(5, lease_ms=lease_ms)

    assert await queue.state() == before


async def test_a_thousand_a_call(own: Own, queue: Queue) -> None:
    """More free slots than that are filled by the next claim; 2,500 jobs go out in mint order, none twice."""
    await queue.put(flat(*range(2_500)))

    claims = [await own.claim_many(5_000) for _ in range(4)]

    assert [len(claim.jobs) for claim in claims] == [1_000, 1_000, 500, 0]
    assert [id for claim in claims for id in claim.ids] == [job(n) for n in range(2_500)]
    state = await queue.state()
    assert len(state["active"]) == 2_500
    assert "pending" not in state


async def test_tokens_go_when_nothing_is_left(own: Own, queue: Queue) -> None:
    """Neither `ready` nor `wake` wakes anybody for nothing, whether the claim took the last job or found none."""
    await own.enqueue(job(1))
    await queue.put({"wake": ["1"] * 3})

    await own.claim_many(5)

    assert {"ready", "wake"}.isdisjoint(await queue.state())
    await queue.put({"wake": ["1"]})
    await own.claim_many(5)
    assert "wake" not in await queue.state()


LEFT: dict[str, tuple[State, int, int]] = {
    "flat jobs": (flat(1, 2), 1, 1),
    "exactly as many as were asked for": (flat(1), 1, 1),
    "a suspect": (merged(flat(1), flat(2, attempts=4, held="4:zz", crashes="1:4")), 5, 0),
    "a lane": (lane(1, 2), 1, 1),
    "a job that was moved to its lane": (flat(1, group=GROUP), 5, 1),
}


@pytest.mark.parametrize("left", LEFT)
async def test_tokens_stay_while_something_is_left(own: Own, queue: Queue, left: str) -> None:
    """What this claim leaves behind is somebody else's to be woken for."""
    state, n, suspects = LEFT[left]
    await queue.put(state | {"wake": ["1", "1"]})

    await own.claim_many(n, suspects=suspects)

    assert (await queue.state())["wake"][:2] == ["1", "1"]
