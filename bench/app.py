"""The measured process of the benchmarks: one worker with one handler on each of its queues.

`python -m bench.app --kind noop --jobs 40000` drains what waits and prints one line of JSON. With `--forever` it serves
until SIGTERM; a `mark` handler then writes when each job arrived to the file named by BENCH_MARKS.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from pydantic import BaseModel

from echomq_worker import Job, Retry, Worker
from echomq_worker.logs import configure_logging

QUEUE = "bench"


class Payload(BaseModel):
    """What `harness.PAYLOAD` holds."""

    id: int
    name: str


@dataclass(slots=True)
class Marks:
    """When the first and the last of `jobs` runs were, and the CPU seconds of this process by then. `apart` runs at
    either end are left out.
    """

    jobs: int
    apart: int = 0
    seen: int = 0
    failed: set[str] = field(default_factory=set)
    at: list[tuple[float, float]] = field(default_factory=list)

    def hit(self) -> None:
        """One run."""
        self.seen += 1
        if self.seen in {1 + self.apart, self.jobs - self.apart}:
            self.take()

    def take(self) -> None:
        """Note the time and the CPU seconds."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        self.at.append((time.perf_counter(), used.ru_utime + used.ru_stime))


def _handlers(marks: Marks, sleep_ms: int) -> dict[str, Callable[..., object]]:
    async def noop(_job: Job) -> None:
        marks.hit()

    async def model(_payload: Payload) -> None:
        marks.hit()

    async def failing(job: Job) -> None:
        # One in twenty fails once, and is back at once.
        if job.id not in marks.failed and hash(job.id) % 20 == 0:
            marks.failed.add(job.id)
            raise Retry(delay_ms=0)
        marks.hit()

    async def sleep(_job: Job) -> None:
        if not marks.at:
            marks.take()
        await asyncio.sleep(sleep_ms / 1000)
        marks.seen += 1
        if marks.seen == marks.jobs:
            marks.take()

    def plain(_job: Job) -> None:
        # Threads take turns here: one that is lost would show, the run is refused then.
        marks.hit()

    async def mark(job: Job) -> None:
        now = time.time()
        os.write(out, f"{job.payload.decode()} {now}\n".encode())

    out = os.open(os.environ.get("BENCH_MARKS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return {one.__name__: one for one in (noop, model, failing, sleep, plain, mark)}


def main() -> None:
    """Run, and unless `--forever` print seconds from the first handler call to the last, CPU seconds, and RSS."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kind", default="noop", choices=("noop", "model", "failing", "sleep", "plain", "mark"))
    options.add_argument("--jobs", type=int, default=0)
    options.add_argument("--apart", type=int, default=0, help="jobs at either end that the figures leave out")
    options.add_argument("--concurrency", type=int, default=100)
    options.add_argument("--consumers", type=int, default=1)
    options.add_argument("--queues", type=int, default=1)
    options.add_argument("--sleep-ms", type=int, default=100)
    options.add_argument("--uvloop", action="store_true")
    options.add_argument("--forever", action="store_true")
    given = options.parse_args()
    configure_logging("json", "warning")
    marks = Marks(given.jobs, given.apart)
    handler = _handlers(marks, given.sleep_ms)[given.kind]
    worker = Worker()
    for name in (QUEUE, *(f"{QUEUE}-{n}" for n in range(1, given.queues))):
        worker.handler(name, concurrency=given.concurrency, consumers=given.consumers)(handler)
    # As the command `run` does it.
    gc.collect()
    gc.freeze()
    run = uvloop.run if given.uvloop else asyncio.run
    done = run(worker.run(burst=not given.forever))
    if given.forever:
        return
    if done.completed != given.jobs or len(marks.at) != 2:
        raise SystemExit(f"expected {given.jobs} completed jobs, got {done.counts}")
    (first, cpu_before), (last, cpu_after) = marks.at
    told = {"jobs": given.jobs - 2 * given.apart, "seconds": last - first, "cpu_s": cpu_after - cpu_before}
    print(json.dumps({**told, "rss_mb": round(_peak_kb() / 1024, 1)}))


def _peak_kb() -> int:
    """Of this program; what getrusage tells begins with the process that started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
