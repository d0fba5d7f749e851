"""Executor: context variables of one job and the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextvars import ContextVar

from echomq_worker.job import SHUTDOWN, Job, cancel
from echomq_worker.logs import current_job
from echomq_worker.outcome import Abandoned
from echomq_worker.verdict import Complete, RetryLater
from tests.support.executing import a_job, executor, outcome_of, runner_of
from tests.support.waiting import never_ends, wait_until


async def test_the_running_job_is_announced_where_the_handler_runs() -> None:
    """On the loop, in tasks that the handler starts, and in threads: log lines find their job."""
    seen: list[object] = []

    async def child() -> None:
        seen.append(current_job.get())

    async def handler() -> None:
        seen.append(current_job.get())
        await asyncio.create_task(child())

    def plain() -> None:
        seen.append(current_job.get())

    first, second, third = a_job(), a_job(), a_job()
    async with executor(handler, announce=current_job.set) as made:
        await made.execute(first)
        await made.execute(second)
    await outcome_of(plain, third, announce=current_job.set)

    assert seen == [first, first, second, second, third]


async def test_a_job_is_announced_once() -> None:
    """Also where its handler has a context of its own, and where a plain function gives a coroutine."""
    announced: list[Job] = []

    async def handler() -> None:
        _USER.set("erin")

    def plain() -> Awaitable[None]:
        return handler()

    for one in (handler, plain):
        announced.clear()
        jobs = [a_job(), a_job(), a_job()]
        async with executor(one, announce=announced.append) as made:
            for job in jobs:
                await made.execute(job)
        assert announced == jobs


_USER: ContextVar[str] = ContextVar("user", default="nobody")


class _Incomparable:
    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]  # as numpy's arrays have it


_ARRAY: ContextVar[_Incomparable] = ContextVar("array")


async def test_what_a_handler_sets_does_not_reach_the_next_job() -> None:
    """A handler that binds a context variable and forgets it: the next jobs on the same runner start clean.

    The handler keeps what it set across its own awaits, its cancellation works as ever, and what it raises arrives.
    """
    seen: list[str] = []
    started = asyncio.Event()

    async def handler(job: Job) -> None:
        seen.append(_USER.get())
        _USER.set("alice")
        await asyncio.sleep(0)
        seen.append(_USER.get())
        _ARRAY.set(_Incomparable())
        if job.payload == b"fail":
            raise ValueError("bad")
        if job.payload == b"wait":
            started.set()
            await never_ends()

    last = a_job(b"wait")
    async with runner_of(handler, announce=current_job.set) as runner:
        for payload in (b"", b"fail", b""):
            runner.jobs.put_nowait(a_job(payload))
        runner.jobs.put_nowait(last)
        await started.wait()
        cancel(last, SHUTDOWN)
        await wait_until(lambda: len(runner.outcomes) == 4, "all jobs have ended")

    assert seen == ["nobody", "alice"] * 4
    failed = RetryLater(1_000, "ValueError: bad")
    assert runner.outcomes == [Complete(), failed, Complete(), Abandoned(SHUTDOWN)]


async def test_an_unreadable_change_of_context_counts_as_one() -> None:
    """Values that cannot be compared do not make a run fail."""

    async def handler() -> None:
        _ARRAY.set(_Incomparable())

    _ARRAY.set(_Incomparable())
    async with executor(handler) as made:
        assert [await made.execute(a_job()) for _ in range(3)] == [Complete()] * 3


async def test_an_isolated_handler_can_be_any_awaitable() -> None:
    """An object with an async __call__ that hands out a future works after its context was found changed, too."""
    seen: list[object] = []

    class Service:
        async def __call__(self, job: Job) -> None:
            seen.append(current_job.get())
            _USER.set("bob")
            future = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.set_result, None)
            await future

    jobs = [a_job(), a_job(), a_job()]
    async with executor(Service(), announce=current_job.set) as made:
        for job in jobs:
            assert await made.execute(job) == Complete()

    assert seen == jobs


async def test_threads_start_clean_as_well() -> None:
    """Each call of a plain function has a context of its own."""
    seen: list[str] = []

    def handler() -> None:
        seen.append(_USER.get())
        _USER.set("carol")

    async with executor(handler) as made:
        for _ in range(3):
            await made.execute(a_job())

    assert seen == ["nobody"] * 3


async def test_a_coroutine_closed_from_outside_closes_the_handler() -> None:
    """At the end of an event loop a handler's finally blocks run, also where it runs in a context of its own."""
    closed: list[str] = []

    async def handler(job: Job) -> None:
        _USER.set("dave")
        try:
            if job.payload == b"wait":
                await asyncio.Event().wait()
        finally:
            closed.append(_USER.get())

    async with executor(handler) as made:
        task = asyncio.current_task()
        await made.execute(a_job())
        execution = made.execute(a_job(b"wait"), task)
        execution.send(None)
        execution.close()

    assert closed == ["dave", "dave"]
