"""claim_batch: many flat jobs under one deadline, as the reference has it."""

from __future__ import annotations

from tests.support.plain import Plain, Queue, Within, job, row


async def fill(plain: Plain, queue: Queue, count: int) -> None:
    """Enqueue jobs 1..count and forget the tokens."""
    await plain.enqueue_many(*(value for n in range(1, count + 1) for value in (job(n), b"x")))
    await queue.raw.delete(queue.keys.ready)


async def test_takes_the_oldest_under_one_deadline(plain: Plain, queue: Queue) -> None:
    """Two of three: oldest mint first, one shared deadline, the third stays."""
    await fill(plain, queue, 3)
    before = await queue.now_ms()

    assert await plain.claim_batch(2, 30_000) == [[job(1), "x", 1], [job(2), "x", 1]]

    deadline = Within(before + 30_000, await queue.now_ms() + 30_000)
    state = await queue.state()
    assert state == {
        f"job:{job(1)}": row("active", 1),
        f"job:{job(2)}": row("active", 1),
        f"job:{job(3)}": row(),
        "pending": {job(3): 0},
        "active": {job(1): deadline, job(2): deadline},
    }
    assert state["active"][job(1)] == state["active"][job(2)]


async def test_is_short_when_fewer_are_pending(plain: Plain, queue: Queue) -> None:
    """Asked for ten with two pending: two; asked again: none, and nothing is written."""
    await fill(plain, queue, 2)

    assert len(await plain.claim_batch(10)) == 2
    before = await queue.state()

    assert await plain.claim_batch(10) == []
    assert await plain.claim_batch(0) == []
    assert await queue.state() == before


async def test_attempts_go_on_and_a_missing_payload_is_none(plain: Plain, queue: Queue) -> None:
    """Each job's own token; a ghost among them has no payload and token 1."""
    await queue.put({f"job:{job(1)}": row(attempts=6), "pending": {job(1): 0, job(2): 0}})

    assert await plain.claim_batch(5) == [[job(1), "x", 7], [job(2), None, 1]]

    state = await queue.state()
    assert state[f"job:{job(1)}"] == row("active", 7)
    assert state[f"job:{job(2)}"] == row("active", 1, payload=None)


async def test_a_batch_above_the_stack_of_lua(plain: Plain, queue: Queue) -> None:
    """Ten thousand at once: more than one unpack holds, so the writes go out in chunks."""
    for first in range(0, 10_000, 1_000):
        await plain.enqueue_many(*(value for n in range(first, first + 1_000) for value in (job(n), b"")))

    taken = await plain.claim_batch(20_000)

    assert [id for id, _, _ in taken] == [job(n) for n in range(10_000)]
    assert await queue.raw.zcard(queue.keys.active) == 10_000
    assert await queue.raw.zcard(queue.keys.pending) == 0
