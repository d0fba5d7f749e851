"""Handlers that run under today's package and under the release before: only what both have.

Source: issue "The five promises", rolling upgrade. Notes are those of tests/support/app.py.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from echomq_worker import Job, Worker
from tests.support.waiting import works_for

worker = Worker()


def _note(what: str, job: Job) -> None:
    with open(os.environ["TEST_NOTES"], "a", encoding="utf-8") as notes:  # noqa: PTH123 - one write, appended
        notes.write(f"{what} {job.id} {job.attempts} {os.getpid()} {time.time():.4f}\n")


@worker.handler("jobs", concurrency=10, retry=200, max_attempts=3)
async def run(job: Job, payload: dict[str, Any]) -> None:
    """`sleep_ms`, then fail so many times as `fails` says; a claim that was handed over is no failure."""
    _note("start", job)
    try:
        await works_for(payload.get("sleep_ms", 0))
    except asyncio.CancelledError:
        _note("cancelled", job)
        raise
    if job.failures < payload.get("fails", 0):
        _note("failed", job)
        raise RuntimeError("as asked")
    _note("end", job)


@worker.handler("children", concurrency=5)
async def child(job: Job, payload: dict[str, Any]) -> dict[str, Any]:
    """A flow's child: returns its payload."""
    _note("start", job)
    await works_for(20)
    _note("end", job)
    return payload


@worker.handler("parents", concurrency=5)
async def parent(job: Job) -> None:
    """A flow's parent: it ends well only with what all of its three children returned."""
    _note("start", job)
    values = await job.children_values()
    assert sorted(str(value) for value in values.values()) == ["{'n': 0}", "{'n': 1}", "{'n': 2}"], values
    _note("end", job)


@worker.handler("ticks", concurrency=2)
async def tick(job: Job) -> None:
    """An occurrence of a repeat."""
    _note("tick", job)
