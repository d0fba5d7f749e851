"""`python -m bench.throughput`: no-op jobs drained by one worker process, and what each costs on the wire.

Prints one line of JSON: jobs per second (from the first handler call to the last, median and spread of the runs),
EVALSHA calls per job, server and worker CPU per job. Exits with 1 when a job is not completed; never because of a
time.
"""

from __future__ import annotations

import argparse
import asyncio

from bench.harness import PAYLOAD, commands, report, server, spread, worker
from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs

QUEUE = "bench"


async def run(jobs: int, concurrency: int, consumers: int) -> dict[str, float]:
    """One drain of `jobs` jobs on a server of its own."""
    with server() as url:
        return await _drain(url, jobs, concurrency, consumers)


async def _drain(url: str, jobs: int, concurrency: int, consumers: int) -> dict[str, float]:
    async with connect(url) as connector:
        await Jobs(connector).enqueue_many(QUEUE, [PAYLOAD] * jobs)
        before = await commands(connector)
        sizes = ("--jobs", str(jobs), "--concurrency", str(concurrency), "--consumers", str(consumers))
        figures = await asyncio.to_thread(worker, "bench.noop", url, *sizes)
        spent = (await commands(connector)).since(before)
    calls = spent.calls.get("evalsha", 0) + spent.calls.get("eval", 0)
    usec = spent.usec.get("evalsha", 0) + spent.usec.get("eval", 0)
    return {
        "jobs_per_s": jobs / figures["seconds"],
        "evalsha_per_job": calls / jobs,
        "server_us_per_job": usec / jobs,
        "worker_us_per_job": figures["cpu_s"] / jobs * 1e6,
        "rss_mb": figures["rss_mb"],
    }


def main() -> None:
    """Run the benchmark with the options of the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=40_000)
    options.add_argument("--concurrency", type=int, default=100)
    options.add_argument("--consumers", type=int, default=1)
    options.add_argument("--runs", type=int, default=5)
    given = options.parse_args()
    rows = [asyncio.run(run(given.jobs, given.concurrency, given.consumers)) for _ in range(given.runs)]
    report(
        "throughput",
        jobs=given.jobs,
        concurrency=given.concurrency,
        consumers=given.consumers,
        runs=given.runs,
        **{name: spread([row[name] for row in rows]) for name in rows[0]},
    )


if __name__ == "__main__":
    main()
