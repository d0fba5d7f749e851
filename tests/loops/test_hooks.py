"""Hooks: called once for a job that is done or dead, after the server has taken it; whatever they do, the job stays."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.errors import ConfigError
from echomq_worker.hooks import AT_A_TIME, Hook, Hooks
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.verdict import Delay, Reject, Retry
from echomq_worker.worker import Worker
from tests.support.proxy import Proxy
from tests.support.running import quick, running
from tests.support.stations import Lines
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until

Told = list[tuple[str, str, str]]


def telling(worker: Worker, told: Told) -> None:
    """Have the worker's hooks write into `told`."""

    @worker.on_complete
    async def completed(job: Job) -> None:
        told.append(("complete", job.id, job.payload.decode()))

    @worker.on_dead
    async def died(job: Job, error: str) -> None:
        told.append(("dead", job.id, error))


# --------------------------------------------------------------------------------------------- in a worker


async def test_each_end_is_told_once_and_after_the_server_has_it(url: str) -> None:
    """A completion when its row is gone, a death when it is in the dead set; a retry and a delay are no end.

    Report 118 (sidekiq/sidekiq#4859).
    """
    worker, told, at_the_time = Worker(), list[Any](), list[Any]()
    telling(worker, told)

    @worker.handler("a", max_attempts=2)
    async def handle(job: Job) -> None:
        if job.payload == b"later" and job.attempts == 1:
            raise Delay(1)
        if job.payload == b"again" and job.attempts == 1:
            raise Retry(delay_ms=1)
        if job.payload == b"fails":
            raise ValueError("no luck")
        if job.payload == b"no":
            raise Reject("not that")

    async with connect(url) as connector:
        jobs = Jobs(connector)

        async def as_it_stands(job: Job) -> None:
            row = await jobs.get("a", job.id)
            at_the_time.append("gone" if row is None else row.state)

        worker.on_complete(as_it_stands)
        worker.on_dead(as_it_stands)
        receipts = await jobs.enqueue_many("a", [b"good", b"later", b"again", b"fails", b"no"])
        async with running(worker, url) as run:
            await wait_until(lambda: len(told) == len(at_the_time) == 5, "five ends are told")

    good, later, again, fails, no = (one.id for one in receipts)
    assert sorted(told) == sorted(
        [
            *(("complete", id, text) for id, text in ((good, "good"), (later, "later"), (again, "again"))),
            ("dead", fails, "ValueError: no luck"),
            ("dead", no, "not that"),
        ]
    )
    assert sorted(at_the_time) == ["dead"] * 2 + ["gone"] * 3
    assert (run.report.completed, run.report.dead) == (3, 2)


async def test_a_job_that_no_handler_had_is_told_with_its_row(url: str) -> None:
    """One that has expired is buried by its claim: the hook gets its payload all the same, the handler does not."""
    worker, told, handled = Worker(), list[tuple[Job, str]](), list[Job]()

    @worker.handler("a")
    async def handle(job: Job) -> None:
        handled.append(job)

    @worker.on_dead
    def died(job: Job, error: str) -> None:
        told.append((job, error))

    async with connect(url) as connector:
        id = (await Jobs(connector).enqueue("a", b"old", expires_at_ms=1)).id
        async with running(worker, url):
            await wait_until(lambda: told, "the death is told")

    (job, error), *more = told
    assert (job.id, job.payload, job.queue, error, more) == (id, b"old", "a", "expired", [])
    assert not handled


async def test_hooks_of_a_handler_hear_of_its_queue_alone(url: str) -> None:
    """Those of the worker hear of all; a plain function runs in a thread; what the lifespan yielded is there."""
    worker, told = Worker(), list[tuple[str, object]]()

    @worker.lifespan
    async def shared() -> AsyncIterator[Lines]:
        yield Lines()

    def own(job: Job, shared: Lines) -> None:
        told.append((f"{job.queue}: own", (type(shared), threading.current_thread() is threading.main_thread())))

    @worker.on_complete
    async def every(state: object, *, job: Job) -> None:
        told.append((f"{job.queue}: all", type(state)))

    @worker.handler("a", on_complete=own)
    async def a() -> None: ...

    @worker.batch_handler("b", min_size=1, timeout_ms=10)
    async def b(jobs: list[Job]) -> None: ...

    async with connect(url) as connector, running(worker, url):
        for queue in ("a", "b"):
            await Jobs(connector).enqueue(queue, b"")
        await wait_until(lambda: len(told) == 3, "three hooks are called")

    assert sorted(told, key=str) == [("a: all", Lines), ("a: own", (Lines, False)), ("b: all", Lines)]


@pytest.mark.parametrize("error", [ValueError("hook"), SystemExit(1), asyncio.CancelledError()])
async def test_what_a_hook_raises_changes_nothing(url: str, raw: Redis, error: BaseException) -> None:
    """The job is done and counted once, the other hook is called, the worker ends well."""
    worker, told = Worker(), list[Any]()

    @worker.handler("a")
    async def handle() -> None: ...

    @worker.on_complete
    async def falls() -> None:
        raise error

    @worker.on_complete
    def falls_in_a_thread() -> None:
        raise error

    telling(worker, told)
    async with connect(url) as connector, running(worker, url) as run:
        await Jobs(connector).enqueue_many("a", [b"1", b"2"])
        await wait_until(lambda: len(told) == 2, "the third hook is called for both")

    assert run.report.completed == 2
    assert await raw.hget("emq:{a}:metrics:completed", "count") == b"2"


async def test_a_verdict_that_is_sent_twice_is_told_once(url: str, server: ValkeyServer) -> None:
    """The reply to the settling is lost, the verdict goes out again: one call of the hook."""
    worker, told = Worker(), list[Any]()
    telling(worker, told)

    @worker.handler("a")
    async def handle() -> None: ...

    async with Proxy(server.port) as proxy, connect(url) as connector, running(worker, proxy.url):
        id = (await Jobs(connector).enqueue("a", b"x")).id
        lost = proxy.swallow_reply(id.encode())
        await wait_until(lambda: told, "the completion is told")
        assert lost.done

    assert told == [("complete", id, "x")]


async def test_a_drain_waits_for_hooks(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has begun ends before `run` does, one that waits is called; within the grace."""
    worker, ended, begun, gate, waited = Worker(), list[str](), asyncio.Event(), asyncio.Event(), asyncio.Event()
    finish = Hooks.finish

    async def seen(hooks: Hooks, limit_ms: float) -> None:
        waited.set()
        await finish(hooks, limit_ms)

    monkeypatch.setattr(Hooks, "finish", seen)

    @worker.handler("a", concurrency=AT_A_TIME + 5)
    async def handle() -> None: ...

    @worker.on_complete
    async def slow(job: Job) -> None:
        begun.set()
        await gate.wait()
        ended.append(job.id)

    async with connect(url) as connector:
        await Jobs(connector).enqueue_many("a", [b""] * (AT_A_TIME + 5))
        task = asyncio.create_task(worker.run(quick(url, grace_ms=30_000), signals=False))
        await begun.wait()
        worker.stop()
        await waited.wait()
        asyncio.get_running_loop().call_soon(gate.set)
        report = await task

    assert len(ended) == report.completed > 0
    assert report.counts["hooks_lost"] == 0


def hanging() -> tuple[Worker, asyncio.Event]:
    """A worker whose hook does not end, and what it sets when it has begun."""
    worker, begun = Worker(), asyncio.Event()

    @worker.handler("a")
    async def handle() -> None: ...

    @worker.on_complete
    async def hangs() -> None:
        begun.set()
        await asyncio.Event().wait()

    return worker, begun


@pytest.mark.parametrize(("grace_ms", "stops"), [(1_200, 1), (60_000, 2)], ids=["the grace", "a second stop"])
async def test_a_hook_that_hangs_does_not_hold_up_the_end(url: str, grace_ms: int, stops: int) -> None:
    """At the end of the grace, or at a second stop, it is cancelled and counted; its job is done all the same."""
    worker, begun = hanging()
    async with connect(url) as connector:
        await Jobs(connector).enqueue("a", b"")
        task = asyncio.create_task(worker.run(quick(url, grace_ms=grace_ms), signals=False))
        await begun.wait()
        for _ in range(stops):
            worker.stop()
        async with asyncio.timeout(30):
            report = await task

    assert (report.completed, report.counts["hooks_lost"]) == (1, 1)


async def test_a_first_stop_cuts_no_hook_of_a_burst_short(url: str) -> None:
    """A burst that has ended by itself was asked to stop by nobody: the first stop is no second one."""
    worker, begun, gate = Worker(), asyncio.Event(), asyncio.Event()

    @worker.handler("a")
    async def handle() -> None:
        pass

    @worker.on_complete
    async def slow() -> None:
        begun.set()
        await gate.wait()

    async with connect(url) as connector:
        await Jobs(connector).enqueue("a", b"")
    task = asyncio.create_task(worker.run(quick(url, grace_ms=60_000), signals=False, burst=True))
    await begun.wait()
    await wait_until(lambda: worker.readiness().draining, "the burst is over")
    worker.stop()
    for _ in range(20):
        await asyncio.sleep(0)
    gate.set()

    assert (await task).counts["hooks_lost"] == 0


# --------------------------------------------------------------------------------------------- by themselves


@asynccontextmanager
async def alone(*hooks: Hook, keep: int = 100) -> AsyncIterator[tuple[Hooks, Lines]]:
    """Hooks whose tasks run beside the test's body, and what they log."""
    lines = Lines()
    async with anyio.create_task_group() as tasks:
        made = Hooks(hooks, tasks, state=None, log=lines, keep=keep)
        yield made, lines
        await made.finish(5_000)
        tasks.cancel_scope.cancel()


async def _nobody(id: str) -> Job:
    raise AssertionError(id)


async def test_completions_are_bounded_and_deaths_are_not() -> None:
    """A hook that is too slow loses the newest completions, with a count and one warning; every death is told."""
    gate, told = asyncio.Event(), list[str]()

    async def slow(error: str = "") -> None:
        await gate.wait()
        told.append(error or "complete")

    complete = Hook.of("on_complete", None, slow)
    dead = Hook.of("on_dead", None, slow)
    job: Any = type("Fake", (), {"id": "JOB1"})()
    async with alone(complete, dead, keep=3) as (hooks, lines):
        for _ in range(8):
            hooks.put(complete, "a", job, _nobody)
        for _ in range(20):
            hooks.put(dead, "a", job, _nobody, "dead")
        gate.set()
    assert (told.count("complete"), told.count("dead"), hooks.lost) == (3, 20, 5)
    assert len(lines.of("hooks too slow")) == 1


async def test_a_hook_that_raises_is_one_line_with_the_job() -> None:
    """Queue, id, the hook's name and its trace."""

    async def falls() -> None:
        raise ValueError("hook")

    hook = Hook.of("on_dead", None, falls)
    job: Any = type("Fake", (), {"id": "JOB1"})()
    async with alone(hook) as (hooks, lines):
        hooks.put(hook, "a", job, _nobody, "why")
    (line,) = lines.of("on_dead raised")
    assert (line["queue"], line["id"], line["hook"].endswith("falls")) == ("a", "JOB1", True)
    assert isinstance(line["exc_info"], ValueError)


async def test_a_few_run_at_a_time_and_none_is_left_over() -> None:
    """At most ten, in tasks that end when nothing waits."""
    now, most = 0, 0

    async def counted() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1

    hook = Hook.of("on_complete", None, counted)
    job: Any = type("Fake", (), {"id": "JOB1"})()
    async with alone(hook) as (hooks, _):
        for _number in range(60):
            hooks.put(hook, "a", job, _nobody)
    assert most == AT_A_TIME
    assert hooks.lost == 0


def test_parameters_that_nothing_can_fill_are_refused() -> None:
    """One line at registration that names the hook and the parameter."""
    worker = Worker()

    with pytest.raises(ConfigError, match=r"on_complete of the worker: parameter error: expected the job \(Job\), or"):
        worker.on_complete(lambda error: None)
    with pytest.raises(ConfigError, match=r"on_dead of a: parameter payload: expected the job \(Job\), `error`, or"):
        worker.handler("a", on_dead=lambda payload: None)
    with pytest.raises(ConfigError, match="expected a function"):
        worker.on_dead(Lines)
