"""The Python side of a queue that it shares with an Elixir application. See README.md beside it.

export ECHOMQ_URL=redis://localhost:6379/0
echomq-worker run examples.neighbours.worker:worker
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator

from pydantic import BaseModel

from echomq_worker import Job, Lanes, Worker, connect

log = logging.getLogger("neighbours")
worker = Worker()


class Upload(BaseModel):
    """What Elixir enqueues on `thumbnails`: JSON, as bytes."""

    path: str
    owner: str


class Made(BaseModel):
    """What Python enqueues on `notifications`, for Elixir."""

    path: str


@worker.lifespan
async def neighbours() -> AsyncIterator[Lanes]:
    """A connection for what is enqueued; the worker has its own."""
    async with connect(os.environ["ECHOMQ_URL"]) as connector:
        yield Lanes(connector)


@worker.handler("thumbnails", max_attempts=5)
async def make_thumbnail(job: Job, upload: Upload, lanes: Lanes) -> None:
    """Whoever enqueued it: ids, rows and retries are those of the protocol."""
    log.info("thumbnail of %s, attempt %d", upload.path, job.attempts)
    # In a lane: EchoMQ.Consumer claims from lanes alone.
    await lanes.enqueue("notifications", Lanes.group_for(upload.owner), Made(path=upload.path))
