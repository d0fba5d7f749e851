"""Observers: told what becomes of jobs, in order, off the hot path; whatever they do, the worker goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.errors import ConfigError
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.observers import (
    Completed,
    Dead,
    DegradedNow,
    Delayed,
    Failed,
    Observed,
    Observers,
    Recovered,
    Retried,
    Stale,
    Started,
)
from echomq_worker.verdict import Delay, Reject
from echomq_worker.worker import Worker
from tests.support.proxy import Proxy
from tests.support.running import running
from tests.support.stations import Lines
from tests.support.valkey import ValkeyServer
from tests.support.waiting import never_ends, wait_until


@asynccontextmanager
async def observed(*functions: Callable[[Any], object], keep: int = 100) -> AsyncIterator[tuple[Observers, Lines]]:
    """Observers whose task runs beside the test's body, and what they log."""
    lines = Lines()
    made = Observers(functions, log=lines, keep=keep)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        yield made, lines
        await made.finish(1_000)
        tasks.cancel_scope.cancel()


def notes(made: Observers, *numbers: int) -> None:
    """Starts of jobs, told apart by their attempt."""
    for number in numbers:
        made.note(Started, "q", "JOB1", number)


# ------------------------------------------------------------------------------------------------ the telling


async def test_everybody_is_told_in_order() -> None:
    """Plain functions and coroutines; what came before the end is told before it."""
    plain: list[int] = []
    later: list[int] = []

    async def slowly(event: Started) -> None:
        await asyncio.sleep(0)
        later.append(event.attempt)

    async with observed(lambda event: plain.append(event.attempt), slowly) as (made, _):
        notes(made, *range(50))
        await wait_until(lambda: len(later) == 50, "they are told")
        notes(made, *range(50, 60))
    assert plain == later == list(range(60))


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), asyncio.CancelledError()])
async def test_one_that_raises_is_logged_once_and_told_on(error: BaseException) -> None:
    """The others are not disturbed, and it gets its next chance."""
    told: list[int] = []
    tried: list[int] = []

    def falls(event: Started) -> None:
        tried.append(event.attempt)
        raise error

    async with observed(falls, lambda event: told.append(event.attempt)) as (made, lines):
        notes(made, 1, 2, 3)
    assert tried == told == [1, 2, 3]
    (line,) = lines.of("observer raised")
    assert line["observer"].endswith("falls")
    assert line["exc_info"] is error


async def test_a_slow_one_loses_the_oldest(raw: Redis) -> None:
    """With a count and one warning; nobody waits for it."""
    begun, gate, told = asyncio.Event(), asyncio.Event(), list[int]()

    async def slow(event: Started) -> None:
        begun.set()
        await gate.wait()
        told.append(event.attempt)

    async with observed(slow, keep=3) as (made, lines):
        notes(made, 0)
        await begun.wait()
        notes(made, *range(1, 9))
        gate.set()
    assert told == [0, 6, 7, 8]
    assert made.dropped == 5
    assert len(lines.of("observers too slow")) == 1


async def test_one_that_hangs_does_not_hold_up_the_end() -> None:
    """It is waited for so long and no longer."""
    made = Observers([lambda _: never_ends()], log=Lines())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        notes(made, 1)
        await made.finish(20)
        tasks.cancel_scope.cancel()


async def test_one_that_never_suspends_lets_the_loop_turn() -> None:
    """A long queue is told in pieces."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with observed(lambda _: None, keep=10_000) as (made, _):
        counter = asyncio.ensure_future(count())
        notes(made, *range(5_000))
        await wait_until(lambda: not made._notes, "all are told")
        counter.cancel()
    assert turns >= 40


# ------------------------------------------------------------------------------------------------ what a worker says


async def test_what_becomes_of_jobs(url: str) -> None:
    """Typed values: starts, and each verdict when the server has answered it. Report 118 (sidekiq/sidekiq#4859)."""
    worker, seen = Worker(), list[Observed]()

    @worker.observe
    def note(event: Observed) -> None:
        seen.append(event)

    @worker.handler("a", max_attempts=2, retry=7)
    async def work(job: Job) -> None:
        if job.payload == b"fails":
            raise ValueError("x")
        if job.payload == b"waits" and job.attempts == 1:
            raise Delay(0)
        if job.payload == b"rejected":
            raise Reject("never")

    async with connect(url) as connector:
        jobs = Jobs(connector)
        ids = {name: (await jobs.enqueue("a", name)).id for name in ("done", "fails", "waits", "rejected")}
        async with running(worker, url):
            await wait_until(lambda: sum(isinstance(one, (Completed, Dead)) for one in seen) == 4, "all have ended")

    def of(name: str) -> list[Observed]:
        return [one for one in seen if getattr(one, "id", "") == ids[name]]

    some: Any = pytest.approx(0, abs=1_000)

    def failed(attempt: int, failures: int, error: str = "ValueError: x") -> Failed:
        return Failed("a", ids["fails"], attempt, failures, error, some)

    def completed(name: str, attempt: int) -> Completed:
        return Completed("a", ids[name], attempt, some)

    assert of("done") == [Started("a", ids["done"], 1), completed("done", 1)]
    assert of("fails") == [
        Started("a", ids["fails"], 1),
        failed(1, 1),
        Retried("a", ids["fails"], 1, 1, 7),
        Started("a", ids["fails"], 2),
        failed(2, 2),
        Dead("a", ids["fails"], 2, "ValueError: x"),
    ]
    assert of("waits") == [
        Started("a", ids["waits"], 1),
        Delayed("a", ids["waits"], 1),
        Started("a", ids["waits"], 2),
        completed("waits", 2),
    ]
    assert of("rejected")[-1] == Dead("a", ids["rejected"], 1, "never")


async def test_what_is_not_ours_any_more(url: str, raw: Redis) -> None:
    """A lost lease, a refused verdict, a job that a claim buried."""
    worker, seen, gate = Worker(), list[Observed](), asyncio.Event()
    worker.observe(seen.append)

    @worker.handler("a", concurrency=2, cancellable=True)
    async def work(job: Job) -> None:
        if job.payload == b"lost":
            await never_ends()
        await gate.wait()

    await raw.hset("emq:{a}:job:JOB00000000001", mapping={"state": "pending", "payload": "x", "cancel": "why"})
    await raw.zadd("emq:{a}:pending", {"JOB00000000001": 0})
    async with connect(url) as connector, running(worker, url, lease_ms=2_000):
        jobs = Jobs(connector)
        lost, stale = (await jobs.enqueue("a", b"lost")).id, (await jobs.enqueue("a", b"stale")).id
        await wait_until(lambda: sum(isinstance(one, Started) for one in seen) == 2, "both run")
        await raw.hset(f"emq:{{a}}:job:{stale}", "attempts", "7")
        gate.set()
        await wait_until(lambda: Stale("a", stale, 1, "stale") in seen, "the verdict was refused")
        await raw.delete(f"emq:{{a}}:job:{lost}")
        await wait_until(lambda: Stale("a", lost, 1, "gone") in seen, "the lease is lost")
    assert Dead("a", "JOB00000000001", None, "cancelled: why") in seen


async def test_an_outage_is_told(url: str, server: ValkeyServer) -> None:
    """Its beginning and its end, once each."""
    worker, seen = Worker(), list[Observed]()
    worker.observe(seen.append)

    @worker.handler("a")
    async def work(job: Job) -> None: ...

    async with Proxy(server.port) as proxy, running(worker, proxy.url):
        await wait_until(lambda: proxy.open >= 3, "it is connected")
        await proxy.refuse()
        proxy.reset()
        await wait_until(lambda: seen, "it is degraded")
        await proxy.accept()
        await wait_until(lambda: len(seen) == 2, "it has recovered")
    begun, ended = seen
    assert isinstance(begun, DegradedNow)
    assert isinstance(ended, Recovered)
    assert begun.error.startswith(("ConnectionLost", "Unreachable"))
    assert ended.downtime_ms > 0


async def test_without_an_observer_nothing_is_made(url: str) -> None:
    """No task, no notes; and what is registered comes back as it was."""
    worker = Worker()

    @worker.handler("a")
    async def work(job: Job) -> None: ...

    async with running(worker, url):
        await wait_until(lambda: any(name.startswith("consumer:a") for name in _tasks()), "it runs")
        assert "observers" not in _tasks()
    assert worker.observe(print) is print
    with pytest.raises(ConfigError, match="observer"):
        worker.observe("print")  # type: ignore[type-var]  # the test


def _tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}
