"""queue_resume: the queue is served again, and who parks is woken where something waits."""

from __future__ import annotations

import pytest

from tests.support.control import Control
from tests.support.own import flat, lane, merged
from tests.support.plain import OTHER_GROUP, Queue, State, job


@pytest.mark.parametrize(
    ("waiting", "tokens"),
    [
        ({}, {}),
        (flat(1, 2), {"ready": ["1", "1"]}),
        (merged(lane(1, 2), lane(3, group=OTHER_GROUP), flat(4)), {"ready": ["1"] * 3}),
        (flat(*range(100)), {"ready": ["1"] * 64}),
    ],
    ids=["nothing", "flat", "lanes", "many"],
)
async def test_the_mark_goes_and_tokens_come(control: Control, queue: Queue, waiting: State, tokens: State) -> None:
    """A token for each flat job and each lane, 64 at most; none where nothing waits. The rest of meta stays."""
    await queue.put(waiting | {"meta": {"paused": "1", "concurrency": "5"}})

    assert await control.queue_resume() == 1

    assert await queue.state() == waiting | {"meta": {"concurrency": "5"}} | tokens


async def test_it_is_served_again(control: Control, queue: Queue) -> None:
    """The next claim takes what waited."""
    await queue.put(flat(1) | {"meta": {"paused": "1"}})

    await control.queue_resume()

    assert (await control.claim_many(9)).ids == [job(1)]
