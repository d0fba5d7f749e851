"""Handlers for worker processes under test. What a job does stands in its payload; what happened stands in a file.

Run as `python -m echomq_worker run tests.support.app:worker`, with `TEST_NOTES` naming the file. A line of it is
`what id attempts pid seconds`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echomq_worker import Job, Worker
from tests.support.waiting import works_for, works_plainly_for

worker = Worker()
_CONCURRENCY = int(os.environ.get("TEST_CONCURRENCY", "20"))


@dataclass(frozen=True, slots=True)
class Note:
    """One line: `what` is start, end, cancelled or failed; `at` is in seconds since 1970."""

    what: str
    id: str
    attempts: int
    pid: int
    at: float


def read_notes(path: Path, what: str | None = None) -> list[Note]:
    """The notes so far, all or of one kind."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = [
        Note(kind, id, int(attempts), int(pid), float(at)) for kind, id, attempts, pid, at in map(str.split, lines)
    ]
    return [note for note in found if what is None or note.what == what]


def _note(what: str, job: Job) -> None:
    line = f"{what} {job.id} {job.attempts} {os.getpid()} {time.time():.4f}\n"
    handle = os.open(os.environ["TEST_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


@worker.handler("jobs", concurrency=_CONCURRENCY)
async def run(job: Job, payload: dict[str, Any]) -> None:
    """`sleep_ms`, then `kill` (of this process), `fail`, or nothing; `block_ms` blocks the event loop, `block_first_ms`
    before anything else has a turn.
    """
    _note("start", job)
    works_plainly_for(payload.get("block_first_ms", 0))
    if payload.get("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        await works_for(payload.get("sleep_ms", 0))
    except asyncio.CancelledError:
        _note("cancelled", job)
        raise
    works_plainly_for(payload.get("block_ms", 0))
    if payload.get("fail"):
        _note("failed", job)
        raise RuntimeError("as asked")
    _note("end", job)


for _number in range(int(os.environ.get("TEST_MANY", "0"))):
    worker.handler(f"many-{_number}", concurrency=_CONCURRENCY)(run)


@worker.handler("plain", concurrency=_CONCURRENCY)
def plain(job: Job, payload: dict[str, Any]) -> None:
    """A plain function: it runs in a thread and cannot be stopped."""
    _note("start", job)
    works_plainly_for(payload.get("sleep_ms", 0))
    _note("end", job)


@worker.handler("other", concurrency=_CONCURRENCY)
async def other(job: Job) -> None:
    """Another queue of the same process."""
    _note("start", job)
    _note("end", job)


@worker.handler("pool", concurrency=_CONCURRENCY, consumers=4)
async def pooled(job: Job, payload: dict[str, Any]) -> None:
    """The same as `jobs`, for a pool of consumers."""
    await run(job, payload)
