"""Batch: what one call means for each of its jobs, whatever the handler answers, raises, or is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from echomq_worker import children
from echomq_worker.backoff import Exponential
from echomq_worker.batch import Batch, BatchExecutor, BatchSlots
from echomq_worker.clock import SystemClock
from echomq_worker.handlers import Handlers
from echomq_worker.job import LEASE_LOST, SHUTDOWN, TIMEOUT, Job, ask, cancel
from echomq_worker.outcome import NO_PAYLOAD, Abandoned, Outcome
from echomq_worker.slots import SlotLost
from echomq_worker.verdict import Bury, Complete, Delay, DelayTo, Done, Reject, Retry, RetryLater
from tests.support.plain import job as id_of
from tests.support.stations import job_of
from tests.support.waiting import never_ends, turns, wait_until

DONE = Complete()
Handler = Callable[[list[Job]], Awaitable[Any]]


def jobs_of(count: int = 3, **fields: Any) -> list[Job]:
    """Jobs as one claim makes them."""
    return [job_of(id=id_of(n), **fields) for n in range(count)]


def executor(handler: Handler, **options: Any) -> BatchExecutor:
    """Of `handler`, registered for a queue."""
    announce = options.pop("announce", None)
    handlers = Handlers()
    handlers.register_batch("q", min_size=1, timeout_ms=0, **options)(handler)
    (bound,) = handlers
    return BatchExecutor(bound, announce=announce)


async def ends_of(handler: Handler, jobs: list[Job], **options: Any) -> list[Outcome]:
    """What one call comes to, in the order of the jobs."""
    ends = dict(await executor(handler, **options).execute(Batch(jobs)))
    return [ends[job] for job in jobs]


def answers(value: Any) -> Handler:
    """A handler that answers `value`, or what it gives for the jobs."""

    async def handler(jobs: list[Job]) -> Any:
        return value(jobs) if callable(value) else value

    return handler


def raises(error: BaseException) -> Handler:
    """A handler that raises."""

    async def handler(jobs: list[Job]) -> None:
        raise error

    return handler


# ------------------------------------------------------------------------------------------------ answers


async def test_done_carries_a_result_for_the_parent_of_a_flow() -> None:
    """Of a child; of any other job nothing is kept. A result that JSON cannot hold is that job's failure alone."""
    jobs = [*jobs_of(3), job_of(id=id_of(9))]
    for one in jobs[:3]:
        one.flow_child = True
    given = [Done({"n": 1}), Done(), Done(object()), Done({"n": 2})]
    handlers = Handlers()
    handlers.register_batch("q", min_size=1, timeout_ms=0)(
        answers(lambda batch: {one.id: answer for one, answer in zip(batch, given, strict=True)})
    )
    (bound,) = handlers

    ends = dict(await BatchExecutor(bound, result=children.written).execute(Batch(jobs)))

    told = [ends[job] for job in jobs]
    assert told[:2] + told[3:] == [Complete(b'{"n":1}'), DONE, DONE]
    assert isinstance(told[2], RetryLater)
    assert "object" in told[2].error


async def test_none_is_all_done() -> None:
    """The jobs come in one list, in the order of the claim."""
    jobs, seen = jobs_of(3), list[list[Job]]()

    async def handler(batch: list[Job]) -> None:
        seen.append(list(batch))
        batch.clear()

    assert await ends_of(handler, jobs) == [DONE] * 3
    assert seen == [jobs]


async def test_an_answer_for_each_job() -> None:
    """None or True is done; an exception is what raising it would be, for that job alone; missing is retried."""
    jobs = jobs_of(9)
    given = [None, True, Retry(7, "later"), Delay(5), Delay(at_ms=9), Reject("never"), ValueError("x"), KeyError("y")]
    verdicts = dict(zip([job.id for job in jobs], given, strict=False))
    verdicts["JOB00000000099"] = None

    assert await ends_of(answers(verdicts), jobs, retry=50, no_retry=KeyError) == [
        DONE,
        DONE,
        RetryLater(7, "later"),
        DelayTo("in", 5),
        DelayTo("at", 9),
        Bury("never"),
        RetryLater(50, "ValueError: x"),
        Bury("KeyError: 'y'"),
        RetryLater(50, "BadAnswer: the batch handler answered nothing for this job"),
    ]
    assert isinstance(jobs[6].exception, ValueError)


@pytest.mark.parametrize("value", [[], "done", 1, True, False, [None]])
async def test_an_answer_that_is_none_fails_every_job(value: Any) -> None:
    """A list, a number, True: nobody can tell what it says of which job."""
    (end,) = await ends_of(answers(value), jobs_of(1), retry=50)
    kind = type(value).__name__
    assert end == RetryLater(
        50, f"BadAnswer: the batch handler answered {kind}, expected None or a dict of answers by id"
    )


@pytest.mark.parametrize("value", [False, "ok", 5, ValueError, {}])
async def test_an_answer_for_a_job_that_is_none_fails_that_job(value: Any) -> None:
    """The others keep theirs."""
    jobs = jobs_of(2)
    bad, good = await ends_of(answers({jobs[0].id: value, jobs[1].id: None}), jobs)
    assert isinstance(bad, RetryLater)
    assert "expected None, True, Done or an exception" in bad.error
    assert good == DONE


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (ValueError("x"), RetryLater(50, "ValueError: x")),
        (Retry(7, "later"), RetryLater(7, "later")),
        (Delay(5), DelayTo("in", 5)),
        (Reject("never"), Bury("never")),
        (KeyError("y"), Bury("KeyError: 'y'")),
        (SystemExit(3), RetryLater(50, "SystemExit: 3")),
    ],
)
async def test_what_is_raised_holds_for_all(error: BaseException, end: Outcome) -> None:
    """With one trace for the log, not one for each job."""
    jobs = jobs_of(3)
    assert await ends_of(raises(error), jobs, retry=50, no_retry=KeyError) == [end] * 3
    assert [job.exception for job in jobs] == [error, None, None]


async def test_each_job_waits_by_its_own_failures() -> None:
    """A backoff is priced for each."""
    jobs = [job_of(id=id_of(n), failures=n) for n in range(3)]
    ends = await ends_of(raises(ValueError("x")), jobs, retry=Exponential(10, 1_000))
    assert [end.delay_ms for end in ends if isinstance(end, RetryLater)] == [10, 20, 40]


async def test_a_cancellation_of_its_own_is_a_failure() -> None:
    """As of a task that it awaited, or of itself."""

    async def cancels_itself(jobs: list[Job]) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await never_ends()

    assert (
        await ends_of(raises(asyncio.CancelledError()), jobs_of(2), retry=50) == [RetryLater(50, "CancelledError")] * 2
    )
    assert await ends_of(cancels_itself, jobs_of(2)) == [DONE] * 2


# ------------------------------------------------------------------------------------------------ what is not called


async def test_what_cannot_be_worked_on_is_not_in_the_call() -> None:
    """No payload, a lost lease, a request to cancel; the handler is called for the others only."""
    jobs = jobs_of(5)
    hollow, lost, asked, *others = jobs
    hollow.payload = None  # type: ignore[assignment]  # as a claim makes it of a row without one
    cancel(lost, LEASE_LOST)
    ask(asked, "why", interrupt=False)
    seen: list[Job] = []

    async def handler(batch: list[Job]) -> None:
        seen.extend(batch)

    ends = await ends_of(handler, jobs)
    assert ends == [Bury(NO_PAYLOAD), Abandoned(LEASE_LOST), Bury("cancelled: why"), DONE, DONE]
    assert seen == others


async def test_without_a_job_the_handler_is_not_called() -> None:
    """All of them are gone."""
    jobs = jobs_of(2)
    for job in jobs:
        cancel(job, LEASE_LOST)
    assert await ends_of(raises(AssertionError("called")), jobs) == [Abandoned(LEASE_LOST)] * 2


# ------------------------------------------------------------------------------------------------ cancellation


class Held:
    """A batch whose handler waits, and what becomes of it."""

    def __init__(self, body: Handler | None = None) -> None:
        self.gate = asyncio.Event()
        self.answer: Any = None
        self._body = body

    async def handler(self, jobs: list[Job]) -> Any:
        """What is registered."""
        if self._body is not None:
            return await self._body(jobs)
        await self.gate.wait()
        return self.answer

    @asynccontextmanager
    async def running(self, jobs: list[Job], **options: Any) -> AsyncIterator[asyncio.Task[list[Outcome]]]:
        """A call that has begun; at the end it must have ended."""
        task = asyncio.create_task(ends_of(self.handler, jobs, **options))
        await wait_until(lambda: jobs[0].runner is not None, "it runs")
        yield task
        self.gate.set()
        async with asyncio.timeout(30):
            await task


async def test_one_lost_lease_does_not_disturb_the_others() -> None:
    """It is marked, its verdict is not written, and the call goes on."""
    jobs, held = jobs_of(3), Held()
    async with held.running(jobs) as task:
        assert cancel(jobs[1], LEASE_LOST)
        await turns()
        assert not task.done()
        assert [job.cancelled for job in jobs] == [False, True, False]
    assert task.result() == [DONE, Abandoned(LEASE_LOST), DONE]


async def test_when_every_lease_is_lost_the_call_is_cancelled() -> None:
    """Nobody needs it any more."""
    jobs, held = jobs_of(3), Held()
    async with held.running(jobs) as task:
        for job in jobs:
            cancel(job, LEASE_LOST)
        await wait_until(task.done, "it has ended")
    assert task.result() == [Abandoned(LEASE_LOST)] * 3


async def test_a_request_for_one_job_is_only_told() -> None:
    """What the handler then answers for it counts: done, or dead with the reason of the request."""
    jobs, held = jobs_of(3), Held()
    async with held.running(jobs) as task:
        for job in jobs[:2]:
            assert ask(job, "why", interrupt=False)
        held.answer = {jobs[0].id: None, jobs[1].id: Retry(5), jobs[2].id: None}
    assert task.result() == [DONE, Bury("cancelled: why"), DONE]


async def test_at_a_shutdown_the_call_is_cancelled_once() -> None:
    """All of its jobs are given back, save those whose lease is lost already; the runner lives on."""
    jobs, held = jobs_of(3), Held()
    async with held.running(jobs) as task:
        cancel(jobs[0], LEASE_LOST)
        for job in jobs:
            cancel(job, SHUTDOWN)
        await wait_until(task.done, "it has ended")
        assert not task.cancelled()
    assert task.result() == [Abandoned(LEASE_LOST), Abandoned(SHUTDOWN), Abandoned(SHUTDOWN)]


async def test_an_answer_at_a_shutdown_counts() -> None:
    """For the jobs that it names; what it does not name goes back, and is no failure."""

    async def tidy(jobs: list[Job]) -> Any:
        try:
            await never_ends()
        except asyncio.CancelledError:
            return {jobs[0].id: None, jobs[1].id: Retry(5, "half done")}

    jobs, held = jobs_of(3), Held(tidy)
    async with held.running(jobs) as task:
        for job in jobs:
            cancel(job, SHUTDOWN)
    assert task.result() == [DONE, RetryLater(5, "half done"), Abandoned(SHUTDOWN)]


async def test_a_call_has_a_time_limit() -> None:
    """Retried like a failure; a shutdown ends one that did not let itself be cancelled."""
    jobs, held = jobs_of(2), Held()
    async with held.running(jobs, run_timeout_ms=20, retry=50) as task:
        await wait_until(task.done, "it has ended")
    assert task.result() == [RetryLater(50, "timeout after 20 ms")] * 2

    async def stubborn(jobs: list[Job]) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await never_ends()
        await never_ends()

    jobs, held = jobs_of(2), Held(stubborn)
    async with held.running(jobs, run_timeout_ms=20) as task:
        await wait_until(lambda: jobs[0].cancel_reason == TIMEOUT, "its time is up")
        await turns()
        for job in jobs:
            cancel(job, SHUTDOWN)
        await wait_until(task.done, "it has ended")
    assert task.result() == [Abandoned(SHUTDOWN)] * 2


# ------------------------------------------------------------------------------------------------ slots


async def test_one_batch_at_a_time_and_each_job_has_its_end() -> None:
    """The room is free again when the last has ended; a variable that a handler sets does not reach the next call."""
    variable: ContextVar[int] = ContextVar("variable", default=0)
    sizes: list[tuple[int, int]] = []
    ends: list[Job] = []

    async def handler(jobs: list[Job]) -> None:
        sizes.append((len(jobs), variable.get()))
        variable.set(1)
        await asyncio.sleep(0)

    async with anyio.create_task_group() as tasks:
        slots = BatchSlots(
            5,
            tasks=tasks,
            name="slot",
            clock=SystemClock(),
            execute=executor(handler).execute,
            on_end=lambda job, _: ends.append(job),
        )
        for count in (3, 5):
            jobs = jobs_of(count)
            assert slots.free == 5
            slots.start([])
            slots.start(jobs)
            assert (slots.free, slots.running, slots.holds(jobs[0])) == (0, set(jobs), True)
            assert not slots.drop(jobs[0])
            await wait_until(lambda: slots.free == 5, "it has ended")
        jobs = jobs_of(2)
        slots.start(jobs)
        assert slots.take_unstarted() == jobs
        assert slots.free == 5
        tasks.cancel_scope.cancel()
    assert sizes == [(3, 0), (5, 0)]
    assert len(ends) == 8


async def test_a_batch_that_ends_the_worker_is_not_given_back() -> None:
    """As any job that ends its worker it waits for its lease, which counts a crash: given back it would do it again."""
    made: list[BatchSlots] = []

    async def closed(_batch: Batch, _runner: object = None) -> Any:
        raise GeneratorExit

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            slots = BatchSlots(5, tasks=tasks, name="slot", clock=SystemClock(), execute=closed, on_end=lambda *_: None)
            made.append(slots)
            slots.start(jobs_of(2))
            await anyio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await run()
    assert caught.group_contains(SlotLost, match="its handler closed the task that it runs in")
    assert made[0].running == set()
