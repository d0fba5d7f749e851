"""A law of admission: many jobs in one call leave what the same jobs leave one by one.

Source: protocol section 4 (enqueue, schedule, lanes: enqueue); our own batches have "the same effects".
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echomq_worker.connector import Connector
from echomq_worker.errors import KindRefused
from echomq_worker.jobs import Jobs, New
from tests.support.plain import GROUP, OTHER_GROUP, QUEUE, Plain, Queue, State, job

items = st.builds(
    New,
    payload=st.binary(max_size=3),
    id=st.builds(job, st.integers(1, 8), st.sampled_from(["JOB", "JOB", "JOB", "USR"])),
    group=st.sampled_from([None, None, GROUP, OTHER_GROUP]),
    # Of a scheduled job with a group there is no single verb: the batch alone admits it.
    at_ms=st.none(),
) | st.builds(
    New,
    payload=st.binary(max_size=3),
    id=st.builds(job, st.integers(1, 8)),
    at_ms=st.integers(-9, 9),
)
closed_lanes = st.sampled_from([{}, {"paused": {GROUP}}, {"glimit": {GROUP: "1"}, "gactive": {GROUP: "1"}}])


async def one_by_one(plain: Plain, batch: list[New]) -> list[str]:
    """Each job by its own verb."""
    outcomes = []
    for item in batch:
        assert item.id is not None
        try:
            if item.at_ms is not None:
                reply = await plain.schedule(item.id, item.payload, mode="at", value=item.at_ms)
            elif item.group is not None:
                reply = await plain.lane_enqueue(item.id, item.group, item.payload)
            else:
                reply = await plain.enqueue(item.id, item.payload)
            outcomes.append("admitted" if reply == 1 else "duplicate")
        except KindRefused:
            outcomes.append("refused")
    return outcomes


async def all_at_once(wire: Connector, batch: list[New]) -> list[str]:
    """All by enqueue_many."""
    receipts = await Jobs(wire).enqueue_many(QUEUE, batch)
    return ["admitted" if one.admitted else "refused" if one.refused else "duplicate" for one in receipts]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=40
)
@given(before=closed_lanes, batch=st.lists(items, max_size=12))
async def test_a_batch_is_its_jobs_one_by_one(
    wire: Connector, plain: Plain, queue: Queue, before: State, batch: list[New]
) -> None:
    """The same verdicts in the same order, and the same keyspace: rows, sets, lanes, ring, tokens."""
    found: list[tuple[Any, State]] = []
    for admit in (one_by_one(plain, batch), all_at_once(wire, batch)):
        await queue.raw.flushdb()
        await queue.put(before)
        found.append((await admit, await queue.state()))

    assert found[0] == found[1]
