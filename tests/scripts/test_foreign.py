"""A foreign client on the same queue: it can take what ours admit and end it, and ours what it admits.

Source: protocol section 4 ("any client may call them", "Next to a foreign worker"); the client: tests.support.foreign.
"""

from __future__ import annotations

import pytest

from tests.support.foreign import Foreign, ForeignClaim
from tests.support.plain import FAR_MS, GROUP, QUEUE, Plain, Queue, job, row


@pytest.fixture
def foreign(queue: Queue) -> Foreign:
    """Another runtime's client of queue `q`."""
    return Foreign(queue.raw, QUEUE)


async def test_it_works_through_a_queue_by_itself(foreign: Foreign, queue: Queue) -> None:
    """Flat, grouped, retried, delayed, buried, reprocessed and completed: nothing is left but the counts."""
    assert [await foreign.enqueue(job(1), b"a"), await foreign.enqueue(job(1), b"a")] == [1, 0]
    assert await foreign.genqueue(job(2), b"b", GROUP) == 1
    assert await foreign.enqueue(job(1, "USR"), b"") == "EMQKIND job id must be JOB-namespaced"

    assert await foreign.claim(30_000) == ForeignClaim(job(1), b"a", 1)
    assert await foreign.gclaim(30_000) == ForeignClaim(job(2), b"b", 1, GROUP)
    assert [await foreign.claim(1), await foreign.gclaim(1)] == [None, None]
    assert await foreign.retry(job(1), 1, 0, 2, "boom") == "scheduled"
    assert await foreign.delay(job(2), 1, -5) == 1
    assert await foreign.delay(job(2), 7, -5) == "EMQSTALE delay token mismatch"
    assert await foreign.promote() == 2

    assert await foreign.claim(0) == ForeignClaim(job(1), b"a", 2)
    assert await foreign.reap() == 1
    assert await foreign.claim(30_000) == ForeignClaim(job(1), b"a", 3)
    assert await foreign.retry(job(1), 2, 0, 2, "late") == "EMQSTALE retry token mismatch"
    assert await foreign.retry(job(1), 3, 0, 2, "boom") == "dead"
    assert await foreign.reprocess(job(2)) == "EMQSTATE not dead"
    assert [await foreign.reprocess(job(1)), await foreign.reprocess(job(9))] == [1, -1]
    assert await foreign.claim(30_000) == ForeignClaim(job(1), b"a", 4)
    assert await foreign.gclaim(30_000) == ForeignClaim(job(2), b"b", 2, GROUP)
    assert [await foreign.complete(job(1), 4), await foreign.complete(job(1), 4)] == [1, 0]
    # Its delay of a grouped job never gave the slot back: one of the things that ours repair.
    assert (await queue.state())["gactive"] == {GROUP: "2"}
    assert await foreign.complete(job(2), 2) == 1

    assert await queue.state() == {
        "gactive": {GROUP: "1"},
        "metrics:completed": {"count": "2"},
        "metrics:failed": {"count": "1"},
        "wake": ["1", "1"],
    }


async def test_it_takes_and_ends_what_ours_admit(foreign: Foreign, plain: Plain, queue: Queue) -> None:
    """Flat, a lane and the schedule; our fields do not disturb it, and the rows are gone afterwards."""
    await plain.admit_many(job(1), "a", "", "", "", job(2), "b", GROUP, "", "", job(3), "c", "", "at", 1)
    assert await foreign.promote() == 1

    claims = [await foreign.claim(30_000), await foreign.claim(30_000), await foreign.gclaim(30_000)]

    assert [claim.id for claim in claims if claim] == [job(1), job(3), job(2)]
    assert [await foreign.complete(claim.id, claim.token) for claim in claims if claim] == [1, 1, 1]
    assert await queue.state() == {
        "metrics:completed": {"count": "3"},
        "ready": ["1"],
        "wake": ["1"],
    }


async def test_ours_take_and_end_what_it_admits(foreign: Foreign, plain: Plain, queue: Queue) -> None:
    """The same the other way round; it pushes no `ready` token."""
    await foreign.enqueue(job(1), b"a")
    await foreign.genqueue(job(2), b"b", GROUP)

    assert await plain.claim() == [job(1), "a", 1]
    assert await plain.lane_claim() == [job(2), "b", 1, GROUP]
    assert [await plain.complete(job(1), 1), await plain.complete(job(2), 1)] == [1, 1]

    assert await queue.state() == {"metrics:completed": {"count": "2"}, "wake": ["1"]}


async def test_its_late_retry_beside_our_holder(foreign: Foreign, plain: Plain, queue: Queue) -> None:
    """It left the id in pending and the schedule; ours claims it, and our promote leaves it with its holder."""
    await foreign.enqueue(job(1), b"a")
    await foreign.claim(0)
    await foreign.reap()
    assert await foreign.retry(job(1), 1, -1, 9, "late") == "scheduled"
    assert set(await queue.state()) == {f"job:{job(1)}", "pending", "schedule"}

    assert await plain.claim() == [job(1), "a", 2]
    assert await plain.promote() == 1
    assert await plain.claim() == []

    assert set(await queue.state()) == {f"job:{job(1)}", "active"}


async def test_its_unconditional_slot_release(foreign: Foreign, queue: Queue) -> None:
    """What ours have to live with: a reaped job that it ends late takes another job's slot away."""
    await queue.put(
        {
            f"job:{job(1)}": row("pending", 1, group=GROUP),
            f"job:{job(2)}": row("active", 1, group=GROUP),
            f"g:{GROUP}:pending": {job(1): 0},
            "active": {job(2): FAR_MS},
            "gactive": {GROUP: "1"},
        }
    )

    assert await foreign.complete(job(1), 1) == 1

    assert "gactive" not in await queue.state()
