"""lane_enqueue: a job is admitted to its group's lane, and the lane to the ring when it can be served."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.errors import KindRefused
from tests.support.plain import GROUP, OTHER_GROUP, Plain, Queue, job, row

LANE = f"g:{GROUP}:pending"


async def test_the_first_job_puts_the_lane_on_the_ring(plain: Plain, queue: Queue) -> None:
    """Row with its group, lane at score 0, ring, one wake token; flat pending and its tokens are untouched."""
    assert await queue.state() == {}

    assert await plain.lane_enqueue(job(1)) == 1

    assert await queue.state() == {
        f"job:{job(1)}": row(group=GROUP),
        LANE: {job(1): 0},
        "ring": [GROUP],
        "wake": ["1"],
    }


async def test_a_lane_is_on_the_ring_once(plain: Plain, queue: Queue) -> None:
    """A second job of the lane and one of another: each wakes, neither is on the ring twice."""
    for number, group in ((1, GROUP), (2, GROUP), (3, OTHER_GROUP)):
        await plain.lane_enqueue(job(number), group)

    state = await queue.state()
    assert state["ring"] == [GROUP, OTHER_GROUP]
    assert state["wake"] == ["1", "1", "1"]


@pytest.mark.parametrize(
    "closed",
    [{"paused": {GROUP}}, {"glimit": {GROUP: "1"}, "gactive": {GROUP: "1"}}, {"glimit": {GROUP: "0"}}],
    ids=["paused", "full", "limit 0"],
)
async def test_a_lane_that_cannot_be_served_takes_jobs_all_the_same(
    plain: Plain, queue: Queue, closed: dict[str, Any]
) -> None:
    """The job waits in its lane; no ring, no token."""
    await queue.put(closed)

    assert await plain.lane_enqueue(job(1)) == 1

    assert await queue.state() == closed | {f"job:{job(1)}": row(group=GROUP), LANE: {job(1): 0}}


async def test_duplicates_and_foreign_ids_write_nothing(plain: Plain, queue: Queue) -> None:
    """0 for an id that has a row, EMQKIND for one of another namespace."""
    await queue.put({f"job:{job(1)}": row("dead"), "dead": {job(1): 0}})
    before = await queue.state()

    assert await plain.lane_enqueue(job(1)) == 0
    with pytest.raises(KindRefused, match=r"^EMQKIND job id must be JOB-namespaced$"):
        await plain.lane_enqueue(job(2, "USR"))

    assert await queue.state() == before


async def test_wake_tokens_are_bounded(plain: Plain, queue: Queue) -> None:
    """A hundred admissions nobody waits for leave 64 tokens."""
    for number in range(100):
        await plain.lane_enqueue(job(number))

    assert (await queue.state())["wake"] == ["1"] * 64
