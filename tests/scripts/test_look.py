"""look: how many jobs a claim could take now; nothing is written, and a claim takes as many.

Source: issue "Every control" (the window holds no lease), script `claim_many` (what it honours).
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.own import Own, flat, lane, merged
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, Queue, State, job, row

RUNNING: State = {f"job:{job(90)}": row("active", 1), "active": {job(90): FAR_MS}}

CASES: dict[str, tuple[State, int]] = {
    "nothing": ({}, 0),
    "flat": (flat(1, 2, 3), 3),
    "more than asked for": (flat(*range(12)), 10),
    "lanes": (merged(lane(1, 2), lane(3, group=OTHER_GROUP)), 3),
    "flat and lanes": (merged(flat(1, 2), lane(3, 4, 5)), 5),
    "a lane that is not on the ring": (lane(1, 2, on_ring=False), 0),
    "a hollow lane": ({"ring": [GROUP]}, 0),
    "a paused lane on the ring": (lane(1, 2) | {"paused": {GROUP}}, 0),
    "a lane with a limit": (lane(1, 2, 3) | {"glimit": {GROUP: "2"}}, 2),
    "a lane at its limit": (lane(1, 2, 3) | {"glimit": {GROUP: "2"}, "gactive": {GROUP: "2"}}, 0),
    "a lane with one slot left": (lane(1, 2, 3) | {"glimit": {GROUP: "2"}, "gactive": {GROUP: "1"}}, 1),
    "a lane above its limit": (merged(flat(9), lane(1)) | {"glimit": {GROUP: "1"}, "gactive": {GROUP: "5"}}, 1),
    "a paused queue": (flat(1, 2) | {"meta": {"paused": "1"}}, 0),
    "a ceiling": (flat(1, 2, 3) | RUNNING | {"meta": {"concurrency": "3"}}, 2),
    "a ceiling that is reached": (flat(1, 2, 3) | RUNNING | {"meta": {"concurrency": "1"}}, 0),
    "a rate": (flat(1, 2, 3) | {"meta": {"max": "5", "window_ms": "60000"}, "limiter": "3"}, 2),
    "a rate that is spent": (flat(1, 2, 3) | {"meta": {"max": "2", "window_ms": "60000"}, "limiter": "3"}, 0),
    "a rate without a window": (flat(1, 2, 3) | {"meta": {"max": "2"}}, 3),
}


@pytest.mark.parametrize("case", CASES)
async def test_what_is_ready_is_what_a_claim_takes(own: Own, queue: Queue, case: str) -> None:
    """The number, with nothing written; then a claim gets as many."""
    state, count = CASES[case]
    await queue.put(state)
    if "limiter" in state:
        await queue.raw.pexpire(f"{queue.keys.base}limiter", 60_000)
    before = await queue.state()

    assert await own.look() == count

    assert await queue.state() == before
    assert len((await own.claim_many(10)).jobs) == count


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
@given(
    depths=st.tuples(*[st.integers(0, 6)] * 3),
    limit=st.one_of(st.none(), st.integers(0, 4)),
    ceiling=st.one_of(st.none(), st.integers(0, 9)),
    n=st.integers(1, 12),
)
async def test_it_agrees_with_the_claim(
    own: Own, queue: Queue, depths: tuple[int, int, int], limit: int | None, ceiling: int | None, n: int
) -> None:
    """Whatever stands where."""
    await queue.raw.flushall()
    plain, one, other = depths
    numbers = iter(range(100))
    state = flat(*[next(numbers) for _ in range(plain)]) if plain else {}
    for group, depth in ((GROUP, one), (OTHER_GROUP, other)):
        if depth:
            state = merged(state, lane(*[next(numbers) for _ in range(depth)], group=group))
    if limit is not None:
        state["glimit"] = {GROUP: str(limit)}
    if ceiling is not None:
        state["meta"] = {"concurrency": str(ceiling)}
    await queue.put(state)

    looked = await own.look(n)

    assert looked == len((await own.claim_many(n)).jobs)
