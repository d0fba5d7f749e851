"""The worker as a whole on a real server: what becomes of jobs, one process, one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from pydantic import BaseModel
from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.errors import ConfigError, FenceRefused, Unreachable
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs, New
from echomq_worker.lanes import Lanes
from echomq_worker.verdict import Delay, Reject, Retry
from echomq_worker.worker import Worker
from tests.support.keyspace import keyspace_of
from tests.support.running import quick, running
from tests.support.valkey import OwnServer
from tests.support.waiting import never_ends, wait_until


class Mailer:
    """What handlers share."""


class Email(BaseModel):
    """A payload model."""

    to: str


@pytest.mark.parametrize("consumers", [1, 3])
async def test_flat_grouped_and_scheduled_jobs_are_completed_and_leave_no_row(
    url: str, raw: Redis, consumers: int
) -> None:
    """Whatever way a job came in, standalone or pooled, it runs once, its row is gone and it is counted."""
    worker = Worker()
    seen: Counter[bytes] = Counter()

    @worker.handler("a", concurrency=7, consumers=consumers)
    async def count(job: Job) -> None:
        seen[job.payload] += 1

    async with connect(url) as connector, running(worker, url):
        jobs, group = Jobs(connector), Lanes.group_for("tenant")
        items = [New(f"flat {i}") for i in range(50)]
        items += [New(f"lane {i}", group=group) for i in range(50)]
        items += [New(f"later {i}", in_ms=i) for i in range(50)]
        await jobs.enqueue_many("a", items)
        await wait_until(lambda: len(seen) == 150, "all 150 jobs have run")
        await wait_until(lambda: raw.hget("emq:{a}:metrics:completed", "count"), "completions are counted")

    assert set(seen.values()) == {1}
    left = await keyspace_of(raw)
    assert left["emq:{a}:metrics:completed"] == {"count": "150"}
    assert not [key for key in left if ":job:" in key or key.endswith((":pending", ":active", ":schedule", ":gactive"))]


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
async def test_a_failing_job_is_dead_after_exactly_max_attempts_runs(url: str, raw: Redis, max_attempts: int) -> None:
    """Each failure waits for the fixed delay with its reason on the row; the last one is kept in the dead set."""
    worker = Worker()
    attempts: list[tuple[int, int, bool]] = []

    @worker.handler("a", max_attempts=max_attempts)
    async def fail(job: Job) -> None:
        attempts.append((job.attempts, job.failures, job.last_attempt))
        raise ValueError(f"no luck {job.attempts}")

    async with connect(url) as connector, running(worker, url) as run:
        id = (await Jobs(connector).enqueue("a", b"x")).id
        await wait_until(lambda: raw.zcard("emq:{a}:dead"), "the job is dead")

    assert attempts == [(n + 1, n, n + 1 == max_attempts) for n in range(max_attempts)]
    row = (await keyspace_of(raw))[f"emq:{{a}}:job:{id}"]
    assert isinstance(row, dict)
    assert row["state"] == "dead"
    assert row["failures"] == str(max_attempts)
    assert row["last_error"] == f"ValueError: no luck {max_attempts}"
    assert "held" not in row
    assert run.report.dead == 1


async def test_a_job_waits_for_the_fixed_delay_with_its_reason(url: str, raw: Redis) -> None:
    """Between two runs the job is scheduled with last_error, about the retry delay from its failure."""
    worker = Worker()

    @worker.handler("a", retry=3_600_000)
    async def fail() -> None:
        raise ValueError("later")

    async with connect(url) as connector, running(worker, url):
        id = (await Jobs(connector).enqueue("a", b"x")).id
        await wait_until(lambda: raw.zcard("emq:{a}:schedule"), "the job is scheduled again")
        seconds, micros = await raw.time()
        due = await raw.zscore("emq:{a}:schedule", id)

    assert due is not None
    assert 3_590_000 < due - (int(seconds) * 1000 + int(micros) // 1000) <= 3_600_000
    state = await raw.hmget(f"emq:{{a}}:job:{id}", "state", "last_error", "failures")
    assert state == [b"scheduled", b"ValueError: later", b"1"]


async def test_steering_exceptions(url: str, raw: Redis) -> None:
    """Delay is no failure, Reject is dead at once, Retry takes its own delay, no_retry is dead at once."""
    worker = Worker()
    runs: Counter[str] = Counter()

    @worker.handler("a", no_retry=(KeyError,))
    async def steer(job: Job, payload: str) -> None:
        runs[payload] += 1
        if runs[payload] > 1:
            return
        match payload:
            case "delay":
                raise Delay(1)
            case "reject":
                raise Reject("never")
            case "retry":
                raise Retry(delay_ms=1)
            case _:
                raise KeyError(payload)

    async with connect(url) as connector, running(worker, url) as run:
        receipts = await Jobs(connector).enqueue_many("a", ["delay", "reject", "retry", "no"])
        await wait_until(lambda: run.task.done() or sum(runs.values()) == 6, "the jobs have run")
        await wait_until(lambda: raw.zcard("emq:{a}:dead"), "two are dead")

    assert runs == {"delay": 2, "reject": 1, "retry": 2, "no": 1}
    dead = (await keyspace_of(raw))["emq:{a}:dead"]
    assert set(dead) == {receipts[1].id, receipts[3].id}
    assert await raw.hget(f"emq:{{a}}:job:{receipts[1].id}", "last_error") == b"never"
    assert run.report.counts["delayed"] == 1


async def test_an_unreadable_payload_is_dead_with_a_reason_and_no_handler_sees_it(url: str, raw: Redis) -> None:
    """Broken JSON, a wrong model, undecodable bytes and a missing payload never reach the handler; the loop goes on.

    Report 81 (Bogdanp/dramatiq#375).
    """
    worker = Worker()
    seen: list[str] = []

    @worker.handler("a")
    async def send(email: Email) -> None:
        seen.append(email.to)

    async with connect(url) as connector, running(worker, url):
        jobs = Jobs(connector)
        bad = await jobs.enqueue_many("a", [b"\xff\xfe", b"{", b"null", b'{"to": 1}'])
        ghost = (await jobs.enqueue_in("a", b"x", 3_600_000)).id
        await raw.delete(f"emq:{{a}}:job:{ghost}")
        await raw.zadd("emq:{a}:schedule", {ghost: 0})
        await jobs.enqueue("a", Email(to="you"))
        await wait_until(lambda: raw.zcard("emq:{a}:dead"), "the bad ones are dead")
        await wait_until(lambda: seen, "the good one has run")

        async def five() -> bool:
            return await raw.zcard("emq:{a}:dead") == 5

        await wait_until(five, "five are dead")

    assert seen == ["you"]
    for id in [*(one.id for one in bad), ghost]:
        reason = await raw.hget(f"emq:{{a}}:job:{id}", "last_error")
        assert reason is not None
        assert b"payload" in reason


async def test_a_lifespan_is_entered_before_the_first_job_and_left_after_the_last(url: str) -> None:
    """What the lifespan yields reaches the handler by its type; it is closed when the last verdict is answered."""
    worker = Worker()
    events: list[str] = []

    @worker.lifespan
    async def mailer() -> AsyncIterator[Mailer]:
        events.append("open")
        yield Mailer()
        events.append("closed")

    @worker.handler("a")
    async def send(payload: bytes, mail: Mailer) -> None:
        assert isinstance(mail, Mailer)
        events.append(payload.decode())

    async with connect(url) as connector, running(worker, url):
        await Jobs(connector).enqueue("a", "job")
        await wait_until(lambda: "job" in events, "the job has run")

    assert events == ["open", "job", "closed"]


async def test_burst_ends_when_nothing_is_left_retries_included(url: str) -> None:
    """A burst waits for the retry of a failed job, and not for one that is due tomorrow."""
    worker = Worker()
    runs: list[int] = []

    @worker.handler("a")
    async def second_time(job: Job) -> None:
        runs.append(job.failures)
        if job.failures == 0:
            raise ValueError("first")

    async with connect(url) as connector:
        jobs = Jobs(connector)
        await jobs.enqueue("a", b"x")
        await jobs.enqueue_in("a", b"x", 86_400_000)
        report = await asyncio.wait_for(worker.run(quick(url), burst=True, signals=False), 20)

    assert runs == [0, 1]
    assert (report.completed, report.retried) == (1, 1)


async def test_a_plain_function_runs_in_a_thread_and_the_loop_goes_on(url: str) -> None:
    """A `def` handler may wait for something that only the event loop can do."""
    worker = Worker()
    loop = asyncio.get_running_loop()
    ticks: list[int] = []

    @worker.handler("a", concurrency=2)
    def plain(payload: bytes) -> None:
        asyncio.run_coroutine_threadsafe(_tick(ticks), loop).result(5)

    async with connect(url) as connector, running(worker, url):
        await Jobs(connector).enqueue_many("a", [b"x"] * 5)
        await wait_until(lambda: len(ticks) == 5, "five plain jobs have run")


async def _tick(ticks: list[int]) -> None:
    ticks.append(1)


async def test_what_is_wrong_is_refused_before_anything_is_claimed(url: str, raw: Redis) -> None:
    """No handler, an unknown queue, a lease below two beats, no server, another wire version: an error of its own each.

    Report 36 (hibiken/asynq#1030).
    """
    worker = Worker()
    with pytest.raises(ConfigError, match="no handler"):
        await worker.run(quick(url), signals=False)

    @worker.handler("a", lease_ms=150)
    async def nothing() -> None:
        raise AssertionError("nobody may call this")

    await _enqueue_one(url)
    with pytest.raises(ConfigError, match="at least two beats"):
        await worker.run(quick(url), signals=False)
    other = Worker()
    other.handler("a")(nothing)
    with pytest.raises(ConfigError, match="queue b: no handler"):
        await other.run(quick(url), queues=["b"], signals=False)
    with pytest.raises(Unreachable):
        await other.run(quick("redis://127.0.0.1:1/0"), signals=False)
    with pytest.raises(FenceRefused):
        await other.run(quick(url, wire_version="echomq:2.4.2"), signals=False)

    assert await raw.zcard("emq:{a}:pending") == 1
    assert await raw.exists("emq:{a}:active") == 0


async def _enqueue_one(url: str) -> None:
    async with connect(url) as connector:
        await Jobs(connector).enqueue("a", b"x")


async def test_stop_before_start_and_twice_is_fine(url: str) -> None:
    """A stop during the connect ends the run at once; a worker may run again afterwards."""
    worker = Worker()

    @worker.handler("a")
    async def nothing() -> None: ...

    worker.stop()
    for _ in range(20):
        task = asyncio.create_task(worker.run(quick(url), signals=False))
        await asyncio.sleep(0)
        worker.stop()
        worker.stop()
        assert (await asyncio.wait_for(task, 20)).exit_code == 0


async def test_a_bug_in_a_loop_ends_the_run_with_its_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that dies takes the worker down with its cause; it never lives on and does nothing.

    Report 57 (tastyware/streaq#43).
    """
    worker = Worker()

    @worker.handler("a")
    async def nothing() -> None: ...

    async def broken(_self: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("echomq_worker.pump.Pump.beat", broken)
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(worker.run(quick(url), signals=False), 20)
    assert caught.group_contains(RuntimeError, match="a bug")


async def test_a_bug_in_a_loop_is_no_crash_of_the_jobs_in_hand(
    url: str, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that goes down with a bug gives back what it holds: nothing held against healthy jobs, at once."""
    worker = Worker()
    started, broken = asyncio.Event(), asyncio.Event()

    @worker.handler("a", concurrency=2)
    async def wait() -> None:
        started.set()
        await never_ends()

    async def beat(_self: object) -> None:
        await broken.wait()
        raise RuntimeError("a bug")

    monkeypatch.setattr("echomq_worker.pump.Pump.beat", beat)
    async with connect(url) as connector:
        receipts = await Jobs(connector).enqueue_many("a", [b"x"] * 2)
        task = asyncio.create_task(worker.run(quick(url), signals=False))
        await asyncio.wait_for(started.wait(), 20)
        await wait_until(lambda: raw.zcard("emq:{a}:active"), "they are in hand")
        broken.set()
        with pytest.raises(ExceptionGroup):
            await asyncio.wait_for(task, 20)

    left = await keyspace_of(raw)
    assert left["emq:{a}:pending"] == {one.id: 0 for one in receipts}
    assert "emq:{a}:active" not in left
    for one in receipts:
        row = left[f"emq:{{a}}:job:{one.id}"]
        assert isinstance(row, dict)
        assert (row["state"], row["attempts"]) == ("pending", "1")
        assert not {"held", "crashes", "failures"} & set(row)


async def test_a_rate_limit_is_used_to_the_full_whatever_the_beat(url: str, raw: Redis) -> None:
    """Five starts per 100 ms with a beat of twenty seconds: the next five start when the window ends, not at the beat.

    Report 125 (riverqueue/river#132).
    """
    worker = Worker()
    starts: list[float] = []

    @worker.handler("a", concurrency=50)
    async def note() -> None:
        starts.append(asyncio.get_running_loop().time())

    await raw.hset("emq:{a}:meta", mapping={"max": 5, "window_ms": 100})
    async with connect(url) as connector:
        await Jobs(connector).enqueue_many("a", [b"x"] * 20)
        began = asyncio.get_running_loop().time()
        async with running(worker, url, beat_ms=20_000, lease_ms=60_000):
            await wait_until(lambda: len(starts) == 20, "all 20 have started")
            took_s = asyncio.get_running_loop().time() - began

    assert 0.25 < took_s < 10
    # A machine that stands still brings the starts of one window near to those of the next, not of all.
    gaps = sorted(later - sooner for sooner, later in zip(starts, starts[5:], strict=False))
    assert gaps[len(gaps) // 2] > 0.05


async def test_a_stop_while_it_starts_ends_it_there(url: str, own_server: OwnServer) -> None:
    """A server that does not answer, a lifespan that takes its time: a stop waits for neither; nothing is claimed."""
    frozen = own_server()
    frozen.pause()
    entered = asyncio.Event()

    async def slow() -> AsyncIterator[None]:
        entered.set()
        await never_ends()
        yield

    for address, lifespan in ((frozen.url, None), (url, slow)):
        worker = Worker()
        if lifespan is not None:
            worker.lifespan(lifespan)

        @worker.handler("a")
        async def nothing() -> None: ...

        task = asyncio.create_task(worker.run(quick(address, connect_timeout_ms=60_000), signals=False))
        await asyncio.sleep(0)
        if lifespan is not None:
            await asyncio.wait_for(entered.wait(), 20)
        worker.stop()
        assert (await asyncio.wait_for(task, 20)).exit_code == 0
    frozen.resume()
