"""queue_pause: nothing of the queue is claimed by our workers; what is in hand goes on."""

from __future__ import annotations

from tests.support.control import REPEATS, Control
from tests.support.own import complete, flat, lane, merged
from tests.support.plain import FAR_MS, GROUP, Queue, job, row


async def test_only_the_mark_is_written(control: Control, queue: Queue) -> None:
    """Whatever the queue holds stands as it stood; pausing twice is fine."""
    before = merged(flat(1), lane(2), REPEATS, {"meta": {"concurrency": "5"}})
    await queue.put(before)

    assert [await control.queue_pause(), await control.queue_pause()] == [1, 1]

    assert await queue.state() == before | {"meta": {"concurrency": "5", "paused": "1"}}


async def test_nothing_is_claimed(control: Control, queue: Queue) -> None:
    """Neither flat jobs nor those of lanes, whatever comes in meanwhile; and nothing is written by asking."""
    await queue.put(merged(flat(1), lane(2)))
    await control.queue_pause()
    await control.enqueue(job(3))
    before = await queue.state()

    claim = await control.claim_many(9)

    assert (claim.why, claim.ids) == ("paused", [])
    assert await queue.state() == before


async def test_what_is_in_hand_ends(control: Control, queue: Queue) -> None:
    """A verdict on a paused queue counts, and a lease is kept."""
    await queue.put({f"job:{job(n)}": row("active", 1, group=GROUP, held="1:ab") for n in (1, 2)})
    await queue.put({"active": {job(1): FAR_MS, job(2): 1}, "gactive": {GROUP: "2"}})
    await control.queue_pause()

    assert await control.settle(complete(job(1), "1:ab", GROUP)) == ["done"]
    assert await control.keep(job(2), "1:ab") == []

    state = await queue.state()
    assert state["gactive"] == {GROUP: "1"}
    assert state["active"][job(2)] > 1
