"""extend_locks: many leases in one call; the answer names those that were lost."""

from __future__ import annotations

from tests.support.keyspace import expiring_of
from tests.support.plain import FAR_MS, Plain, Queue, Within, job, row


async def test_extends_the_held_and_names_the_lost(plain: Plain, queue: Queue) -> None:
    """Held by number and by random: extended and marked, a first claim of ours for the queue too. Gone, stale, another
    claim's, reaped: named, untouched.
    """
    lost = {
        f"job:{job(4)}": row("active", 2),
        f"job:{job(5)}": row("active", 1, held="1:new"),
        f"job:{job(6)}": row("pending", 1),
        "pending": {job(6): 0},
    }
    rows = {f"job:{job(1)}": row("active", 3), f"job:{job(2)}": row("active", 1, held="1:ab")} | lost
    await queue.put(rows | {"active": {job(n): 7 for n in (1, 2, 3, 4, 5)}})
    before = await queue.now_ms()

    pairs = [job(1), 3, job(2), "1:ab", job(3), 1, job(4), 1, job(5), "1:old", job(6), 1]
    assert await plain.extend_locks(*pairs, lease_ms=30_000) == [job(n) for n in (3, 4, 5, 6)]

    deadline = Within(before + 30_000, await queue.now_ms() + 30_000)
    state = await queue.state()
    locks = {f"job:{job(1)}:lock": "3", f"job:{job(2)}:lock": "1"}
    active = {job(1): deadline, job(2): deadline} | {job(n): 7 for n in (3, 4, 5)}
    assert state == rows | locks | {"active": active, "kept": "1"}
    assert len(await expiring_of(queue.raw)) == 3


async def test_never_shortens(plain: Plain, queue: Queue) -> None:
    """A deadline that is farther off stays."""
    await queue.put({f"job:{job(1)}": row("active", 1), "active": {job(1): FAR_MS}})

    assert await plain.extend_locks(job(1), 1, lease_ms=5) == []

    assert (await queue.state())["active"] == {job(1): FAR_MS}


async def test_nothing_held_is_nothing_done(plain: Plain, queue: Queue) -> None:
    """No pairs: an empty answer."""
    assert await plain.extend_locks() == []
    assert await queue.state() == {}


async def test_two_thousand_in_one_call(plain: Plain, queue: Queue) -> None:
    """More than one chunk of arguments."""
    await queue.put({f"job:{job(n)}": row("active", 1) for n in range(2_500)})
    await queue.put({"active": {job(n): 1 for n in range(2_500)}})

    assert await plain.extend_locks(*(value for n in range(2_500) for value in (job(n), 1))) == []

    assert await queue.raw.zcount(queue.keys.active, "-inf", 1) == 0
