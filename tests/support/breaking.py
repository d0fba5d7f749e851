"""A worker with a bug in one of its loops, for worker processes under test: `TEST_BREAKS` names the loop.

Run as `python -m echomq_worker run tests.support.breaking:worker`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from echomq_worker import Job, Worker
from echomq_worker.consumer import Consumer
from echomq_worker.leases import Leases
from echomq_worker.listener import Listener
from echomq_worker.metronome import Metronome
from echomq_worker.observers import Observers
from echomq_worker.pump import Pump
from echomq_worker.settle import Settle
from echomq_worker.station import Station
from echomq_worker.watch import Watch
from echomq_worker.window import BatchConsumer

# What the loop of a name calls in each pass.
LOOPS: dict[str, tuple[type[Any], str]] = {
    "consumer": (Consumer, "beat"),
    "consumer of batches": (BatchConsumer, "beat"),
    "metronome": (Metronome, "beat"),
    "pump": (Pump, "beat"),
    "settle": (Settle, "beat"),
    "leases": (Leases, "beat"),
    "watch": (Watch, "look"),
    "listener": (Listener, "hear"),
    "observers": (Observers, "_tell"),
    "burst": (Station, "exhausted"),
}
worker = Worker()
_BROKEN = os.environ.get("TEST_BREAKS", "")


@worker.handler("one")
async def one(job: Job) -> None:
    """A job; in a slot that breaks its handler cancels the task that it runs in."""
    if _BROKEN == "slot":
        task = asyncio.current_task()
        assert task is not None
        task.get_loop().call_soon(task.cancel)
        await asyncio.Event().wait()


@worker.handler("pool", consumers=2)
async def pool() -> None:
    """For the Metronome."""


@worker.batch_handler("batch", min_size=1, timeout_ms=10)
async def batch(jobs: list[Job]) -> None:
    """For the consumer of batches."""


@worker.observe
def observe(event: object) -> None:
    """Somebody who is told."""


def _bug(name: str) -> Callable[..., Any]:
    def look(*_: object) -> None:
        raise RuntimeError(f"a bug in {name}")

    async def beat(*_: object, **__: object) -> None:
        look()

    return look if name == "watch" else beat


if _BROKEN in LOOPS:
    setattr(*LOOPS[_BROKEN], _bug(_BROKEN))
