"""A worker to copy: five kinds of job, what produces them, and nothing else.

`echomq-worker demo` runs this very file beside a Valkey of its own. To run it on yours:

    cp examples/demo.py my_app.py
    export ECHOMQ_URL=redis://localhost:6379/0
    echomq-worker run my_app:worker     # in one terminal
    python my_app.py                    # in another: enqueues the jobs
"""

from __future__ import annotations

import asyncio
import logging
import os
import time

from pydantic import BaseModel

from echomq_worker import Job, Jobs, Repeat, Worker, connect

log = logging.getLogger("my_app")
worker = Worker()


class Email(BaseModel):
    """What the handler of `emails` is given: the payload, read and validated."""

    to: str
    subject: str


@worker.handler("emails", concurrency=4)
async def send_email(email: Email) -> None:
    """Returns: the job is completed. What is no Email never comes here, such a job is dead at once."""
    await asyncio.sleep(0.5)
    log.info("mail to %s: %s", email.to, email.subject)


@worker.handler("thumbnails", retry=1_000)
def make_thumbnail(job: Job) -> None:
    """A plain function runs in a thread. Raises: the job is retried, here after a second, and recovers."""
    time.sleep(0.4)
    if job.failures < 2:
        raise ConnectionError("the image store did not answer")


@worker.handler("invoices", max_attempts=3, retry=700)
async def charge_card(job: Job) -> None:
    """Raises every time: after max_attempts failed runs the job is dead, its last error is kept."""
    await asyncio.sleep(0.2)
    raise ValueError(f"card refused (attempt {job.attempts})")


@worker.handler("reminders")
async def remind(text: str) -> None:
    """Runs when it is due, not when it is enqueued."""
    log.info("time to %s", text)


@worker.handler("heartbeats")
async def beat() -> None:
    """Recurs: each occurrence is a job of its own, once per period for however many workers there are."""
    await asyncio.sleep(0.1)


async def produce(url: str) -> dict[str, tuple[str, str]]:
    """Enqueue some of everything, from any process that can reach the Valkey; returns id -> queue and what it is."""
    made: dict[str, tuple[str, str]] = {}
    async with connect(url) as connector:
        jobs = Jobs(connector)
        emails = [Email(to=f"user{number}@example.com", subject="Welcome") for number in range(1, 6)]
        for receipt in await jobs.enqueue_many("emails", emails):
            made[receipt.id] = ("emails", "completes")
        broken = await jobs.enqueue("emails", {"to": "nobody"})
        made[broken.id] = ("emails", "no Email, dead at once")
        for _ in range(2):
            thumbnail = await jobs.enqueue("thumbnails", b"")
            made[thumbnail.id] = ("thumbnails", "fails twice, recovers")
        invoice = await jobs.enqueue("invoices", {"amount": 42})
        made[invoice.id] = ("invoices", "fails until it is dead")
        reminder = await jobs.enqueue_in("reminders", "water the plants", 4_000)
        made[reminder.id] = ("reminders", "scheduled, due in 4 s")
        await Repeat(connector).register("heartbeats", "every-1.5-s", 1_500, b"")
    return made


if __name__ == "__main__":
    asyncio.run(produce(os.environ["ECHOMQ_URL"]))
