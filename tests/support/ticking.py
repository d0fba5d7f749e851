"""Handlers for worker processes whose jobs come from repeats: each notes which repeat its job is an occurrence of.

Run as `python -m echomq_worker run tests.support.ticking:worker`, with `TEST_NOTES` naming the file. A line of it is
`name id`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from echomq_worker import Job, Worker

worker = Worker()


def occurrences(path: Path) -> dict[str, list[str]]:
    """The ids of each repeat's jobs that a handler has begun, in order of their mint; a job that ran twice is one."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for line in path.read_text().splitlines() if path.exists() else []:
        name, id = line.split()
        found[name].add(id)
    return {name: sorted(ids) for name, ids in found.items()}


def _note(job: Job) -> None:
    handle = os.open(os.environ["TEST_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, f"{job.payload.decode()} {job.id}\n".encode())
    finally:
        os.close(handle)


@worker.handler("many")
async def many(job: Job) -> None:
    """One of many repeats."""
    _note(job)


@worker.handler("grid")
async def grid(job: Job) -> None:
    """The repeat that keeps its grid."""
    _note(job)
