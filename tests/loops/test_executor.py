"""Executor: what a handler did becomes a value, whatever it did; and what that costs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from echomq_worker.backoff import Exponential, Jitter
from echomq_worker.job import Job, JobCancelled
from echomq_worker.logs import current_job
from echomq_worker.options import Limits
from echomq_worker.outcome import NO_PAYLOAD, Outcome
from echomq_worker.verdict import Bury, Complete, Delay, DelayTo, Reject, Retry, RetryLater
from tests.support.executing import a_job, executor, outcome_of
from tests.support.waiting import wait_until


def raising(exc: BaseException) -> Callable[[], Awaitable[None]]:
    """An async handler that raises `exc`."""

    async def handler() -> None:
        raise exc

    return handler


def raising_plainly(exc: BaseException) -> Callable[[], None]:
    """A plain handler that raises `exc`."""

    def handler() -> None:
        raise exc

    return handler


both_kinds = pytest.mark.parametrize("made_by", [raising, raising_plainly], ids=["async", "plain"])


async def test_a_handler_that_returns_completes_its_job() -> None:
    """What it returns is not kept."""

    async def handler(job: Job) -> str:
        return job.id

    def plain(job: Job) -> str:
        return job.id

    assert await outcome_of(handler) == Complete(None)
    assert await outcome_of(plain) == Complete(None)


async def test_what_the_handler_of_a_flows_child_returns_is_kept() -> None:
    """The hook makes the bytes; where it fails, the run has failed. Of any other job nothing is kept."""

    async def handler() -> str:
        return "done"

    def plain() -> str:
        return "done"

    def broken(_: object) -> bytes:
        raise TypeError("no form")

    for one in (handler, plain):
        child = a_job()
        child.flow_child = True
        assert await outcome_of(one, child, result=lambda value: str(value).encode()) == Complete(b"done")
        assert await outcome_of(one, child, result=broken) == RetryLater(1_000, "TypeError: no form")
        assert await outcome_of(one, result=broken) == Complete()


@both_kinds
@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (Retry(), RetryLater(1_000, "Retry")),
        (Retry(delay_ms=5, reason="busy"), RetryLater(5, "busy")),
        (Retry(0), RetryLater(0, "Retry")),
        (Delay(250), DelayTo("in", 250)),
        (Delay(0), DelayTo("in", 0)),
        (Delay(at_ms=1_800_000_000_000), DelayTo("at", 1_800_000_000_000)),
        (Reject("no such user"), Bury("no such user")),
        (ValueError("bad"), RetryLater(1_000, "ValueError: bad")),
        (TimeoutError("their own"), RetryLater(1_000, "TimeoutError: their own")),
        (SystemExit(3), RetryLater(1_000, "SystemExit: 3")),
        (asyncio.CancelledError("not ours"), RetryLater(1_000, "CancelledError: not ours")),
        (ExceptionGroup("several", [ValueError("bad")]), RetryLater(1_000, "ValueError: bad")),
        (ExceptionGroup("several", [ExceptionGroup("in", [Reject("no")])]), Bury("no")),
    ],
)
async def test_what_a_handler_raises(
    made_by: Callable[[BaseException], Callable[..., Any]], exc: BaseException, expected: Outcome
) -> None:
    """Steering exceptions do what they say, also alone in a group; everything else is a failed run."""
    assert await outcome_of(made_by(exc)) == expected


async def test_a_cause_speaks_for_a_retry_without_a_reason() -> None:
    """`raise Retry(...) from exc` keeps what went wrong."""

    async def handler() -> None:
        raise Retry(delay_ms=9) from OSError("disk full")

    assert await outcome_of(handler) == RetryLater(9, "OSError: disk full")


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class _Odd(BaseException):
    pass


class _UnfinishedRetry(Retry):
    def __init__(self) -> None:
        pass


@both_kinds
@pytest.mark.parametrize(
    "exc", [_Mute(), _Odd("x" * 5_000), ValueError("\x1b[2J\ud800"), MemoryError(), _UnfinishedRetry()]
)
async def test_exceptions_of_any_kind_become_a_retry(
    made_by: Callable[[BaseException], Callable[..., Any]], exc: BaseException
) -> None:
    """Also ones without a text, of any length, outside Exception, and a subclass of Retry that never called ours."""
    outcome = await outcome_of(made_by(exc))

    assert isinstance(outcome, RetryLater)
    assert outcome.delay_ms == 1_000
    assert type(exc).__name__ in outcome.error
    assert len(outcome.error) <= 1_000


async def test_the_exception_stands_on_the_job_for_the_log_line() -> None:
    """A failed run leaves what it raised, a completed one nothing."""
    exc = ValueError("bad")
    failed, done = a_job(), a_job()

    async def handler() -> None:
        return

    await outcome_of(raising(exc), failed)
    await outcome_of(handler, done)

    assert failed.exception is exc
    assert done.exception is None


@both_kinds
@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (KeyError("k"), Bury("KeyError: 'k'")),
        (Exception("k"), RetryLater(1_000, "Exception: k")),
        (Retry(5, "asked for"), RetryLater(5, "asked for")),
    ],
)
async def test_no_retry_buries(
    made_by: Callable[[BaseException], Callable[..., Any]], exc: BaseException, expected: Outcome
) -> None:
    """Its classes and their subclasses, not their parents; a handler that asks for a retry gets it."""
    assert await outcome_of(made_by(exc), no_retry=(LookupError, Retry)) == expected


async def test_no_retry_looks_into_groups() -> None:
    """A task group wraps what its tasks raised: one of the classes among others buries."""
    mixed = ExceptionGroup("several", [ValueError("bad"), ExceptionGroup("in", [KeyError("k"), OSError()])])
    others = ExceptionGroup("several", [ValueError("bad"), OSError("k")])

    assert isinstance(await outcome_of(raising(mixed), no_retry=LookupError), Bury)
    assert isinstance(await outcome_of(raising(mixed), no_retry=ExceptionGroup), Bury)
    assert isinstance(await outcome_of(raising(others), no_retry=LookupError), RetryLater)


async def test_ctrl_c_on_the_loop_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody listens for the signal it reaches the process, not the row. Where somebody does none is raised: one
    that comes all the same is the handler's.
    """
    monkeypatch.setattr(signal, "getsignal", lambda _number: signal.default_int_handler)
    async with executor(raising(KeyboardInterrupt())) as made:
        coroutine = made.execute(a_job(), cast("Any", asyncio.current_task()))
        with pytest.raises(KeyboardInterrupt):
            coroutine.send(None)
        monkeypatch.setattr(signal, "getsignal", lambda _number: print)
        assert await made.execute(a_job()) == RetryLater(1_000, "KeyboardInterrupt")


async def test_a_runner_that_is_closed_is_no_failure() -> None:
    """A loop that is closed closes what still runs on it; a GeneratorExit that a handler raises is a failed run."""
    begun, ended = asyncio.Event(), list[str]()

    async def handler() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("closed")

    async with executor(handler) as made:
        runner = asyncio.create_task(asyncio.Event().wait())
        job = a_job()
        coroutine = made.execute(job, cast("Any", runner))
        coroutine.send(None)
        assert begun.is_set()
        coroutine.close()
        runner.cancel()
    assert (ended, job.exception) == (["closed"], None)
    assert await outcome_of(raising(GeneratorExit())) == RetryLater(1_000, "GeneratorExit")


async def test_keyboard_interrupt_raised_in_a_thread_is_a_failure() -> None:
    """A real one never arrives in a thread."""
    assert await outcome_of(raising_plainly(KeyboardInterrupt())) == RetryLater(1_000, "KeyboardInterrupt")


async def test_the_retry_delay_is_fixed_or_the_policy_s_by_failures() -> None:
    """A policy is indexed by failures + 1, its randomness comes from outside; an int is the same each time."""
    handler = raising(ValueError("bad"))
    curve = Exponential(100, 10_000)

    for failures, expected in [(0, 100), (2, 400), (19, 10_000)]:
        outcome = await outcome_of(handler, a_job(failures=failures), retry=curve)
        assert outcome == RetryLater(expected, "ValueError: bad")
    jittered = await outcome_of(handler, a_job(failures=2), retry=Jitter(curve), draw=lambda bound: bound - 1)
    assert jittered == RetryLater(399, "ValueError: bad")
    assert await outcome_of(handler, a_job(failures=7), retry=70) == RetryLater(70, "ValueError: bad")
    assert await outcome_of(handler, limits=Limits(retry=80)) == RetryLater(80, "ValueError: bad")


async def test_a_job_without_payload_reaches_no_handler() -> None:
    """A row that is gone or was made anew is buried; an empty payload is a payload."""
    seen: list[bytes] = []

    async def handler(payload: bytes) -> None:
        seen.append(payload)

    def plain(payload: bytes) -> None:
        seen.append(payload)

    for one in (handler, plain):
        assert await outcome_of(one, a_job(None)) == Bury(NO_PAYLOAD)
        assert await outcome_of(one, a_job(b"")) == Complete()
    assert seen == [b"", b""]


@pytest.mark.blocks("handlers are registered before the loop starts, here inside it: pydantic looks for plugins")
async def test_a_payload_that_cannot_be_read_buries_without_a_run() -> None:
    """The handler is not called, and the reason does not hold the payload."""
    called: list[object] = []

    async def handler(payload: dict[str, int]) -> None:
        called.append(payload)

    def plain(payload: dict[str, int]) -> None:
        called.append(payload)

    for one in (handler, plain):
        outcome = await outcome_of(one, a_job(b"{secret"), no_retry=ValueError)
        assert isinstance(outcome, Bury)
        assert outcome.error.startswith("Unreadable: payload")
        assert "secret" not in outcome.error
    assert called == []


async def test_a_no_op_job_makes_no_task_timer_or_future(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without options that ask for more, a job is one await on its runner."""
    loop = asyncio.get_running_loop()

    async def handler(job: Job) -> None:
        pass

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("asked of the loop")

    async with executor(handler, announce=current_job.set) as made:
        with monkeypatch.context() as patch:
            for name in ("call_soon", "call_later", "call_at", "create_task", "create_future"):
                patch.setattr(loop, name, refuse)
            outcomes = [await made.execute(a_job(), asyncio.current_task()) for _ in range(10)]

    assert outcomes == [Complete()] * 10


async def test_an_executor_needs_a_task() -> None:
    """Without a runner, and outside any task, there is nothing that a mark could cancel."""

    async def handler() -> None:
        pass

    async with executor(handler) as made:
        failure: list[BaseException] = []

        def outside() -> None:
            try:
                made.execute(a_job()).send(None)
            except RuntimeError as exc:
                failure.append(exc)

        asyncio.get_running_loop().call_soon(outside)
        await wait_until(lambda: failure, "it was refused")

    assert "awaited in a task" in str(failure[0])


def test_cancelled_by_a_check_is_a_cancellation() -> None:
    """`except CancelledError` of a library that cleans up sees it; `except Exception` does not."""
    assert issubclass(JobCancelled, asyncio.CancelledError)
    assert not issubclass(JobCancelled, Exception)
