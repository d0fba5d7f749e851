"""`python -m bench.io`: handlers that sleep, beside bare asyncio that sleeps as often without any wire.

Two settings: 100 ms at concurrency 100, and 10 ms at 500, this one also with `prefetch` 250. Prints one line of JSON:
jobs per second of both, and the ratio of each pair of runs.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from bench.harness import PAYLOAD, report, server, spread, worker
from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs

QUEUE = "bench"
# Sleep in ms, concurrency, jobs, prefetch.
SETTINGS = ((100, 100, 2_000, 0), (10, 500, 20_000, 0), (10, 500, 20_000, 250))


async def bare(sleep_ms: int, concurrency: int, jobs: int) -> float:
    """Seconds that as many tasks take, each of which sleeps for one job after the other."""
    started = time.perf_counter()
    left = jobs

    async def runner() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await asyncio.sleep(sleep_ms / 1000)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(runner())
    return time.perf_counter() - started


async def run(
    sleep_ms: int, concurrency: int, jobs: int, prefetch: int = 0, *, with_uvloop: bool = False
) -> dict[str, float]:
    """One drain on a server of its own, and the same sleeps without it."""
    with server() as url:
        async with connect(url) as connector:
            await Jobs(connector).enqueue_many(QUEUE, [PAYLOAD] * jobs)
        options = ["--kind", "sleep", "--sleep-ms", str(sleep_ms), "--concurrency", str(concurrency)]
        options += ["--uvloop"] * with_uvloop
        ahead = {"ECHOMQ_PREFETCH": str(prefetch)}
        figures = await asyncio.to_thread(worker, "bench.app", url, "--jobs", str(jobs), *options, **ahead)
        seconds = await bare(sleep_ms, concurrency, jobs)
    return {
        "jobs_per_s": jobs / figures["seconds"],
        "bare_per_s": jobs / seconds,
        "ratio": seconds / figures["seconds"],
        "worker_us_per_job": figures["cpu_s"] / jobs * 1e6,
    }


def main() -> None:
    """Run the benchmark with the options of the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--uvloop", action="store_true", help="for the worker; bare asyncio stays what it is")
    options.add_argument("--runs", type=int, default=5)
    given = options.parse_args()
    figures = {}
    for setting in SETTINGS:
        rows = [asyncio.run(run(*setting, with_uvloop=given.uvloop)) for _ in range(given.runs)]
        sleep_ms, concurrency, _, prefetch = setting
        name = f"{sleep_ms}ms_at_{concurrency}" + (f"_prefetch_{prefetch}" if prefetch else "")
        figures[name] = {name: spread([row[name] for row in rows]) for name in rows[0]}
    report("io", uvloop=given.uvloop, runs=given.runs, **figures)


if __name__ == "__main__":
    main()
