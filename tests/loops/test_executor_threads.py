"""Executor: plain functions in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable

import pytest

from echomq_worker.job import LEASE_LOST, SHUTDOWN, TIMEOUT, Job, cancel
from echomq_worker.options import Limits
from echomq_worker.outcome import Abandoned, Outcome
from echomq_worker.verdict import Complete, Retry, RetryLater
from tests.support.executing import QUEUE, a_job, executor, outcome_of
from tests.support.waiting import never_ends, wait_until


async def test_a_plain_function_keeps_its_slot_until_it_ends() -> None:
    """A lost lease does not stop the thread: execute returns when the function has ended, it is listed until then."""
    gate, started = threading.Event(), threading.Event()

    def handler() -> None:
        started.set()
        gate.wait(10)

    job = a_job()
    async with executor(handler) as made:
        running = asyncio.create_task(made.execute(job))
        await wait_until(started.is_set, "the function runs")
        cancel(job, LEASE_LOST)
        await asyncio.sleep(0)
        assert not running.done()
        assert made.in_threads() == [job]
        gate.set()
        assert await running == Abandoned(LEASE_LOST)
        assert made.in_threads() == []


async def test_what_still_runs_in_threads_is_known_after_the_runners_are_gone() -> None:
    """At the end of a shutdown the worker disowns exactly those jobs."""
    gate, started = threading.Event(), threading.Barrier(3)

    def handler() -> None:
        started.wait(10)
        gate.wait(10)

    jobs = [a_job(), a_job()]
    async with executor(handler) as made:
        running = [asyncio.create_task(made.execute(job)) for job in jobs]
        await asyncio.to_thread(started.wait, 10)
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        assert all(task.cancelled() for task in running)
        assert set(made.in_threads()) == set(jobs)
        gate.set()
        await wait_until(lambda: made.in_threads() == [], "the functions have ended")


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ("returns", Complete()),
        ("checks", Abandoned(SHUTDOWN)),
        ("fails", Abandoned(SHUTDOWN)),
        ("steers", RetryLater(3, "later")),
    ],
)
async def test_a_plain_function_told_of_a_shutdown(ends: str, expected: Outcome) -> None:
    """The same as for an async one: what it returned or how it steered counts, else the job is released."""
    started = threading.Event()

    def handler(job: Job) -> None:
        started.set()
        while not job.cancelled:
            threading.Event().wait(0.002)
        match ends:
            case "checks":
                job.check_cancelled()
            case "fails":
                raise OSError("while leaving")
            case "steers":
                raise Retry(3, "later")

    job = a_job()
    async with executor(handler) as made:
        running = asyncio.create_task(made.execute(job))
        await wait_until(started.is_set, "the function runs")
        cancel(job, SHUTDOWN)
        assert await running == expected


async def test_never_more_threads_than_concurrency() -> None:
    """Threads are bounded by what the consumers may have in hand together."""
    gate = threading.Event()

    def handler() -> None:
        gate.wait(10)

    async with executor(handler, limits=Limits(concurrency=2, consumers=2)) as made:
        running = [asyncio.create_task(made.execute(a_job())) for _ in range(9)]
        await wait_until(lambda: len(made.in_threads()) == 9, "all are submitted")
        names = [one.name for one in threading.enumerate() if one.name.startswith(f"echomq:{QUEUE}-")]
        assert len(names) <= 4
        gate.set()
        assert await asyncio.gather(*running) == [Complete()] * 9


async def test_a_plain_function_around_an_async_one_is_awaited() -> None:
    """A decorator that hides the coroutine function: its coroutine runs on the loop, and is cancelled there."""
    started = asyncio.Event()

    async def inner(job: Job) -> None:
        started.set()
        if job.payload != b"quick":
            await never_ends()

    def handler(job: Job) -> Awaitable[None]:
        return inner(job)

    assert await outcome_of(handler, a_job(b"quick")) == Complete()
    job = a_job()
    async with executor(handler) as made:
        started.clear()
        running = asyncio.create_task(made.execute(job))
        await started.wait()
        cancel(job, LEASE_LOST)
        assert await running == Abandoned(LEASE_LOST)


async def test_a_coroutine_that_comes_too_late_is_not_begun() -> None:
    """The lease went while the plain function made its coroutine: nothing of it runs."""
    gate, started = threading.Event(), threading.Event()

    async def inner() -> None:
        raise AssertionError("begun")

    def handler() -> Awaitable[None]:
        started.set()
        gate.wait(10)
        return inner()

    for reason, expected in [
        (LEASE_LOST, Abandoned(LEASE_LOST)),
        (SHUTDOWN, Abandoned(SHUTDOWN)),
        (TIMEOUT, RetryLater(1_000, "timeout after 60000 ms")),
    ]:
        gate.clear()
        started.clear()
        job = a_job()
        async with executor(handler, timeout_ms=60_000) as made:
            running = asyncio.create_task(made.execute(job))
            await wait_until(started.is_set, "the function runs")
            cancel(job, reason)
            gate.set()
            assert await running == expected


async def test_no_thread_to_be_had_is_a_failed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process at its limit of threads retries the job later, and its runner lives."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def handler() -> None:
        return

    monkeypatch.setattr(threading.Thread, "start", refuse)

    assert await outcome_of(handler) == RetryLater(1_000, "RuntimeError: can't start new thread")
