"""enqueue_many: the effects of many enqueues in one call, with a verdict each."""

from __future__ import annotations

from tests.support.plain import Plain, Queue, job, row


async def test_each_gets_its_verdict_in_order(plain: Plain, queue: Queue) -> None:
    """Admitted, duplicate of a row that stood, foreign, duplicate within the call, admitted: none holds up another."""
    await queue.put({f"job:{job(2)}": row("dead", 3, "old"), "dead": {job(2): 0}})

    ids = (job(1), job(2), job(3, "USR"), job(1), job(4))
    pairs = [value for number, id in enumerate(ids) for value in (id, f"p{number}")]
    assert await plain.enqueue_many(*pairs) == [1, 0, -1, 0, 1]

    assert await queue.state() == {
        f"job:{job(1)}": row(payload="p0"),
        f"job:{job(2)}": row("dead", 3, "old"),
        f"job:{job(4)}": row(payload="p4"),
        "dead": {job(2): 0},
        "pending": {job(1): 0, job(4): 0},
        "ready": ["1", "1"],
    }


async def test_a_call_that_admits_nothing_writes_nothing(plain: Plain, queue: Queue) -> None:
    """All foreign or duplicates, or no pair at all: no set, no token."""
    await queue.put({f"job:{job(1)}": row()})

    assert await plain.enqueue_many() == []
    assert await plain.enqueue_many(job(1), "y", job(1, "USR"), "y") == [0, -1]

    assert await queue.state() == {f"job:{job(1)}": row()}


async def test_the_same_call_twice_admits_once(plain: Plain, queue: Queue) -> None:
    """A producer whose reply was lost sends again: all duplicates."""
    pairs = [value for n in range(400) for value in (job(n), b"x")]

    assert await plain.enqueue_many(*pairs) == [1] * 400
    before = await queue.state()
    assert await plain.enqueue_many(*pairs) == [0] * 400

    assert await queue.state() == before
    assert before["ready"] == ["1"] * 64


async def test_beyond_the_stack_of_lua(plain: Plain, queue: Queue) -> None:
    """Nine thousand in one call: the script chunks what it unpacks."""
    assert await plain.enqueue_many(*(value for n in range(9_000) for value in (job(n), b""))) == [1] * 9_000

    assert await queue.raw.zcard(queue.keys.pending) == 9_000
