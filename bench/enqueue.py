"""`python -m bench.enqueue`: jobs enqueued by one process: one awaited call after another, from 100 coroutines at a
time, and `enqueue_many`.

Prints one line of JSON: jobs per second of each way, and what the server was asked for per job.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable

from bench.harness import PAYLOAD, commands, report, server, spread
from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs

QUEUE = "bench"
COROUTINES = 100


async def one(jobs: Jobs, count: int) -> None:
    """One call after the other."""
    for _ in range(count):
        await jobs.enqueue(QUEUE, PAYLOAD)


async def concurrent(jobs: Jobs, count: int) -> None:
    """A hundred coroutines, each one call after the other."""
    async with asyncio.TaskGroup() as group:
        for _ in range(COROUTINES):
            group.create_task(one(jobs, count // COROUTINES))


async def many(jobs: Jobs, count: int) -> None:
    """One call of enqueue_many."""
    await jobs.enqueue_many(QUEUE, [PAYLOAD] * count)


WAYS: dict[str, tuple[Callable[[Jobs, int], Awaitable[None]], int]] = {
    "one": (one, 5_000),
    "concurrent": (concurrent, 40_000),
    "many": (many, 100_000),
}


async def run(way: str, count: int) -> dict[str, float]:
    """`count` jobs on a server of their own. Raises RuntimeError when some are missing."""
    with server() as url:
        async with connect(url) as connector:
            jobs = Jobs(connector)
            await WAYS[way][0](jobs, COROUTINES)
            before, used, started = await commands(connector), time.process_time(), time.perf_counter()
            await WAYS[way][0](jobs, count)
            seconds, cpu = time.perf_counter() - started, time.process_time() - used
            spent = (await commands(connector)).since(before)
            waiting = (await jobs.counts(QUEUE)).pending
    if waiting != count + COROUTINES:
        raise RuntimeError(f"{waiting} jobs are pending, expected {count + COROUTINES}")
    return {
        "jobs_per_s": count / seconds,
        "reads_per_job": spent.reads / count,
        "server_us_per_job": spent.usec["evalsha"] / count,
        "producer_us_per_job": cpu / count * 1e6,
    }


def main() -> None:
    """Run the benchmark with the options of the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--scale", type=float, default=1.0, help="of the number of jobs")
    options.add_argument("--runs", type=int, default=5)
    given = options.parse_args()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    figures = {}
    for way, (_, jobs) in WAYS.items():
        count = max(COROUTINES, round(jobs * given.scale) // COROUTINES * COROUTINES)
        rows = [asyncio.run(run(way, count)) for _ in range(given.runs)]
        figures[way] = {"jobs": count} | {name: spread([row[name] for row in rows]) for name in rows[0]}
        if cores:
            os.sched_setaffinity(0, cores)
    report("enqueue", runs=given.runs, **figures)


if __name__ == "__main__":
    main()
