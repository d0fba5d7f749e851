"""A crash in any loop ends the process with its cause and code 1: never a worker that lives and does nothing."""

from __future__ import annotations

import asyncio

from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs
from tests.support.breaking import LOOPS
from tests.support.process import WorkerProcess

# As many at a time as do not make each other late.
AT_ONCE = 4


async def _end_of(name: str, url: str) -> tuple[int, WorkerProcess]:
    """Run a worker with a bug in that loop, and a job in each of its queues, to its end."""
    async with connect(url) as connector:
        for queue in ("one", "pool", "batch"):
            await Jobs(connector).enqueue(queue, b"x")
        if name == "script":
            await connector.call("SET", "emq:{one}:active", "not a set")
    env = {"ECHOMQ_URL": url, "TEST_BREAKS": name, "ECHOMQ_LOG_FORMAT": "json", "ECHOMQ_LEASE_MS": "200"}
    env |= {"ECHOMQ_BEAT_MS": "2" if name == "script" else "50", "ECHOMQ_BLOCKED_MS": "40"}
    options = ("--burst",) if name == "burst" else ()
    with WorkerProcess("run", "tests.support.breaking:worker", *options, env=env) as worker:
        return await worker.ended(), worker


async def test_a_bug_in_any_loop_ends_the_process_with_its_cause(url: str) -> None:
    """Each loop in turn: code 1, one line of the log with the trace, and the cause on the last line. A runner whose
    handler cancels it is named as it is; a script that the server answers with errors is no server that is away.

    Report 57 (tastyware/streaq#43).
    """
    names = [*LOOPS, "slot", "script"]
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, name: str) -> tuple[int, WorkerProcess]:
        async with gate:
            return await _end_of(name, f"{url.removesuffix('/0')}/{number + 1}")

    ends = await asyncio.gather(*(one(number, name) for number, name in enumerate(names)))

    for name, (code, worker) in zip(names, ends, strict=True):
        assert code == 1, f"{name}: {worker.log_text()[-2000:]}"
        last = worker.lines()[-1]
        if name == "slot":
            assert "its handler cancelled the task that it runs in" in last
            continue
        if name == "script":
            assert last.startswith("echomq-worker: the worker has crashed: ServerError: WRONGTYPE ")
            continue
        # Several loops of one kind may end at once.
        assert last.partition(" (and ")[0] == f"echomq-worker: the worker has crashed: RuntimeError: a bug in {name}"
        (crashed,) = worker.records("worker crashed")
        assert "a bug in" in crashed["exception"], name
        assert not [line for line in worker.lines() if line.startswith(("Traceback", "  |"))], name
