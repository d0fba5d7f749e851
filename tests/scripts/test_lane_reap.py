"""lane_reap: expired leases of one lane go back to it; those of others stay (reap_group in the protocol)."""

from __future__ import annotations

from tests.support.control import Control
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, Queue, job, row


async def test_only_the_expired_of_that_lane(control: Control, queue: Queue) -> None:
    """Back in the lane with the slot freed and a token; the live one, another lane's and a flat one are left alone."""
    rest = {
        f"job:{job(2)}": row("active", 1, group=GROUP, held="1:ab"),
        f"job:{job(3)}": row("active", 1, group=OTHER_GROUP),
        f"job:{job(4)}": row("active", 1),
    }
    await queue.put(rest | {f"job:{job(1)}": row("active", 1, group=GROUP, held="1:ab", failures=2)})
    await queue.put({"active": {job(1): 1, job(2): FAR_MS, job(3): 1, job(4): 1}})
    await queue.put({"gactive": {GROUP: "2", OTHER_GROUP: "1"}, "glimit": {GROUP: "2"}})

    assert await control.lane_reap() == 1

    assert await queue.state() == rest | {
        # `held` stays, so that the next claim counts the crash.
        f"job:{job(1)}": row("pending", 1, group=GROUP, held="1:ab", failures=2),
        "active": {job(2): FAR_MS, job(3): 1, job(4): 1},
        f"g:{GROUP}:pending": {job(1): 0},
        "gactive": {GROUP: "1", OTHER_GROUP: "1"},
        "glimit": {GROUP: "2"},
        "ring": [GROUP],
        "wake": ["1"],
    }


async def test_at_most_limit(control: Control, queue: Queue) -> None:
    """The earliest deadlines first; the next call takes the rest."""
    await queue.put({f"job:{job(n)}": row("active", 1, group=GROUP) for n in (1, 2, 3)})
    await queue.put({"active": {job(1): 3, job(2): 1, job(3): 2}, "gactive": {GROUP: "3"}})

    assert await control.lane_reap(limit=2) == 2
    assert (await queue.state())["active"] == {job(1): 3}
    assert [await control.lane_reap(limit=2), await control.lane_reap(limit=2)] == [1, 0]
    assert "gactive" not in await queue.state()


async def test_it_looks_past_many_of_other_lanes(control: Control, queue: Queue) -> None:
    """Two thousand expired leases of another lane stand before the one that is looked for."""
    await queue.put({f"job:{job(n)}": row("active", 1, group=OTHER_GROUP) for n in range(2_000)})
    await queue.put({f"job:{job(3_000)}": row("active", 1, group=GROUP)})
    await queue.put({"active": {job(n): 1 for n in range(2_000)} | {job(3_000): 2}})

    assert await control.lane_reap() == 1

    assert (await queue.state())[f"g:{GROUP}:pending"] == {job(3_000): 0}


async def test_a_paused_lane_gets_them_back_without_a_token(control: Control, queue: Queue) -> None:
    """They wait in the lane, which is not on the ring."""
    await queue.put({f"job:{job(1)}": row("active", 1, group=GROUP), "active": {job(1): 1}, "gactive": {GROUP: "1"}})
    await queue.put({"paused": {GROUP}})

    assert await control.lane_reap() == 1

    assert await queue.state() == {
        f"job:{job(1)}": row("pending", 1, group=GROUP),
        f"g:{GROUP}:pending": {job(1): 0},
        "paused": {GROUP},
    }


async def test_a_dead_or_scheduled_one_is_only_dropped(control: Control, queue: Queue) -> None:
    """A foreign client left them in active: each leaves it, with its slot, and runs no second time."""
    rest = {
        f"job:{job(1)}": row("dead", 1, group=GROUP),
        "dead": {job(1): 0},
        f"job:{job(2)}": row("scheduled", 1, group=GROUP),
        "schedule": {job(2): FAR_MS},
    }
    await queue.put(rest | {"active": {job(1): 1, job(2): 1}, "gactive": {GROUP: "2"}})

    assert await control.lane_reap() == 2

    assert await queue.state() == rest
