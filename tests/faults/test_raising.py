"""Whatever a handler raises is a failed run of its job, and ends no worker: the whole table, in one process."""

from __future__ import annotations

import signal

from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs, New
from tests.support.process import WorkerProcess
from tests.support.raising import ERRORS, OF_COROUTINES
from tests.support.waiting import wait_until

TABLE = {"async": OF_COROUTINES, "plain": ERRORS, "batch": OF_COROUTINES, "task": OF_COROUTINES}


async def test_no_exception_of_a_handler_ends_the_worker(url: str, raw: Redis) -> None:
    """A coroutine, a function in a thread, a batch and a task that the handler awaits raise each kind there is: each of
    the jobs is dead with what was raised, another handler's is completed, and the process ends with 0 when asked to.
    """
    env = {"ECHOMQ_URL": url, "ECHOMQ_BEAT_MS": "100", "ECHOMQ_LOG_FORMAT": "json"}
    ids: dict[str, tuple[str, str]] = {}
    async with connect(url) as connector:
        jobs = Jobs(connector)
        for queue, kinds in TABLE.items():
            made = await jobs.enqueue_many(queue, [New(kind) for kind in kinds])
            ids |= {one.id: (queue, kind) for one, kind in zip(made, kinds, strict=True)}

        with WorkerProcess("run", "tests.support.raising:worker", env=env) as worker:

            async def dead() -> bool:
                return sum([await raw.zcard(f"emq:{{{queue}}}:dead") for queue in TABLE]) == len(ids)

            await wait_until(dead, "every job is dead")
            await jobs.enqueue("fine", b"x")
            await worker.saw('"event": "job completed"')
            worker.send(signal.SIGTERM)
            assert await worker.ended() == 0

    for id, (queue, kind) in ids.items():
        row = await raw.hgetall(f"emq:{{{queue}}}:job:{id}")
        assert (row[b"last_error"], row[b"attempts"]) == (TABLE[queue][kind].encode(), b"1"), (queue, kind)
    # What stops an event loop is told as well: nobody may await the task. Of two in one turn uvloop tells the last.
    assert worker.records("task raised")[-1]["error"] == "SystemExit: 0"
