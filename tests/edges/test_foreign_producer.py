"""A producer that is not ours: plain verbs of the protocol, ids and keys of its own, and the daemon as a process."""

from __future__ import annotations

import asyncio
from collections import Counter

from redis.asyncio import Redis

from tests.support.fleet import fleet
from tests.support.foreign import Foreign
from tests.support.keyspace import is_passing, keyspace_of
from tests.support.waiting import wait_until

FIRST = {"jobs": 0, "plain": 5_000}
JOBS = 1_000
GROUPS = [f"GRP{number:011d}" for number in range(5)]
LIMITED, CEILING = GROUPS[0], 3


async def test_a_thousand_jobs_of_a_foreign_client_on_each_of_two_queues(url: str, raw: Redis) -> None:
    """A client that shares no code with the package enqueues 1,000 jobs on each of two queues of one process, half of
    them in lanes, one of which has a ceiling: each runs once, is counted, and leaves nothing behind.

    Promise 1.

    Report 86 (hibiken/asynq#910).
    """
    ids = {queue: [f"JOB{first + number:011d}" for number in range(JOBS)] for queue, first in FIRST.items()}
    for queue in ids:
        await raw.hset(f"emq:{{{queue}}}:glimit", LIMITED, str(CEILING))
    with fleet(url) as workers:
        process = workers.start("--queue", "jobs", "--queue", "plain")
        await process.saw("worker started")
        await asyncio.gather(*(_enqueue(raw, queue, ids[queue]) for queue in ids))

        for queue in ids:

            async def completed(queue: str = queue) -> bool:
                return await raw.hget(f"emq:{{{queue}}}:metrics:completed", "count") == str(JOBS).encode()

            await wait_until(completed, f"all jobs of {queue} are counted as completed", 150)
        left = await keyspace_of(raw)
        starts, ends = Counter(workers.notes("start")), workers.ended()

    assert {note.id for note in starts} == ends == {id for queue in ids for id in ids[queue]}
    assert starts.total() == len(ids) * JOBS
    assert {note.attempts for note in starts} == {1}
    # `meta` has whose turn is next.
    stays = {"{emq}:version"} | {f"emq:{{{queue}}}:{name}" for queue in ids for name in ("glimit", "meta")}
    stays |= {f"emq:{{{queue}}}:metrics:completed" for queue in ids}
    assert {key for key in left if not is_passing(key)} <= stays


async def _enqueue(raw: Redis, queue: str, ids: list[str]) -> None:
    client = Foreign(raw, queue)
    for number, id in enumerate(ids):
        if number % 2:
            assert await client.genqueue(id, b"{}", GROUPS[number % len(GROUPS)]) == 1
        else:
            assert await client.enqueue(id, b"{}") == 1
