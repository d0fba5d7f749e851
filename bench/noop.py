"""The measured process of `throughput`: a worker whose handler does nothing, until the queue is empty."""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time

from echomq_worker import Job, Worker
from echomq_worker.logs import configure_logging


def main() -> None:
    """Run and print one line of JSON: jobs, seconds from the first handler call to the last, CPU seconds in between."""
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", type=int, required=True)
    options.add_argument("--concurrency", type=int, required=True)
    options.add_argument("--consumers", type=int, required=True)
    given = options.parse_args()
    configure_logging("json", "warning")
    worker = Worker()
    seen = 0
    marks: list[tuple[float, float]] = []

    @worker.handler("bench", concurrency=given.concurrency, consumers=given.consumers)
    async def nothing(_job: Job) -> None:
        nonlocal seen
        seen += 1
        if seen in {1, given.jobs}:
            used = resource.getrusage(resource.RUSAGE_SELF)
            marks.append((time.perf_counter(), used.ru_utime + used.ru_stime))

    done = asyncio.run(worker.run(burst=True))
    if done.completed != given.jobs or len(marks) != 2:
        raise SystemExit(f"expected {given.jobs} completed jobs, got {done.counts}")
    (first, cpu_before), (last, cpu_after) = marks
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": last - first, "cpu_s": cpu_after - cpu_before, "rss_mb": round(peak_kb / 1024, 1)}))


if __name__ == "__main__":
    main()
