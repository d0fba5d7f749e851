"""enqueue: a job is admitted to flat pending once, or refused with nothing written."""

from __future__ import annotations

import pytest

from echomq_worker.errors import KindRefused
from tests.support.keyspace import expiring_of
from tests.support.plain import Plain, Queue, job, row


async def test_admits_one_row_one_member_one_token(plain: Plain, queue: Queue) -> None:
    """An empty queue gets the row as the seeds write it, the id at score 0, and one `ready` token that expires."""
    assert await queue.state() == {}

    assert await plain.enqueue(job(1)) == 1

    assert await queue.state() == {f"job:{job(1)}": row(), "pending": {job(1): 0}, "ready": ["1"]}
    assert list(await expiring_of(queue.raw)) == [queue.keys.ready]


async def test_a_duplicate_writes_nothing(plain: Plain, queue: Queue) -> None:
    """An id that has a row, in whatever state, answers 0; payload, sets and tokens stay."""
    await queue.put({f"job:{job(1)}": row("active", 3, "old"), "active": {job(1): 5}})
    before = await queue.state()

    assert await plain.enqueue(job(1), b"new") == 0

    assert await queue.state() == before


async def test_a_foreign_namespace_is_refused(plain: Plain, queue: Queue) -> None:
    """An id of another namespace is EMQKIND with the protocol's text, and nothing is written."""
    with pytest.raises(KindRefused, match=r"^EMQKIND job id must be JOB-namespaced$"):
        await plain.enqueue(job(1, "USR"))

    assert await queue.state() == {}


async def test_every_byte_of_a_payload_survives(plain: Plain, queue: Queue) -> None:
    """Payloads are opaque: all 256 byte values, and none at all."""
    every = bytes(range(256))

    await plain.enqueue(job(1), every)
    await plain.enqueue(job(2), b"")

    assert await queue.raw.hget(queue.keys.job(job(1)), "payload") == every
    assert await queue.raw.hget(queue.keys.job(job(2)), "payload") == b""


async def test_tokens_are_bounded(plain: Plain, queue: Queue) -> None:
    """A hundred admissions nobody waits for leave 64 tokens."""
    for number in range(100):
        await plain.enqueue(job(number))

    assert (await queue.state())["ready"] == ["1"] * 64


async def test_pending_is_in_mint_order(plain: Plain, queue: Queue) -> None:
    """Ids enqueued in any order stand in byte order, which is mint order."""
    for number in (2, 10, 1):
        await plain.enqueue(job(number))

    assert list((await queue.state())["pending"]) == [job(1), job(2), job(10)]
