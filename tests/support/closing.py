"""Workers whose end something of the user's holds up, each in another way, for worker processes under test.

Run as `python -m echomq_worker run tests.support.closing:worker`; `TEST_CLOSING` says which way.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from echomq_worker import Worker
from tests.support.waiting import never_ends

worker = Worker()
_WAY = os.environ.get("TEST_CLOSING", "lifespan waits")


async def swallows() -> None:
    """Takes no cancellation for an answer."""
    os.write(1, b"it swallows\n")
    while True:
        try:
            await never_ends()
        except asyncio.CancelledError:
            continue


@worker.lifespan
async def endless() -> AsyncIterator[None]:
    """Says when it is left."""
    if _WAY == "start swallows":
        await swallows()
    try:
        yield
    finally:
        if _WAY in {"lifespan waits", "lifespan swallows"}:
            print("the lifespan closes", flush=True)  # noqa: T201 - what the test waits for
            await (swallows() if _WAY == "lifespan swallows" else never_ends())


async def nothing() -> None:
    """Nothing to do."""


for _queue in ("lifespan", "start", "hook", "observer"):
    worker.handler(_queue)(nothing)


if _WAY == "hook swallows":
    worker.on_complete(swallows)

if _WAY == "observer swallows":

    @worker.observe
    async def observer(_event: object) -> None:
        """Is told, and does not end."""
        await swallows()
