"""`python -m bench.latency`: how long after it was enqueued a job reaches its handler, in a worker that idles.

A producer on the server's core enqueues one job every 50 ms. Prints one line of JSON: p50, p95, p99 and the longest in
ms, of a standalone consumer and of a pool.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path

from bench.harness import pinned_to_server, report, server, serving, spread, until_parked
from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs

QUEUE = "bench"
_EVERY_S = 0.05
_LAST_S = 10.0
# The first ones wait for what a producer and a worker do once, as the reading of the scripts: they do not count.
_WARM = 5


async def run(consumers: int, jobs: int, *, with_uvloop: bool = False) -> dict[str, float]:
    """`jobs` jobs, one after the other. Raises RuntimeError when some did not arrive."""
    with tempfile.TemporaryDirectory(prefix="echomq-bench-") as folder, server() as url:
        marks = Path(folder) / "marks"
        options = ["--kind", "mark", "--concurrency", "10", "--consumers", str(consumers)] + ["--uvloop"] * with_uvloop
        async with connect(url) as connector:
            with serving(url, *options, BENCH_MARKS=str(marks)), pinned_to_server():
                await until_parked(connector)
                producer = Jobs(connector)
                for _ in range(_WARM + jobs):
                    await asyncio.sleep(_EVERY_S)
                    await producer.enqueue(QUEUE, repr(time.time()))
                waits = await _arrived(marks, _WARM + jobs)
    return {
        "p50_ms": waits[len(waits) // 2],
        "p95_ms": waits[int(len(waits) * 0.95)],
        "p99_ms": waits[int(len(waits) * 0.99)],
        "max_ms": waits[-1],
    }


async def _arrived(marks: Path, jobs: int) -> list[float]:
    deadline = time.monotonic() + _LAST_S
    lines: list[str] = []
    while time.monotonic() < deadline:
        lines = marks.read_text().splitlines()
        if len(lines) >= jobs:
            return sorted((float(arrived) - float(sent)) * 1000 for sent, arrived in map(str.split, lines[_WARM:]))
        await asyncio.sleep(0.05)
    raise RuntimeError(f"{len(lines)} of {jobs} jobs arrived within {_LAST_S} s of the last")


def main() -> None:
    """Run the benchmark with the options of the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=200)
    options.add_argument("--uvloop", action="store_true")
    options.add_argument("--runs", type=int, default=5)
    given = options.parse_args()
    figures = {}
    for name, consumers in (("standalone", 1), ("pooled", 2)):
        rows = [asyncio.run(run(consumers, given.jobs, with_uvloop=given.uvloop)) for _ in range(given.runs)]
        figures[name] = {key: spread([row[key] for row in rows]) for key in rows[0]}
    report("latency", jobs=given.jobs, uvloop=given.uvloop, runs=given.runs, cores=os.cpu_count(), **figures)


if __name__ == "__main__":
    main()
