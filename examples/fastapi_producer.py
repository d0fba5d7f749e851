"""A FastAPI application that enqueues: one connection for its whole life, one job for a request that is repeated.

export ECHOMQ_URL=redis://localhost:6379/0
pip install fastapi uvicorn
uvicorn examples.fastapi_producer:app
curl localhost:8000/emails -H 'Content-Type: application/json' -d '{"to": "ada@example.com", "subject": "Hello"}'
echomq-worker run examples.two_queues:worker
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, TypedDict

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel

from echomq_worker import Jobs, connect
from echomq_worker.errors import WireError


class Email(BaseModel):
    """The payload of `emails`: the worker reads it with the same model."""

    to: str
    subject: str


class Shared(TypedDict):
    """What requests find in `request.state`."""

    jobs: Jobs


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[Shared, None]:
    """One connection: requests of one event loop share it, and what they send together leaves in one write."""
    async with connect(os.environ["ECHOMQ_URL"]) as connector:
        yield {"jobs": Jobs(connector)}


def shared_jobs(request: Request) -> Jobs:
    """The Jobs of this application."""
    jobs: Jobs = request.state.jobs
    return jobs


app = FastAPI(lifespan=lifespan)


@app.post("/emails", status_code=202)
async def send(email: Email, jobs: Annotated[Jobs, Depends(shared_jobs)]) -> dict[str, str | bool]:
    """Admit a mail. While one to the same address waits or runs, for an hour at most, it is the same job."""
    try:
        receipt = await jobs.enqueue("emails", email, dedup=f"mail-{email.to}", dedup_ttl_ms=3_600_000)
    except WireError:
        raise HTTPException(503, "the queue cannot be reached, try again") from None
    return {"id": receipt.id, "new": receipt.admitted}


@app.get("/emails/{id}")
async def look(id: str, jobs: Annotated[Jobs, Depends(shared_jobs)]) -> dict[str, str]:
    """How a mail stands. A job that is done leaves no row."""
    row = await jobs.get("emails", id)
    return {"state": "done, or never there" if row is None else row.state}
