"""Two queues, one process: an async handler with a model, a plain function with bytes, and something that both share.

export ECHOMQ_URL=redis://localhost:6379/0
echomq-worker run examples.two_queues:worker
echomq-worker enqueue emails '{"to": "ada@example.com", "subject": "Hello"}'
echomq-worker enqueue thumbnails cat.jpg --group tenant-7
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from pydantic import BaseModel

from echomq_worker import Exponential, Jitter, Job, Reject, Worker

log = logging.getLogger("two_queues")
worker = Worker()


@dataclass
class Outbox:
    """Stands for what handlers share: a client, a pool of database connections."""

    sent: list[str] = field(default_factory=list[str])


@worker.lifespan
async def shared() -> AsyncIterator[Outbox]:
    """Opened before the first job is claimed, closed after the last one is settled."""
    outbox = Outbox()
    yield outbox
    log.info("sent %d mails", len(outbox.sent))


class Email(BaseModel):
    """The payload of `emails`."""

    to: str
    subject: str


@worker.handler("emails", concurrency=50, max_attempts=5, retry=Jitter(Exponential(500, 60_000)))
async def send_email(job: Job, email: Email, outbox: Outbox) -> None:
    """A coroutine: fifty at a time on the event loop. A failure waits longer each time, with jitter."""
    if "@" not in email.to:
        raise Reject("not an address")
    outbox.sent.append(email.to)
    log.info("mail sent, attempt %d", job.attempts)


@worker.handler("thumbnails", concurrency=4, timeout_ms=30_000)
def make_thumbnail(payload: bytes) -> None:
    """A plain function: four at a time, each in a thread of its own."""
    time.sleep(0.05)
    log.info("thumbnail made of %d bytes", len(payload))
