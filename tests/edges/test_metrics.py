"""Metrics: what is where, what is late, which set holds a job."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.connector import Connector
from echomq_worker.errors import EchoMQError, InvalidArgument, InvalidId, InvalidQueueName
from echomq_worker.identity import encode
from echomq_worker.metrics import LaneView, Limits, Metrics
from echomq_worker.repeat import Repeat
from echomq_worker.rows import Counts, Totals
from tests.support.clock import ManualClock
from tests.support.control import REPEATS
from tests.support.own import flat, lane, merged
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, QUEUE, Queue, State, job, row

EPOCH_MS = 1_704_067_200_000


@pytest.fixture
def metrics(wire: Connector) -> Metrics:
    """Metrics over a connector."""
    return Metrics(wire)


def minted(ms: int) -> str:
    """A job's id that was minted then, in ms since 1970."""
    return encode("JOB", (ms - EPOCH_MS) << 22)


STATES: dict[str, tuple[State, str]] = {
    "absent": ({}, "absent"),
    "flat": (flat(1), "pending"),
    "lane": (lane(1), "pending"),
    "active": ({f"job:{job(1)}": row("active", 1), "active": {job(1): FAR_MS}}, "active"),
    "scheduled": ({f"job:{job(1)}": row("scheduled"), "schedule": {job(1): FAR_MS}}, "scheduled"),
    "dead": ({f"job:{job(1)}": row("dead"), "dead": {job(1): 0}}, "dead"),
    "waits for children": ({f"job:{job(1)}": row("awaiting_children")}, "awaiting_children"),
    "in no set": ({f"job:{job(1)}": row("pending")}, "unknown"),
    "in no set, without a state": ({f"job:{job(1)}": {"progress": "5"}}, "unknown"),
    "without a row": ({"pending": {job(1): 0}}, "pending"),
    "a log without a row": ({f"job:{job(1)}:logs": ["line"]}, "absent"),
    "active and pending": (flat(1) | {"active": {job(1): FAR_MS}}, "active"),
}


@pytest.mark.parametrize("case", STATES)
async def test_the_state_is_the_set_that_holds_the_id(metrics: Metrics, queue: Queue, case: str) -> None:
    """Not what the row says; a job of a lane is pending."""
    state, said = STATES[case]
    await queue.put(state)

    assert await metrics.get_job_state(QUEUE, job(1)) == said

    assert await queue.state() == state


async def test_one_look_at_a_queue(metrics: Metrics, queue: Queue) -> None:
    """Counts, totals, ceilings and what is late.

    Report 34 (riverqueue/river#1258). Report 119 (tobymao/saq#276). Report 127 (python-arq/arq#297).
    """
    now = await queue.now_ms()
    old, older = minted(now - 60_000), minted(now - 90_000)
    await queue.put(
        merged(
            {f"job:{old}": row(), "pending": {old: 0, minted(now): 0}},
            {f"job:{older}": row(group=GROUP), f"g:{GROUP}:pending": {older: 0}, "paused": {GROUP}},
            {
                "active": {job(1): 1, job(2): FAR_MS},
                "schedule": {job(3): FAR_MS, job(4): FAR_MS + 1},
                "dead": {job(5): 0},
            },
            {"meta": {"paused": "1", "concurrency": "5", "max": "10", "window_ms": "1000"}},
            {"metrics:completed": {"count": "7"}, "metrics:failed": {"count": "3"}},
            REPEATS,
        )
    )

    stats = await metrics.stats(QUEUE)

    counts = Counts(pending=2, active=2, scheduled=2, dead=1, repeats=3, paused=True, lanes={GROUP: 1})
    assert (stats.counts, stats.totals) == (counts, Totals(completed=7, failed=3))
    assert stats.limits == Limits(concurrency=5, rate=10, window_ms=1_000)
    assert stats.oldest_pending_age_ms is not None
    assert 90_000 <= stats.oldest_pending_age_ms < 100_000
    assert (stats.expired_leases, stats.next_due_ms) == (1, FAR_MS)
    assert await metrics.counts(QUEUE) == counts
    assert await metrics.metrics(QUEUE) == stats.totals
    assert await metrics.depths(QUEUE) == {GROUP: 1}


async def test_an_empty_queue(metrics: Metrics) -> None:
    """Nothing is late where nothing is."""
    stats = await metrics.stats(QUEUE)

    assert stats.counts == Counts(pending=0, active=0, scheduled=0, dead=0, repeats=0, paused=False, lanes={})
    assert stats.limits == Limits(None, None, None)
    assert (stats.oldest_pending_age_ms, stats.expired_leases, stats.next_due_ms) == (None, 0, None)
    assert await metrics.lanes(QUEUE) == []


async def test_what_others_wrote_breaks_no_look(metrics: Metrics, queue: Queue) -> None:
    """Ids that are none, a ceiling that is no number, a run-at that never comes, an id from the future."""
    future = minted(await queue.now_ms() + 3_600_000)
    await queue.put({"pending": {"job-7": 0}, "schedule": {job(1): float("inf")}, "meta": {"concurrency": "many"}})

    stats = await metrics.stats(QUEUE)
    assert (stats.oldest_pending_age_ms, stats.next_due_ms, stats.limits.concurrency) == (None, None, None)
    await queue.put({"pending": {future: 0}})
    await queue.raw.zrem(queue.keys.pending, "job-7")

    assert await metrics.oldest_pending_age_ms(QUEUE) == 0


async def test_lanes(metrics: Metrics, queue: Queue) -> None:
    """Every lane that anything names, in order, with all that is known of it."""
    third, fourth = "GRP00000000003", "GRP00000000004"
    await queue.put(
        merged(
            lane(1, 2),
            {"gactive": {GROUP: "3"}, "gweight": {GROUP: "2"}, "glimit": {OTHER_GROUP: "0"}},
            lane(3, group=third, on_ring=False),
            {"paused": {third}, "gweight": {fourth: "heavy"}},
        )
    )

    assert await metrics.lanes(QUEUE) == [
        LaneView(GROUP, 2, 3, limit=None, weight=2, paused=False, on_ring=True),
        LaneView(OTHER_GROUP, 0, 0, limit=0, weight=1, paused=False, on_ring=False),
        LaneView(third, 1, 0, limit=None, weight=1, paused=True, on_ring=False),
        LaneView(fourth, 0, 0, limit=None, weight=1, paused=False, on_ring=False),
    ]


async def test_browse_has_a_page_of_every_set(metrics: Metrics, queue: Queue) -> None:
    """Pending, active, scheduled, dead, a lane; each from its end, by limit and offset."""
    ids = [job(n) for n in range(5)]
    for name in ("pending", "active", "schedule", "dead", f"g:{GROUP}:pending"):
        await queue.put({name: dict.fromkeys(ids, 0)})

    for state in ("pending", "active", "scheduled", "dead"):
        page = await metrics.browse(QUEUE, state, limit=2, offset=1)
        assert [view.id for view in page] == [job(3), job(2)]
    assert [view.id for view in await metrics.browse(QUEUE, group=GROUP, limit=9)] == ids[::-1]
    with pytest.raises(InvalidArgument):
        await metrics.browse(QUEUE, "dead", group=GROUP)


async def test_repeats_have_pages(metrics: Metrics, wire: Connector) -> None:
    """The earliest next run first."""
    repeat = Repeat(wire, clock=ManualClock())
    for n in range(4):
        await repeat.register(QUEUE, f"r{n}", 1_000, b"x", first_in_ms=1_000 * (4 - n))

    assert [record.name for record in await metrics.repeats(QUEUE, limit=2, offset=1)] == ["r2", "r1"]


async def test_all_queues_are_named(metrics: Metrics, queue: Queue) -> None:
    """By any key, many keys or one, once each; what is not a queue's is passed over."""
    await queue.put(flat(*range(2_500)))
    for name in ("emq:{a.b-c_D}:meta", "emq:{z}:repeat"):
        await queue.raw.hset(name, "x", "1") if name.endswith("meta") else await queue.raw.zadd(name, {"r": 1})
    seen: list[tuple[int, int]] = []

    assert await metrics.queues(progress=lambda done, total: seen.append((done, total))) == ["a.b-c_D", QUEUE, "z"]

    assert seen[-1][0] >= 2_503


async def test_one_job(metrics: Metrics, queue: Queue) -> None:
    """Its row, or None."""
    await queue.put(flat(1))

    view = await metrics.get_job(QUEUE, job(1))

    assert view is not None
    assert (view.id, view.state) == (job(1), "pending")
    assert await metrics.get_job(QUEUE, job(2)) is None


BAD: dict[str, tuple[Any, type[EchoMQError]]] = {
    "state": (lambda metrics: metrics.get_job_state(QUEUE, "JOB1"), InvalidId),
    "queue": (lambda metrics: metrics.stats("emq"), InvalidQueueName),
    "browse": (lambda metrics: metrics.browse(QUEUE, "lost"), InvalidArgument),
    "limit": (lambda metrics: metrics.browse(QUEUE, limit=0), InvalidArgument),
    "offset": (lambda metrics: metrics.repeats(QUEUE, offset=-1), InvalidArgument),
    "lane": (lambda metrics: metrics.browse(QUEUE, group="lane"), InvalidId),
}


@pytest.mark.parametrize("case", BAD)
async def test_guards(metrics: Metrics, case: str) -> None:
    """Each with its class."""
    call, refused = BAD[case]

    with pytest.raises(refused):
        await call(metrics)
