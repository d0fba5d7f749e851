"""A worker whose lifespan takes for ever to close, for worker processes under test.

Run as `python -m echomq_worker run tests.support.closing:worker`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from echomq_worker import Worker
from tests.support.waiting import never_ends

worker = Worker()


@worker.lifespan
async def endless() -> AsyncIterator[None]:
    """Says when it is left."""
    try:
        yield
    finally:
        print("the lifespan closes")  # noqa: T201 - what the test waits for
        await never_ends()


@worker.handler("closing")
async def nothing() -> None:
    """Nothing to do."""
