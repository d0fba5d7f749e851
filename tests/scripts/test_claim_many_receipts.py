"""claim_many sent again: a reply that was lost is found by its receipt, and nothing else is taken meanwhile.

Source: protocol section 4 ("Receipts make a claim safe to send again", "`held` fences where the token cannot").
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from echomq_worker.connector import connect
from tests.support.keyspace import expiring_of
from tests.support.own import LEASE_MS, Own, complete, flat, lane, merged, retry
from tests.support.plain import FAR_MS, GROUP, Queue, Within, job, row
from tests.support.valkey import OwnServer, raw_client

ROW = f"job:{job(1)}"


async def test_an_unread_reply_is_given_again(own: Own, queue: Queue) -> None:
    """The same jobs with the same `held` whatever the second asks for; leases and receipt begin anew, nothing else."""
    await queue.put(merged(flat(1, 2, failures=2), lane(3), flat(4)))
    first = await own.claim_many(3)
    await queue.put({"active": dict.fromkeys(first.ids, 1)})
    await queue.raw.pexpire(queue.keys.receipt("c"), 5_000)
    before = await queue.state()
    began = await queue.now_ms()

    second = await own.claim_many(9, read=0, random="cd")

    assert second.why == "replayed"
    assert (second.number, second.random, second.jobs, second.buried) == (1, "ab", first.jobs, {})
    deadline = Within(began + LEASE_MS, await queue.now_ms() + LEASE_MS)
    assert await queue.state() == before | {"active": dict.fromkeys(first.ids, deadline)}
    assert (await expiring_of(queue.raw))[queue.keys.receipt("c")] == Within(LEASE_MS - 10_000, LEASE_MS)


async def test_a_full_server_gives_it_again(own_server: OwnServer) -> None:
    """For want of memory it would be refused until the jobs have run out of their leases."""
    server = own_server()
    async with connect(server.url) as wire, raw_client(server.url) as raw:
        own, queue = Own(wire), Queue(raw)
        await queue.put(flat(1, 2))
        first = await own.claim_many(2)
        server.admin.config_set("maxmemory", 1)

        again = await own.claim_many(9, read=0, random="cd")

        assert (again.why, again.jobs) == ("replayed", first.jobs)


async def test_again_and_again(own: Own, queue: Queue) -> None:
    """A reply of a replay can be lost as well."""
    await queue.put(flat(1, 2))
    first = await own.claim_many(1)

    assert [(await own.claim_many(1, read=0)).jobs for _ in range(3)] == [first.jobs] * 3


async def test_a_replay_never_shortens(own: Own, queue: Queue) -> None:
    """A lease that lasts longer stays, and so does the receipt."""
    await queue.put(flat(1))
    await own.claim_many(1)
    before = await queue.state()

    await own.claim_many(1, read=0, lease_ms=1_000)

    assert await queue.state() == before
    assert (await expiring_of(queue.raw))[queue.keys.receipt("c")] > 1_000


async def test_crashes_come_with_it(own: Own, queue: Queue) -> None:
    """A suspect is known as one also from a replay."""
    await queue.put(flat(1, attempts=4, held="4:zz", crashes="1:4"))
    first = await own.claim_many(1)

    again = await own.claim_many(1, read=0)

    assert [one.crashes for one in again.jobs] == [2]
    assert again.jobs == first.jobs


async def test_a_reply_that_was_read_is_over(own: Own, queue: Queue) -> None:
    """The next claim takes other jobs and leaves the next receipt."""
    await queue.put(flat(1, 2))
    await own.claim_many(1)

    second = await own.claim_many(1, read=1, random="cd")

    assert (second.number, second.why, second.ids) == (2, "ok", [job(2)])
    assert (await queue.state())["claimed:c"] == f"2 cd {job(2)} 1"


async def test_another_consumer_has_receipts_of_its_own(own: Own, queue: Queue) -> None:
    """Each has its own key."""
    await queue.put(flat(1, 2))
    await own.claim_many(1)

    assert (await own.claim_many(1, consumer="d")).ids == [job(2)]
    assert (await own.claim_many(1, read=0)).ids == [job(1)]


async def test_a_receipt_that_ran_out(own: Own, queue: Queue) -> None:
    """It lives as long as the leases: without it the claim takes new jobs, under the same number."""
    await queue.put(flat(1, 2))
    await own.claim_many(1)
    await queue.raw.delete(queue.keys.receipt("c"))

    second = await own.claim_many(1, read=0, random="cd")

    assert (second.number, second.why, second.ids) == (1, "ok", [job(2)])


async def test_no_slot_reads_only(own: Own, queue: Queue) -> None:
    """n = 0, as at a shutdown: the unread reply is given again, and when it was read nothing is."""
    await queue.put(flat(1, 2))
    first = await own.claim_many(1)

    again = await own.claim_many(0, read=0)
    after = await own.claim_many(0, read=1)

    assert (again.why, again.jobs) == ("replayed", first.jobs)
    assert (after.why, after.jobs) == ("ok", [])
    assert (await queue.state())["pending"] == {job(2): 0}


@pytest.mark.parametrize("meta", [{"paused": "1"}, {"concurrency": "1"}, {"max": "1", "window_ms": "60000"}])
async def test_what_is_in_hand_is_not_held_back(own: Own, queue: Queue, meta: dict[str, str]) -> None:
    """A queue that was paused or is full meanwhile still says what is in hand."""
    await queue.put(flat(1, 2))
    first = await own.claim_many(1)
    await queue.put({"meta": meta})

    assert (await own.claim_many(1, read=0)).jobs == first.jobs


async def _removed_and_claimed_by_another(own: Own, id: str) -> None:
    await own.settle(complete(id, "1:ab"))
    await own.enqueue(id)
    assert (await own.claim_many(1, consumer="d", random="dd")).ids == [id]


async def _reaped_and_claimed_by_another(own: Own, id: str) -> None:
    await own.release(id, "1:ab")
    assert (await own.claim_many(1, consumer="d", random="dd")).ids == [id]


ENDED: dict[str, Callable[[Own, str], Awaitable[object]]] = {
    "completed": lambda own, id: own.settle(complete(id, "1:ab")),
    "retried": lambda own, id: own.settle(retry(id, "1:ab")),
    "dead": lambda own, id: own.settle(retry(id, "1:ab", max_attempts=1)),
    "completed by a plain verb": lambda own, id: own.complete(id, 1),
    "released": lambda own, id: own.release(id, "1:ab"),
    "disowned": lambda own, id: own.disown(id, "1:ab"),
    "somebody else's under the next token": _reaped_and_claimed_by_another,
    "another job's under the same id and token": _removed_and_claimed_by_another,
}


@pytest.mark.parametrize("end", ENDED)
async def test_what_has_ended_is_not_given_again(own: Own, queue: Queue, end: str) -> None:
    """Two were claimed, one is in hand no more: the other one alone comes again, and only its lease is extended."""
    await queue.put(flat(1, 2))
    await own.claim_many(2)
    await ENDED[end](own, job(1))
    before = await queue.state()

    again = await own.claim_many(9, read=0)

    assert (again.why, again.ids) == ("replayed", [job(2)])
    assert await queue.state() == before | {"active": {**_leases(before), job(2): Within(0, FAR_MS)}}


def _leases(state: dict[str, object]) -> dict[str, object]:
    active = state["active"]
    assert isinstance(active, dict)
    return active


async def test_a_job_that_was_reaped_comes_back_by_a_claim(own: Own, queue: Queue) -> None:
    """A receipt never revives: what is not in active is anybody's, and counts as a crash there."""
    await queue.put(flat(1))
    await own.claim_many(1)
    await queue.put({"active": {job(1): 1}})
    await own.reap()
    before = await queue.state()

    again = await own.claim_many(1, read=0)

    assert (again.why, again.number, again.jobs) == ("replayed", 1, [])
    assert await queue.state() == before
    assert [one.crashes for one in (await own.claim_many(1, read=1)).jobs] == [1]


async def test_a_lease_that_ran_out_and_was_not_reaped_is_in_hand(own: Own, queue: Queue) -> None:
    """Nobody has taken it away yet, so nobody else can have it."""
    await queue.put(lane(1))
    first = await own.claim_many(1)
    await queue.put({"active": {job(1): 1}})

    assert (await own.claim_many(1, read=0)).jobs == first.jobs
    assert await own.reap() == 0
    assert (await queue.state())["gactive"] == {GROUP: "1"}


async def test_a_thousand_come_again(own: Own, queue: Queue) -> None:
    """The largest claim fits into a receipt and a replay."""
    await queue.put(flat(*range(1_000)))
    first = await own.claim_many(1_000)
    await queue.raw.zadd(queue.keys.active, {job(0): 1})

    again = await own.claim_many(1_000, read=0)

    assert again.jobs == first.jobs
    assert (await queue.state())[f"job:{job(999)}"] == row("active", 1, held="1:ab")
