"""extend_lock: a checkpoint of one lease; it never shortens and never revives."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.errors import Stale
from tests.support.keyspace import expiring_of
from tests.support.plain import FAR_MS, Plain, Queue, Within, job, row

ROW = f"job:{job(1)}"


async def test_a_live_holder_gets_a_new_deadline_and_a_lock(plain: Plain, queue: Queue) -> None:
    """Active at now + lease; the lock marker holds the token and lasts twice the lease; the row is untouched."""
    held = row("active", 3, held="3:ab")
    before = await queue.now_ms()
    await queue.put({ROW: held, "active": {job(1): before + 100}})

    assert await plain.extend_lock(job(1), "3:ab", 30_000) == 1

    deadline = Within(before + 30_000, await queue.now_ms() + 30_000)
    assert await queue.state() == {ROW: held, "active": {job(1): deadline}, f"{ROW}:lock": "3"}
    assert (await expiring_of(queue.raw))[queue.keys.lock(job(1))] == Within(50_000, 60_000)


async def test_never_shortens(plain: Plain, queue: Queue) -> None:
    """A deadline that is farther off stays."""
    await queue.put({ROW: row("active", 3), "active": {job(1): FAR_MS}})

    assert await plain.extend_lock(job(1), 3, 1_000) == 1

    assert (await queue.state())["active"] == {job(1): FAR_MS}


async def test_an_expired_lease_that_nobody_has_reaped_is_still_the_holders(plain: Plain, queue: Queue) -> None:
    """Its token fits and it is in active: late is not lost."""
    await queue.put({ROW: row("active", 3), "active": {job(1): 1}})

    assert await plain.extend_lock(job(1), 3) == 1

    assert (await queue.state())["active"] == {job(1): Within(2, FAR_MS)}


async def test_never_revives(plain: Plain, queue: Queue) -> None:
    """Reaped, and not claimed again: 0, nothing is written."""
    await queue.put({ROW: row("pending", 3), "pending": {job(1): 0}})
    before = await queue.state()

    assert await plain.extend_lock(job(1), 3) == 0

    assert await queue.state() == before


async def test_a_row_that_is_gone_answers_minus_1(plain: Plain, queue: Queue) -> None:
    """Also when its id is still in active."""
    await queue.put({"active": {job(1): 7}})

    assert await plain.extend_lock(job(1), 3) == -1

    assert await queue.state() == {"active": {job(1): 7}}


@pytest.mark.parametrize(("fields", "token"), [({}, 2), ({}, "3.0"), ({"held": "3:new"}, "3:old")])
async def test_a_stale_holder_is_refused(plain: Plain, queue: Queue, fields: dict[str, str], token: Any) -> None:
    """Another token, or another claim under the same token; nothing is written."""
    await queue.put({ROW: row("active", 3) | fields, "active": {job(1): 7}})
    before = await queue.state()

    with pytest.raises(Stale, match=r"^EMQSTALE extend token mismatch$"):
        await plain.extend_lock(job(1), token)

    assert await queue.state() == before
