"""Executor: a job in hand that is ended from outside, and the runner that lives on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import anyio
import pytest

from echomq_worker.job import LEASE_LOST, SHUTDOWN, Job, Reason, cancel
from echomq_worker.outcome import Abandoned, Outcome
from echomq_worker.verdict import Complete, Delay, DelayTo, RetryLater
from tests.support.executing import a_job, executor, outcome_of, runner_of
from tests.support.waiting import never_ends, wait_until, works_for

Body = Callable[[Job], Awaitable[None]]


async def _lets_it_pass(_: Job) -> None:
    await never_ends()


async def _swallows(_: Job) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await never_ends()


async def _swallows_and_works_on(_: Job) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await never_ends()
    await works_for(2)


async def _swallows_and_uncancels(_: Job) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await never_ends()
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


async def _raises_instead(_: Job) -> None:
    try:
        await never_ends()
    except asyncio.CancelledError:
        raise OSError("while leaving") from None


async def _steers(_: Job) -> None:
    try:
        await never_ends()
    except asyncio.CancelledError:
        raise Delay(5) from None


async def _checks(job: Job) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await never_ends()
    job.check_cancelled()


async def _in_a_group(_: Job) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(never_ends())
        group.create_task(never_ends())


async def _in_an_anyio_group(_: Job) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 60)
        with anyio.move_on_after(60):
            await anyio.sleep_forever()


async def _groups_its_cancellation(_: Job) -> None:
    try:
        await never_ends()
    except asyncio.CancelledError as exc:
        raise BaseExceptionGroup("both", [exc]) from None


@pytest.mark.parametrize(
    ("body", "after_shutdown"),
    [
        (_lets_it_pass, Abandoned(SHUTDOWN)),
        (_swallows, Complete()),
        (_swallows_and_works_on, Complete()),
        (_swallows_and_uncancels, Complete()),
        (_raises_instead, Abandoned(SHUTDOWN)),
        (_steers, DelayTo("in", 5)),
        (_checks, Abandoned(SHUTDOWN)),
        (_in_a_group, Abandoned(SHUTDOWN)),
        (_in_an_anyio_group, Abandoned(SHUTDOWN)),
        (_groups_its_cancellation, Abandoned(SHUTDOWN)),
    ],
)
@pytest.mark.parametrize("reason", [LEASE_LOST, SHUTDOWN])
async def test_a_job_in_hand_is_ended_and_its_runner_goes_on(
    body: Body, after_shutdown: Outcome, reason: Reason
) -> None:
    """A lost lease leaves no verdict whatever the handler does; at shutdown a result or a steering counts.

    Whatever the handler made of its cancellation, the next job of the same runner completes undisturbed.
    """
    started = asyncio.Event()

    async def handler(job: Job) -> None:
        if job.payload == b"next":
            await asyncio.sleep(0)
            return
        started.set()
        await body(job)

    job = a_job()
    async with runner_of(handler) as runner:
        runner.jobs.put_nowait(job)
        await started.wait()
        assert not job.cancelled
        assert cancel(job, reason)
        assert not cancel(job, reason)
        runner.jobs.put_nowait(a_job(b"next"))
        await wait_until(lambda: len(runner.outcomes) == 2, "both jobs have ended")

    assert runner.outcomes == [Abandoned(LEASE_LOST) if reason == LEASE_LOST else after_shutdown, Complete()]
    assert job.cancel_reason == reason


async def test_a_cancellation_in_the_handler_s_last_step_does_not_reach_the_next_job() -> None:
    """A handler that is told while it runs, and then returns without awaiting, has a cancellation under way."""

    async def handler(job: Job) -> None:
        await asyncio.sleep(0)
        if job.payload == b"told":
            cancel(job, LEASE_LOST)

    async with runner_of(handler) as runner:
        for payload in (b"told", b"next", b"told", b"next"):
            runner.jobs.put_nowait(a_job(payload))
        await wait_until(lambda: len(runner.outcomes) == 4, "all jobs have ended")

    assert runner.outcomes == [Abandoned(LEASE_LOST), Complete()] * 2


async def test_a_stronger_reason_comes_on_top() -> None:
    """Told to stop, then that the lease is lost: told twice, the stronger one decides; a weaker one does nothing."""
    seen: list[object] = []
    started = asyncio.Event()

    async def handler(job: Job) -> None:
        for _ in range(2):
            try:
                started.set()
                await never_ends()
            except asyncio.CancelledError:
                seen.append(job.cancel_reason)

    job = a_job()
    async with runner_of(handler) as runner:
        runner.jobs.put_nowait(job)
        await started.wait()
        cancel(job, SHUTDOWN)
        await wait_until(lambda: seen == [SHUTDOWN], "the handler was told once")
        assert cancel(job, LEASE_LOST)
        assert not cancel(job, SHUTDOWN)
        await wait_until(lambda: len(runner.outcomes) == 1, "the job has ended")

    assert seen == [SHUTDOWN, LEASE_LOST]
    assert runner.outcomes == [Abandoned(LEASE_LOST)]


async def test_a_job_that_was_ended_before_its_start_does_not_start() -> None:
    """A lease that was lost while the job waited for its turn, or a shutdown: no handler sees it."""

    async def handler() -> None:
        raise AssertionError("started")

    def plain() -> None:
        raise AssertionError("started")

    for one in (handler, plain):
        for reason in (LEASE_LOST, SHUTDOWN):
            job = a_job()
            cancel(job, reason)
            assert await outcome_of(one, job) == Abandoned(reason)


async def test_a_mark_after_the_end_does_not_reach_the_runner() -> None:
    """A lease found lost while the verdict is under way must not cancel the runner's next job."""

    async def handler() -> None:
        await asyncio.sleep(0)

    first = a_job()
    async with runner_of(handler) as runner:
        runner.jobs.put_nowait(first)
        await wait_until(lambda: len(runner.outcomes) == 1, "the first job has ended")
        cancel(first, LEASE_LOST)
        runner.jobs.put_nowait(a_job())
        await wait_until(lambda: len(runner.outcomes) == 2, "the second job has ended")

    assert runner.outcomes == [Complete(), Complete()]


async def test_a_cancelled_runner_is_not_held_back() -> None:
    """A cancellation without a mark is the runner's own and passes, also beside a mark."""
    started = asyncio.Event()

    async def handler() -> None:
        started.set()
        await never_ends()

    for marked in (False, True):
        started.clear()
        job = a_job()
        async with executor(handler) as made:
            task = asyncio.ensure_future(made.execute(job))
            await started.wait()
            if marked:
                cancel(job, SHUTDOWN)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_a_cancelled_scope_around_the_runner_is_left() -> None:
    """The same for a cancel scope of anyio, also where the handler answers with another exception."""
    started = asyncio.Event()

    async def raises_instead() -> None:
        try:
            started.set()
            await never_ends()
        except asyncio.CancelledError:
            raise OSError("while leaving") from None

    async with executor(raises_instead) as made:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def run() -> None:
                    await made.execute(a_job())
                    raise AssertionError("went on")

                group.start_soon(run)
                await started.wait()
                scope.cancel()

    assert scope.cancelled_caught


async def test_a_handler_that_cancels_itself_leaves_its_runner_alone() -> None:
    """What it does not clear away does not reach the next job; awaiting a cancelled task is a failed run."""

    async def handler(job: Job) -> None:
        task = asyncio.current_task()
        assert task is not None
        if job.payload == b"caught":
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        elif job.payload == b"pending":
            task.cancel()
        elif job.payload == b"inner":
            inner = asyncio.ensure_future(never_ends())
            inner.cancel()
            await inner
        await asyncio.sleep(0) if job.payload == b"next" else None

    async with runner_of(handler) as runner:
        for payload in (b"caught", b"next", b"pending", b"next", b"inner", b"next"):
            runner.jobs.put_nowait(a_job(payload))
        await wait_until(lambda: len(runner.outcomes) == 6, "all jobs have ended")

    failed = RetryLater(1_000, "CancelledError")
    assert runner.outcomes == [Complete(), Complete(), Complete(), Complete(), failed, Complete()]


async def test_one_of_many_is_ended() -> None:
    """A hundred jobs in hand, every third one loses its lease: exactly those are abandoned."""
    waiting, gate = 0, asyncio.Event()

    async def handler() -> None:
        nonlocal waiting
        waiting += 1
        await gate.wait()

    jobs = [a_job() for _ in range(100)]
    async with executor(handler) as made:
        running = [asyncio.create_task(made.execute(job)) for job in jobs]
        await wait_until(lambda: waiting == 100, "all are in hand")
        for job in jobs[::3]:
            cancel(job, LEASE_LOST)
        gate.set()
        outcomes = await asyncio.gather(*running)

    assert outcomes == [Complete() if number % 3 else Abandoned(LEASE_LOST) for number in range(100)]
