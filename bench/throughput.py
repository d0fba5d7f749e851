"""`python -m bench.throughput`: jobs drained by one worker process, and what each costs on the wire.

`--kind`: noop (default), model (payloads that pydantic reads), plain (a `def` handler, in threads), failing (one job in
twenty fails once); `--lanes N` spreads the jobs over N groups. Prints one line of JSON: jobs per second (from the first
handler call to the last, median and spread of the runs), EVALSHA calls per job, server and worker CPU per job. Exits
with 1 when a job is not completed; never because of a time.
"""

from __future__ import annotations

import argparse
import asyncio

from bench.app import QUEUE
from bench.harness import PAYLOAD, commands, report, server, spread, worker
from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs, New
from echomq_worker.lanes import Lanes


async def run(jobs: int, options: list[str], lanes: int) -> dict[str, float]:
    """One drain of `jobs` jobs on a server of its own."""
    with server() as url:
        return await _drain(url, jobs, options, lanes)


async def _drain(url: str, jobs: int, options: list[str], lanes: int) -> dict[str, float]:
    groups = [Lanes.group_for(f"tenant-{n}") for n in range(lanes)]
    async with connect(url) as connector:
        new = [New(PAYLOAD, group=groups[n % lanes]) if lanes else PAYLOAD for n in range(jobs)]
        await Jobs(connector).enqueue_many(QUEUE, new)
        before = await commands(connector)
        figures = await asyncio.to_thread(worker, "bench.app", url, "--jobs", str(jobs), *options)
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
    options.add_argument("--kind", default="noop", choices=("noop", "model", "plain", "failing"))
    options.add_argument("--jobs", type=int, default=40_000)
    options.add_argument("--concurrency", type=int, default=100)
    options.add_argument("--consumers", type=int, default=1)
    options.add_argument("--lanes", type=int, default=0)
    options.add_argument("--runs", type=int, default=5)
    given = options.parse_args()
    chosen = {name: getattr(given, name) for name in ("kind", "concurrency", "consumers")}
    words = [word for name, value in chosen.items() for word in (f"--{name}", str(value))]
    rows = [asyncio.run(run(given.jobs, words, given.lanes)) for _ in range(given.runs)]
    report(
        "throughput",
        jobs=given.jobs,
        **chosen,
        lanes=given.lanes,
        runs=given.runs,
        **{name: spread([row[name] for row in rows]) for name in rows[0]},
    )


if __name__ == "__main__":
    main()
