"""Handlers run through an executor without a consumer: jobs without a wire, and a runner task like a consumer's."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from echomq_worker.executor import Executor
from echomq_worker.handlers import Bound, Handlers
from echomq_worker.job import Job, JobContext
from echomq_worker.keyspace import Keys
from echomq_worker.options import Limits
from echomq_worker.outcome import Outcome
from tests.support.waiting import wait_until

ID = "JOB0KHTOWnGLuC"
QUEUE = "work"


def a_job(payload: bytes | None = b"{}", *, failures: int = 0) -> Job:
    """A job as a claim makes it; it has no wire."""
    return Job(JobContext(Keys(QUEUE), cast("Any", None), max_attempts=3), ID, payload, 1, failures)


def bound(handler: Callable[..., Any], *, state_type: object = None, **options: Any) -> Bound:
    """`handler` registered for a queue."""
    handlers = Handlers(state_type=state_type)
    handlers.register(QUEUE, **options)(handler)
    (made,) = handlers
    return made


@asynccontextmanager
async def executor(
    handler: Callable[..., Any],
    *,
    limits: Limits | None = None,
    announce: Callable[[Job], object] | None = None,
    draw: Callable[[int], int] | None = None,
    result: Callable[[object], bytes | None] | None = None,
    state: object = None,
    **options: Any,
) -> AsyncIterator[Executor]:
    """An executor of `handler`; its threads are gone afterwards."""
    made = Executor(bound(handler, **options), limits=limits, announce=announce, draw=draw, result=result, state=state)
    try:
        yield made
    finally:
        made.close()
        prefix = f"echomq:{QUEUE}-"
        await wait_until(
            lambda: not [one for one in threading.enumerate() if one.name.startswith(prefix)], "the threads end"
        )


async def outcome_of(handler: Callable[..., Any], job: Job | None = None, **options: Any) -> Outcome:
    """What one run of `handler` comes to."""
    async with executor(handler, **options) as made:
        job = job or a_job()
        try:
            return await made.execute(job)
        except GeneratorExit as error:
            # As the slots do it, whose runner goes on.
            return await made.closed(job, error, cast("Any", asyncio.current_task()))


@dataclass
class Runner:
    """A long-lived runner task of a consumer: takes jobs one after the other, keeps what became of them."""

    made: Executor
    jobs: asyncio.Queue[Job]
    outcomes: list[Outcome]

    async def run(self) -> None:
        """Until it is cancelled."""
        me = asyncio.current_task()
        while True:
            self.outcomes.append(await self.made.execute(await self.jobs.get(), me))


@asynccontextmanager
async def runner_of(handler: Callable[..., Any], **options: Any) -> AsyncIterator[Runner]:
    """A runner in a task; afterwards it must still have been alive, whatever the handler did."""
    async with executor(handler, **options) as made:
        runner = Runner(made, asyncio.Queue(), [])
        task = asyncio.create_task(runner.run())
        try:
            yield runner
            assert not task.done(), "the runner died"
            assert task.cancelling() == 0
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
