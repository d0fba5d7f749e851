"""claim: the plain claim of one flat job, as the reference has it."""

from __future__ import annotations

import pytest

from echomq_worker.errors import ServerError
from tests.support.plain import FAR_MS, Plain, Queue, Within, job, row


async def test_takes_the_lowest_id_under_a_lease(plain: Plain, queue: Queue) -> None:
    """The oldest mint leaves pending for active at now + lease; attempts + 1 is the token; the other stays."""
    await queue.put({f"job:{job(n)}": row(payload=f"p{n}") for n in (1, 2)} | {"pending": {job(2): 0, job(1): 0}})
    before = await queue.now_ms()

    assert await plain.claim(30_000) == [job(1), "p1", 1]

    deadline = Within(before + 30_000, await queue.now_ms() + 30_000)
    assert await queue.state() == {
        f"job:{job(1)}": row("active", 1, "p1"),
        f"job:{job(2)}": row(payload="p2"),
        "pending": {job(2): 0},
        "active": {job(1): deadline},
    }


async def test_an_empty_queue_answers_nothing(plain: Plain, queue: Queue) -> None:
    """No member: an empty reply, no write."""
    assert await plain.claim() == []
    assert await queue.state() == {}


async def test_the_token_counts_claims(plain: Plain, queue: Queue) -> None:
    """A job that was claimed four times before gets token 5; failures and the other fields stay."""
    await queue.put({f"job:{job(1)}": row("pending", 4, failures=2, last_error="boom"), "pending": {job(1): 0}})

    assert await plain.claim() == [job(1), "x", 5]

    assert (await queue.state())[f"job:{job(1)}"] == row("active", 5, failures=2, last_error="boom")


async def test_a_row_without_payload_is_handed_out_with_none(plain: Plain, queue: Queue) -> None:
    """A deleted row, or promote's skeleton: the reply has no payload, the row is active with attempts 1."""
    await queue.put({"pending": {job(1): 0, job(2): 0}, f"job:{job(2)}": {"state": "pending"}})

    assert await plain.claim() == [job(1), None, 1]
    assert await plain.claim() == [job(2), None, 1]

    state = await queue.state()
    assert state[f"job:{job(1)}"] == row("active", 1, payload=None)
    assert state[f"job:{job(2)}"] == row("active", 1, payload=None)


async def test_lanes_and_the_schedule_are_not_served(plain: Plain, queue: Queue) -> None:
    """A lane's head and a due job are left where they are: this verb serves flat pending only."""
    await plain.lane_enqueue(job(1))
    await queue.put({f"job:{job(2)}": row("scheduled"), "schedule": {job(2): 1}})
    before = await queue.state()

    assert await plain.claim() == []

    assert await queue.state() == before


async def test_none_of_our_fields_is_written(plain: Plain, queue: Queue) -> None:
    """A claim that was cut short before (`held`) is neither counted nor cleared by the plain claim."""
    held = row("pending", 1, held="1:ab", crashes="1:1")
    await queue.put({f"job:{job(1)}": held, "pending": {job(1): 0}})

    await plain.claim()

    assert (await queue.state())[f"job:{job(1)}"] == held | {"state": "active", "attempts": "2"}


async def test_attempts_that_are_no_number_refuse_before_the_member_moves(plain: Plain, queue: Queue) -> None:
    """A row that somebody has spoilt raises, and its id is still in pending."""
    await queue.put({f"job:{job(1)}": {"state": "pending", "attempts": "many"}, "pending": {job(1): 0}})
    before = await queue.state()

    with pytest.raises(ServerError, match="integer"):
        await plain.claim()

    assert await queue.state() == before


async def test_a_lease_that_stands_is_replaced(plain: Plain, queue: Queue) -> None:
    """As in the reference, an id that is in pending and active at once is claimed; our own claim drops it instead."""
    await queue.put({f"job:{job(1)}": row("active", 1), "pending": {job(1): 0}, "active": {job(1): FAR_MS}})

    assert await plain.claim(1_000) == [job(1), "x", 2]
    assert (await queue.state())["active"] == {job(1): Within(0, FAR_MS - 1)}
