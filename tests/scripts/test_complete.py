"""complete: the row is deleted and counted; the id is in no set any more; a slot that it held is free."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.errors import Stale
from tests.support.plain import FAR_MS, GROUP, Plain, Queue, job, row

LANE = f"g:{GROUP}:pending"
ROW = f"job:{job(1)}"
MISMATCH = r"^EMQSTALE complete token mismatch$"
DONE = {"metrics:completed": {"count": "1"}}


def active(**fields: Any) -> dict[str, Any]:
    """Job 1 in hand with token 3."""
    return {ROW: row("active", 3, **fields), "active": {job(1): FAR_MS}}


async def test_a_live_holder_leaves_nothing_but_the_count(plain: Plain, queue: Queue) -> None:
    """Row, logs, lock and a flow parent's subkeys are deleted, active is left, metrics:completed counts 1."""
    await queue.put(
        active(held="3:ab", crashes="1:3")
        | {
            f"{ROW}:logs": ["line"],
            f"{ROW}:lock": "3",
            f"{ROW}:dependencies": "0",
            f"{ROW}:processed": {"a": "b"},
            f"{ROW}:failed": {"c": "d"},
            f"{ROW}:unsuccessful": {"e": "f"},
        }
    )

    assert await plain.complete(job(1), 3) == 1

    assert await queue.state() == DONE


@pytest.mark.parametrize("token", [2, 4, "03", "3.0", ""])
async def test_another_token_is_stale_and_writes_nothing(plain: Plain, queue: Queue, token: Any) -> None:
    """The token is compared as a string with the row's attempts."""
    await queue.put(active())
    before = await queue.state()

    with pytest.raises(Stale, match=MISMATCH):
        await plain.complete(job(1), token)

    assert await queue.state() == before


async def test_the_random_of_a_claim_is_compared_where_held_stands(plain: Plain, queue: Queue) -> None:
    """An id that was enqueued again starts at token 1 again: an old holder's random does not fit."""
    await queue.put({ROW: row("active", 1, held="1:new"), "active": {job(1): FAR_MS}})
    before = await queue.state()

    with pytest.raises(Stale, match=MISMATCH):
        await plain.complete(job(1), "1:old")
    assert await queue.state() == before

    assert await plain.complete(job(1), "1:new") == 1
    assert await queue.state() == DONE


@pytest.mark.parametrize("fields", [{}, {"held": "3:ab"}])
async def test_a_plain_token_and_a_row_without_held_compare_attempts_only(
    plain: Plain, queue: Queue, fields: dict[str, str]
) -> None:
    """A plain client has no random; where `held` was cleared (disowned) there is none to compare."""
    await queue.put(active(**fields))

    assert await plain.complete(job(1), 3 if fields else "3:ab") == 1

    assert await queue.state() == DONE


async def test_a_row_that_is_gone_answers_0_and_is_cleaned_out(plain: Plain, queue: Queue) -> None:
    """Nothing is counted; whatever set the id was left in, it leaves, and the lock goes."""
    await queue.put(
        {
            "active": {job(1): FAR_MS, job(2): FAR_MS},
            "pending": {job(1): 0},
            "schedule": {job(1): 5},
            f"{ROW}:lock": "1",
        }
    )

    assert await plain.complete(job(1), 3) == 0
    assert await plain.complete(job(1), 3) == 0

    assert await queue.state() == {"active": {job(2): FAR_MS}}


@pytest.mark.parametrize("answer", ["scheduled", "delayed"])
async def test_a_token_that_has_settled_otherwise_is_stale(plain: Plain, queue: Queue, answer: str) -> None:
    """After its retry or delay the same claim has nothing left to complete."""
    await queue.put({ROW: row("scheduled", 3, settled=f"3:{answer}"), "schedule": {job(1): FAR_MS}})
    before = await queue.state()

    with pytest.raises(Stale, match=MISMATCH):
        await plain.complete(job(1), 3)

    assert await queue.state() == before


@pytest.mark.parametrize("fields", [{}, {"settled": "3:dead"}, {"settled": "2:scheduled"}])
async def test_a_dead_row_takes_complete(plain: Plain, queue: Queue, fields: dict[str, str]) -> None:
    """The work is done: a job that was buried meanwhile leaves the dead and its row is deleted."""
    await queue.put({ROW: row("dead", 3, last_error="stalled", **fields), "dead": {job(1): 0, job(2): 0}})

    assert await plain.complete(job(1), 3) == 1

    assert await queue.state() == DONE | {"dead": {job(2): 0}}


async def test_a_job_that_came_back_meanwhile_leaves_its_set(plain: Plain, queue: Queue) -> None:
    """Reaped and in pending, or in the schedule too (a foreign late retry): a late completion takes it out of all."""
    await queue.put({ROW: row("pending", 3), "pending": {job(1): 0, job(2): 0}, "schedule": {job(1): 5, job(2): 6}})

    assert await plain.complete(job(1), 3) == 1

    assert await queue.state() == DONE | {"pending": {job(2): 0}, "schedule": {job(2): 6}}


async def test_a_grouped_job_frees_its_slot_and_its_lane_returns(plain: Plain, queue: Queue) -> None:
    """At 1 of a limit of 1: the counter goes, the lane is on the ring again with one token."""
    await queue.put(active(group=GROUP) | {LANE: {job(2): 0}, "gactive": {GROUP: "1"}, "glimit": {GROUP: "1"}})

    assert await plain.complete(job(1), 3) == 1

    assert await queue.state() == DONE | {
        LANE: {job(2): 0},
        "glimit": {GROUP: "1"},
        "ring": [GROUP],
        "wake": ["1"],
    }


@pytest.mark.parametrize(
    ("keeps_off", "ring"),
    [
        ({"paused": {GROUP}, LANE: {job(2): 0}}, None),
        ({}, None),
        ({"glimit": {GROUP: "1"}, LANE: {job(2): 0}}, None),
        ({"ring": [GROUP], LANE: {job(2): 0}}, [GROUP]),
    ],
    ids=["paused", "empty", "still full", "there already"],
)
async def test_a_lane_that_cannot_be_served_stays_off_the_ring(
    plain: Plain, queue: Queue, keeps_off: dict[str, Any], ring: list[str] | None
) -> None:
    """Paused, empty or still at its limit: not on the ring; there already: not twice. Nobody is woken for it."""
    await queue.put(active(group=GROUP) | {"gactive": {GROUP: "2"}} | keeps_off)

    assert await plain.complete(job(1), 3) == 1

    state = await queue.state()
    assert state["gactive"] == {GROUP: "1"}
    assert state.get("ring") == ring
    assert "wake" not in state


async def test_no_slot_is_freed_twice(plain: Plain, queue: Queue) -> None:
    """A job that recovery had put back (slot freed then) leaves its lane; the counter is another job's."""
    await queue.put({ROW: row("pending", 3, group=GROUP), LANE: {job(1): 0}, "ring": [GROUP], "gactive": {GROUP: "1"}})

    assert await plain.complete(job(1), 3) == 1

    # It was the lane's last member: whoever empties a lane drops its ring entry.
    assert await queue.state() == DONE | {"gactive": {GROUP: "1"}}


async def test_a_full_ceiling_that_is_left_wakes_a_consumer(plain: Plain, queue: Queue) -> None:
    """With meta.concurrency set and work waiting, an ending pushes a `ready` token; without work, none."""
    await queue.put(active() | {"meta": {"concurrency": "1"}, "pending": {job(2): 0}})
    await plain.complete(job(1), 3)
    assert (await queue.state())["ready"] == ["1"]

    await queue.raw.flushall()
    await queue.put(active() | {"meta": {"concurrency": "1"}})
    await plain.complete(job(1), 3)
    assert "ready" not in await queue.state()
