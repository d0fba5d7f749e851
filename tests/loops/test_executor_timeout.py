"""Executor: a handler whose time is up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import anyio
import pytest

from echomq_worker.job import TIMEOUT, Job
from echomq_worker.verdict import Bury, Complete, RetryLater
from tests.support.executing import a_job, executor, outcome_of
from tests.support.waiting import never_ends, passes, turns, works_plainly_for


async def test_a_timeout_cancels_the_handler_and_is_a_retry() -> None:
    """The handler sees the cancellation and why; the verdict says how long it had. no_retry of others is not asked."""
    seen: list[object] = []

    async def handler(job: Job) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(job.cancel_reason)
            raise

    job = a_job()
    outcome = await outcome_of(handler, job, timeout_ms=20, no_retry=ValueError)

    assert outcome == RetryLater(1_000, "timeout after 20 ms")
    assert seen == [TIMEOUT]
    assert isinstance(job.exception, asyncio.CancelledError)


@pytest.mark.parametrize("no_retry", [TimeoutError, (ValueError, Exception)])
async def test_a_timeout_may_be_final(no_retry: Any) -> None:
    """To `no_retry` a timeout is a TimeoutError, as if the handler had raised it: dead at once, with the same words."""

    async def on_the_loop(job: Job) -> None:
        await asyncio.Event().wait()

    def in_a_thread(job: Job) -> None:
        while True:
            job.check_cancelled()
            works_plainly_for(1)

    for handler in (on_the_loop, in_a_thread):
        assert await outcome_of(handler, timeout_ms=20, no_retry=no_retry) == Bury("timeout after 20 ms")


async def test_each_of_many_jobs_has_its_own_time() -> None:
    """Jobs that start one after the other run out of time one after the other, on one timer."""
    ends: dict[bytes, list[float]] = {b"quick": [], b"slow": []}
    loop = asyncio.get_running_loop()

    async def handler(payload: bytes) -> None:
        begun = loop.time()
        try:
            await (turns(1) if payload == b"quick" else never_ends())
        finally:
            ends[payload].append(loop.time() - begun)

    async with executor(handler, timeout_ms=40) as made:
        running = []
        for number in range(8):
            running.append(asyncio.create_task(made.execute(a_job(b"slow" if number % 2 else b"quick"))))
            await passes(5, "they begin one after the other")
        outcomes = await asyncio.gather(*running)

    assert [type(one) for one in outcomes] == [Complete, RetryLater] * 4
    assert [len(each) for each in ends.values()] == [4, 4]
    assert all(0.039 <= took < 10 for took in ends[b"slow"])


async def test_a_handler_that_finishes_in_spite_of_its_timeout_has_finished() -> None:
    """What it returns after the cancellation counts; what it raises instead is its own failure."""

    async def finishes() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await never_ends()

    async def fails() -> None:
        try:
            await never_ends()
        except asyncio.CancelledError:
            raise OSError("while leaving") from None

    assert await outcome_of(finishes, timeout_ms=10) == Complete()
    assert await outcome_of(fails, timeout_ms=10) == RetryLater(1_000, "OSError: while leaving")


async def test_a_handler_s_own_timeouts_are_its_own() -> None:
    """A timeout scope inside the handler, from asyncio or anyio, is neither confused with ours nor disturbed by it."""

    async def raises() -> None:
        async with asyncio.timeout(0.005):
            await never_ends()

    async def catches() -> None:
        with anyio.move_on_after(0.005):
            await never_ends()
        async with asyncio.timeout(60):
            await never_ends()

    assert await outcome_of(raises, timeout_ms=5_000) == RetryLater(1_000, "TimeoutError")
    assert await outcome_of(catches, timeout_ms=500) == RetryLater(1_000, "timeout after 500 ms")


async def test_a_plain_function_is_told_that_its_time_is_up() -> None:
    """It cannot be stopped: leaving by check_cancelled is the timeout, returning all the same is a completion."""

    def leaves(job: Job) -> None:
        deadline = threading.Event()
        while True:
            job.check_cancelled()
            deadline.wait(0.002)

    def finishes(job: Job) -> None:
        while not job.cancelled:
            threading.Event().wait(0.002)

    assert await outcome_of(leaves, timeout_ms=20) == RetryLater(1_000, "timeout after 20 ms")
    assert await outcome_of(finishes, timeout_ms=20) == Complete()
