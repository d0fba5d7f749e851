"""Executor: a job whose end somebody asked for; what its handler makes of it, and the runner that lives on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from echomq_worker.job import LEASE_LOST, SHUTDOWN, TIMEOUT, Job, Reason, ask, cancel
from echomq_worker.outcome import Abandoned, Outcome
from echomq_worker.verdict import Bury, Complete, Delay, Reject, Retry
from tests.support.executing import a_job, outcome_of, runner_of
from tests.support.waiting import never_ends, wait_until

Body = Callable[[Job], Awaitable[None]]
DEAD = Bury("cancelled: why")


async def _lets_it_pass(_: Job) -> None:
    await never_ends()


async def _swallows(_: Job) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await never_ends()


def _raises(exc: Exception) -> Body:
    async def body(_: Job) -> None:
        try:
            await never_ends()
        except asyncio.CancelledError:
            raise exc from None

    return body


async def _asks(job: Job) -> None:
    while True:
        await asyncio.sleep(0)
        job.check_cancelled()


async def _asks_and_completes(job: Job) -> None:
    while True:
        await asyncio.sleep(0)
        if job.cancelled:
            return


async def _asks_and_fails(job: Job) -> None:
    await _asks_and_completes(job)
    raise ValueError("while leaving")


async def _asks_and_cancels_itself(job: Job) -> None:
    await _asks_and_completes(job)
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await never_ends()


@pytest.mark.parametrize(
    ("interrupt", "body", "expected"),
    [
        (True, _lets_it_pass, DEAD),
        (True, _swallows, Complete()),
        (True, _raises(OSError("x")), DEAD),
        (True, _raises(Retry(5)), DEAD),
        (True, _raises(Delay(5)), DEAD),
        (True, _raises(Reject("other")), DEAD),
        (False, _asks, DEAD),
        (False, _asks_and_completes, Complete()),
        (False, _asks_and_fails, DEAD),
        (False, _asks_and_cancels_itself, Complete()),
    ],
)
async def test_what_a_job_comes_to_whose_end_was_asked_for(interrupt: bool, body: Body, expected: Outcome) -> None:
    """Done where it completes, dead with the reason in any other case; the next job of the runner is undisturbed."""
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
        assert [ask(job, why, interrupt=interrupt) for why in ("why", "again")] == [True, False]
        assert job.cancel_reason == "cancelled: why"
        runner.jobs.put_nowait(a_job(b"next"))
        await wait_until(lambda: len(runner.outcomes) == 2, "both have ended")
    assert runner.outcomes == [expected, Complete()]


async def test_a_handler_that_is_not_cancellable_is_not_disturbed() -> None:
    """It is told, and completes when it does."""
    gate, job = asyncio.Event(), a_job()

    async def handler(_: Job) -> None:
        await gate.wait()

    async with runner_of(handler) as runner:
        runner.jobs.put_nowait(job)
        await wait_until(lambda: job.runner is not None, "it runs")
        ask(job, "why", interrupt=False)
        for _ in range(5):
            await asyncio.sleep(0)
        assert runner.outcomes == []
        gate.set()
        await wait_until(lambda: runner.outcomes, "it has ended")
    assert runner.outcomes == [Complete()]


@pytest.mark.parametrize(
    ("reason", "first", "expected"),
    [
        (TIMEOUT, False, DEAD),
        (TIMEOUT, True, DEAD),
        (SHUTDOWN, False, DEAD),
        (SHUTDOWN, True, DEAD),
        (LEASE_LOST, False, Abandoned(LEASE_LOST)),
        (LEASE_LOST, True, Abandoned(LEASE_LOST)),
    ],
)
async def test_a_request_among_other_reasons(reason: Reason, first: bool, expected: Outcome) -> None:
    """Whichever comes first: the stronger one cancels, the request says what it means; a lost lease leaves nothing."""
    job = a_job()
    async with runner_of(_lets_it_pass) as runner:
        runner.jobs.put_nowait(job)
        await wait_until(lambda: job.runner is not None, "it runs")
        if first:
            cancel(job, reason)
        assert ask(job, "why", interrupt=False)
        if not first:
            assert cancel(job, reason)
        assert job.cancel_reason == reason
        await wait_until(lambda: runner.outcomes, "it has ended")
    assert runner.outcomes == [expected]


async def test_a_job_that_has_not_begun_never_does() -> None:
    """It is dead with the reason; where its lease is lost as well, nothing is left to say."""
    job, lost = a_job(), a_job()
    for one in (job, lost):
        ask(one, "why", interrupt=True)
    cancel(lost, LEASE_LOST)

    async def never(_: Job) -> None:
        raise AssertionError("it was asked to end before")

    assert await outcome_of(never, job) == DEAD
    assert await outcome_of(never, lost) == Abandoned(LEASE_LOST)


@pytest.mark.parametrize(("body", "kept"), [(_asks, type(None)), (_asks_and_fails, ValueError)])
async def test_the_trace_of_a_mere_cancellation_is_not_kept(body: Body, kept: type) -> None:
    """That of an error is."""
    job = a_job()
    async with runner_of(body) as runner:
        runner.jobs.put_nowait(job)
        await wait_until(lambda: job.runner is not None, "it runs")
        ask(job, "why", interrupt=False)
        await wait_until(lambda: runner.outcomes, "it has ended")
    assert type(job.exception) is kept
