"""How many commands a batch costs the server: what a row needs once per row, everything else once per batch or lane.

Source: design section 4 ("per row one HMGET and one HSET, per batch one variadic ZADD / ZREM / UNLINK").
"""

from __future__ import annotations

import pytest

from tests.support.own import Own, complete, flat, lane, merged
from tests.support.plain import Queue, State, job

JOBS = 100
LANES = 10
# Commands of a call that do not depend on how many jobs or lanes there are.
PER_CALL = 20

FLAT = flat(*range(JOBS))
IN_LANES = merged(*(lane(*range(n * LANES, (n + 1) * LANES), group=f"GRP{n:011d}") for n in range(LANES)))


async def commands(queue: Queue) -> int:
    """What the server has run so far, commands inside scripts and those of other connections included."""
    stats = await queue.raw.info("commandstats")
    ours = {name: one for name, one in stats.items() if not name.startswith(("cmdstat_info", "cmdstat_evalsha"))}
    return sum(int(one["calls"]) for one in ours.values())


@pytest.mark.parametrize(("state", "claim", "settle"), [(FLAT, 2 * JOBS, JOBS), (IN_LANES, 2 * JOBS, JOBS)])
async def test_a_batch_of_a_hundred(own: Own, queue: Queue, state: State, claim: int, settle: int) -> None:
    """A claim costs two commands a job, a settle one; a lane costs some of its own, however many of its jobs."""
    per_lane = 20 * LANES if "ring" in state else 0
    await queue.put(state)
    # The scripts are loaded by then.
    await own.claim_many(0)
    await own.settle()

    before = await commands(queue)
    jobs = (await own.claim_many(JOBS)).jobs
    between = await commands(queue)
    answers = await own.settle(*(complete(one.id, one.held, one.group) for one in jobs))
    after = await commands(queue)

    assert ({one.id for one in jobs}, answers) == ({job(n) for n in range(JOBS)}, ["done"] * JOBS)
    assert between - before <= claim + per_lane + PER_CALL
    assert after - between <= settle + per_lane + PER_CALL
