"""Stalled: the counting sweep as a verb."""

from __future__ import annotations

import pytest

from echomq_worker.connector import Connector
from echomq_worker.errors import InvalidArgument
from echomq_worker.stalled import Stalled
from tests.support.plain import QUEUE, Queue, job, row


async def test_recovered_and_dead(wire: Connector, queue: Queue) -> None:
    """One that stalls for the first time goes back, one for the second time is dead; then there is nothing left."""
    await queue.put({f"job:{job(1)}": row("active", 1), f"job:{job(2)}": row("active", 2, stalled=1)})
    await queue.put({"active": {job(1): 1, job(2): 2}})

    swept = await Stalled(wire).check(QUEUE, 2)

    assert (swept.recovered, swept.dead) == ([job(1)], [job(2)])
    assert await Stalled(wire).check(QUEUE, 2) == ([], [])
    assert set(await queue.state()) == {
        *(f"job:{job(1)}", f"job:{job(2)}", "pending", "ready"),
        *("dead", "metrics:failed"),
    }


async def test_dead_at_once_by_default(wire: Connector, queue: Queue) -> None:
    """Max_stalled is 1 unless told otherwise, limit 100."""
    await queue.put({f"job:{job(n)}": row("active", 1) for n in range(101)})
    await queue.put({"active": {job(n): n for n in range(101)}})

    assert [len((await Stalled(wire).check(QUEUE)).dead) for _ in range(3)] == [100, 1, 0]


@pytest.mark.parametrize(("max_stalled", "limit"), [(0, 1), (1, 0), (True, 1), (1, True)])
async def test_guards(wire: Connector, queue: Queue, max_stalled: int, limit: int) -> None:
    """Both are integers of 1 or more; nothing is sent."""
    await queue.put({"active": {job(1): 1}})

    with pytest.raises(InvalidArgument):
        await Stalled(wire).check(QUEUE, max_stalled, limit)

    assert await queue.state() == {"active": {job(1): 1}}
