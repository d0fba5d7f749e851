"""The worker of the chaos run: what a job does stands in its payload, what happened in this process's notes.

Run as `python -m echomq_worker run bench.chaos.app:worker`. `CHAOS_NOTES` is the folder of notes, `CHAOS_WORKER` the
worker's number, `CHAOS_CONCURRENCY` jobs of one queue at a time, `CHAOS_CLOCK` a file with the ms by which the host's
clock is off. No handler knows anything of faults.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.chaos.clock import SteppedClock
from bench.chaos.notes import Book, now_ms
from bench.chaos.roles import BATCH, FLOW, LANES, PARTS, PLAIN, POOL, SYNC, TICKS
from echomq_worker import Delay, Job, Reject, Worker

_GAP_LOOK_S = 0.1
_GAP_MS = 400
_RETRY_MS = 200


def build() -> Worker:
    """The worker with all its handlers, from the environment."""
    folder, number = Path(os.environ["CHAOS_NOTES"]), os.environ["CHAOS_WORKER"]
    concurrency = int(os.environ["CHAOS_CONCURRENCY"])
    made = Worker(clock=SteppedClock(Path(os.environ["CHAOS_CLOCK"])))
    book = Book(folder / f"runs-{number}-{os.getpid()}", number)

    @made.lifespan
    async def noted() -> AsyncIterator[None]:
        book.note("up", os.getppid())
        threading.Thread(target=_watch_gaps, args=(book,), name="gaps", daemon=True).start()
        yield
        book.note("down")

    _register(made, book, concurrency)
    return made


def _register(made: Worker, book: Book, concurrency: int) -> None:
    async def run(job: Job, payload: dict[str, Any]) -> object:
        return await _run(book, job, payload)

    made.handler(POOL, concurrency=concurrency, consumers=3, max_attempts=3, retry=_RETRY_MS)(run)
    # A parent reads what its children left: that fails while the server is away, and must not bury it.
    made.handler(FLOW, concurrency=concurrency, max_attempts=1_000, retry=_RETRY_MS)(run)
    for queue in (PLAIN, LANES, PARTS, TICKS):
        made.handler(queue, concurrency=concurrency, max_attempts=3, retry=_RETRY_MS)(run)

    @made.handler(SYNC, concurrency=concurrency, max_attempts=3, retry=_RETRY_MS)
    def plain(job: Job, payload: dict[str, Any]) -> None:
        book.run("start", job)
        until = now_ms() + payload["ms"]
        while (left_ms := until - now_ms()) > 0:
            if job.cancelled:
                book.run("cancelled", job)
                job.check_cancelled()
            time.sleep(min(left_ms, 50) / 1000)
        _end(book, job, payload)

    @made.batch_handler(BATCH, min_size=4, timeout_ms=200, concurrency=concurrency, max_attempts=3, retry=_RETRY_MS)
    async def batch(jobs: list[Job]) -> dict[str, object]:
        return await _batch(book, jobs)


async def _batch(book: Book, jobs: list[Job]) -> dict[str, object]:
    """One call for many jobs: each of them a run of its own, all of the same length."""
    payloads = {job.id: job.parse(dict[str, Any]) for job in jobs}
    for job in jobs:
        book.run("start", job)
    try:
        await asyncio.sleep(max(payload["ms"] for payload in payloads.values()) / 1000)
    except asyncio.CancelledError:
        for job in jobs:
            book.run("cancelled", job)
        raise
    answers: dict[str, object] = {}
    for job in jobs:
        try:
            _end(book, job, payloads[job.id])
            answers[job.id] = None
        except (Delay, Reject, RuntimeError) as raised:
            answers[job.id] = raised
    return answers


async def _run(book: Book, job: Job, payload: dict[str, Any]) -> object:
    book.run("start", job)
    try:
        if payload.get("parent"):
            values = await job.children_values()
            ignored = await job.ignored_failures()
            book.run("read", job, len(values), len(ignored))
        await asyncio.sleep(payload["ms"] / 1000)
    except asyncio.CancelledError:
        book.run("cancelled", job)
        raise
    except Exception:
        # What it read of its children could not be had: a failed run like any other, and noted as one.
        book.run("failed", job)
        raise
    _end(book, job, payload)
    return {"id": job.id} if payload.get("child") else None


def _end(book: Book, job: Job, payload: dict[str, Any]) -> None:
    """The end that the payload asks for: done, or raises. `once`: only as long as the job has not failed yet."""
    does = payload.get("does", "done")
    if does == "fail_once" and job.failures == 0:
        book.run("failed", job)
        raise RuntimeError("as asked, once")
    if does == "delay_once" and job.attempts == 1:
        book.run("delayed", job)
        raise Delay(300)
    if does == "fail":
        book.run("failed", job)
        raise RuntimeError("as asked")
    if does == "reject":
        book.run("failed", job)
        raise Reject("as asked")
    book.run("done", job)


def _watch_gaps(book: Book) -> None:
    """Note when this process did not run for a while, and whether it was computing meanwhile: a machine that is too
    busy, or SIGSTOP, which its own code is not to blame for.
    """
    before, used = now_ms(), time.process_time()
    while True:
        time.sleep(_GAP_LOOK_S)
        at, cpu = now_ms(), time.process_time()
        if at - before > _GAP_MS:
            book.note("gap", round(before), round(at), round((cpu - used) * 1000))
        before, used = at, cpu


worker = build()
