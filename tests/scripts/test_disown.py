"""disown: a job whose plain function still runs when the process must go keeps its lease, and leaving is no crash.

Source: protocol section 4 (disown).
"""

from __future__ import annotations

import pytest

from tests.support.own import Own, complete
from tests.support.plain import FAR_MS, GROUP, Queue, State, job, row

ROW = f"job:{job(1)}"
HELD = "3:ab"
IN_HAND: State = {
    ROW: row("active", 3, held=HELD, crashes="1:3", group=GROUP, failures=1),
    "active": {job(1): FAR_MS},
    "gactive": {GROUP: "1"},
}


async def test_only_held_goes(own: Own, queue: Queue) -> None:
    """Lease, slot, lock and every other field stay: nobody starts it a second time before its lease is over."""
    await queue.put(IN_HAND)
    await queue.raw.set(queue.keys.lock(job(1)), "3", px=60_000)

    assert await own.disown(job(1), HELD) == ["ok"]

    assert await queue.state() == IN_HAND | {
        ROW: row("active", 3, crashes="1:3", group=GROUP, failures=1),
        f"{ROW}:lock": "3",
    }


async def test_twice(own: Own, queue: Queue) -> None:
    """Saying it again changes nothing, also in one call."""
    await queue.put(IN_HAND)

    assert await own.disown(job(1), HELD, job(1), HELD) == ["ok", "ok"]
    before = await queue.state()
    assert await own.disown(job(1), HELD) == ["ok"]

    assert await queue.state() == before


REFUSED: dict[str, tuple[State, str, str]] = {
    "another token": (IN_HAND, "2:ab", "stale"),
    "another random": (IN_HAND, "3:cd", "stale"),
    "no row": ({"active": {job(1): FAR_MS}}, HELD, "gone"),
    "reaped": ({ROW: row("pending", 3, held=HELD), "pending": {job(1): 0}}, HELD, "not_active"),
}


@pytest.mark.parametrize("why", REFUSED)
async def test_a_refusal_writes_nothing(own: Own, queue: Queue, why: str) -> None:
    """Not the caller's, gone, or reaped: what the next holder wrote stays."""
    state, held, answer = REFUSED[why]
    await queue.put(state)
    before = await queue.state()

    assert await own.disown(job(1), held) == [answer]

    assert await queue.state() == before


async def test_its_function_may_still_end_it(own: Own, queue: Queue) -> None:
    """A verdict that gets out after all is the holder's."""
    await queue.put(IN_HAND)
    await own.disown(job(1), HELD)

    assert await own.settle(complete(job(1), HELD, GROUP)) == ["done"]

    assert await queue.state() == {"metrics:completed": {"count": "1"}}


async def test_two_thousand(own: Own, queue: Queue) -> None:
    """More than a single command takes."""
    rows: State = {f"job:{job(n)}": row("active", 3, held=HELD) for n in range(2_000)}
    await queue.put(rows | {"active": {job(n): FAR_MS for n in range(2_000)}})

    assert await own.disown(*(word for n in range(2_000) for word in (job(n), HELD))) == ["ok"] * 2_000

    assert (await queue.state())[f"job:{job(1_999)}"] == row("active", 3)
