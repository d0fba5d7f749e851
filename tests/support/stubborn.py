"""Handlers that do not let themselves be stopped, each in another way, for worker processes under test.

Run as `python -m echomq_worker run tests.support.stubborn:worker`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time

from echomq_worker import Job, Worker
from tests.support.waiting import works_for, works_plainly_for

worker = Worker()
_LONG_S = 60.0
_tasks: set[asyncio.Task[None]] = set()


@worker.handler("swallows")
async def swallows(job: Job) -> None:
    """Takes no cancellation for an answer."""
    os.write(1, b"begun\n")
    until = time.monotonic() + _LONG_S
    while time.monotonic() < until:
        try:
            await works_for(_LONG_S * 1000)
        except asyncio.CancelledError:
            continue


async def _forever() -> None:
    await swallows(None)  # type: ignore[arg-type]  # it does not look at the job


@worker.handler("task")
async def task(job: Job) -> None:
    """Leaves a task behind that does the same."""
    _tasks.add(asyncio.create_task(_forever()))


@worker.handler("to_thread")
async def to_thread(job: Job) -> None:
    """Waits for a thread of the event loop's executor."""
    os.write(1, b"begun\n")
    await asyncio.to_thread(time.sleep, _LONG_S)


@worker.handler("thread")
async def thread(job: Job) -> None:
    """Leaves a thread of its own behind that is no daemon."""
    os.write(1, b"begun\n")
    threading.Thread(target=time.sleep, args=(_LONG_S,), daemon=False).start()


@worker.handler("plain")
def plain(job: Job) -> None:
    """A plain function."""
    os.write(1, b"begun\n")
    works_plainly_for(_LONG_S * 1000)
