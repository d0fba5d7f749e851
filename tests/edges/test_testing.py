"""echomq_worker.testing: what users test with is tested here, and so is the page that shows it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from echomq_worker.connector import connect
from echomq_worker.errors import ConfigError, InvalidArgument, InvalidId, Unreachable
from echomq_worker.flows import Flows, Node
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.lanes import Lanes
from echomq_worker.repeat import Repeat
from echomq_worker.testing import NotIdle, call_handler, make_job, run_until_idle
from echomq_worker.verdict import Delay
from echomq_worker.worker import Worker
from tests.support.running import quick, running
from tests.support.valkey import free_port
from tests.support.waiting import never_ends, wait_until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"


def run_pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    """A test run as a user starts one, in an empty project: no options, no plugins of ours but those it asks for."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=150, check=False)


def test_every_file_of_the_page_passes(tmp_path: Path) -> None:
    """Under pytest-asyncio in strict mode, anyio and neither, in one run, with nothing left open.

    Report 113 (taskiq-python/taskiq#82).
    """
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -W error\nasyncio_default_fixture_loop_scope = function\n"
    )
    files = re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for text, name in files:
        (tmp_path / name).write_text(text)

    ended = run_pytest(tmp_path)

    assert ended.returncode == 0, ended.stdout
    tests = sum(text.count("def test_") for text, _ in files)
    assert f"{tests} passed" in ended.stdout
    assert len(files) == 6


def test_a_run_that_does_not_ask_loads_nothing(tmp_path: Path) -> None:
    """Installed beside a user's other packages it is not imported, and so it has no fixture there."""
    (tmp_path / "test_other.py").write_text(
        "import sys\n\ndef test_other():\n    assert 'echomq_worker' not in sys.modules\n"
    )

    assert run_pytest(tmp_path).returncode == 0


# -------------------------------------------------------------------------------------------- run_until_idle


async def test_everything_is_run_to_its_end(url: str) -> None:
    """Flat and in lanes, over several queues, a flow with its parent, what handlers enqueue; nothing is left."""
    worker, seen = Worker(), list[str]()

    async with connect(url) as connector:
        jobs = Jobs(connector)

        @worker.handler("a")
        async def first(job: Job) -> None:
            seen.append(job.payload.decode())
            if job.payload == b"first":
                await jobs.enqueue("b", b"second")

        @worker.handler("b")
        def second(payload: str) -> None:
            seen.append(payload)

        await jobs.enqueue("a", b"first")
        await Lanes(connector).enqueue("a", Lanes.group_for("x"), b"lane")
        await Flows(connector).add(Node("b", b"parent", [Node("a", b"child")]))
        report = await run_until_idle(worker, url=url, timeout_ms=60_000)

        assert sorted(seen) == ["child", "first", "lane", "parent", "second"]
        assert report.completed == 5
        assert (await jobs.counts("a")).ready + (await jobs.counts("b")).ready == 0


async def test_what_is_scheduled_comes_due_when_asked(url: str) -> None:
    """A job of tomorrow, retries of an hour, a delay: at once with `due_now`, left alone without."""
    worker = Worker(quick(url, retry_delay_ms=3_600_000))
    attempts: list[int] = []

    @worker.handler("a", max_attempts=3)
    async def fail(job: Job) -> None:
        attempts.append(job.attempts)
        if job.attempts == 1:
            raise Delay(3_600_000)
        raise ValueError

    async with connect(url) as connector:
        await Jobs(connector).enqueue_in("a", b"x", 86_400_000)
        left_alone = await run_until_idle(worker, url=url, timeout_ms=60_000)
        report = await run_until_idle(worker, url=url, due_now=True, timeout_ms=60_000)

    assert left_alone.counts["delayed"] == 0
    assert attempts == [1, 2, 3, 4]
    assert (report.retried, report.dead) == (2, 1)


async def test_a_repeat_that_is_due_is_fired_once(url: str) -> None:
    """Also one that a handler has just registered: the run goes on until the Pump has seen it, and its job is done."""
    worker, seen = Worker(), list[bytes]()

    async with connect(url) as connector:

        @worker.handler("a")
        async def handle(payload: bytes) -> None:
            seen.append(payload)
            if payload == b"first":
                await Repeat(connector).register("a", "daily", 86_400_000, b"r")

        await Jobs(connector).enqueue("a", b"first")
        await run_until_idle(worker, url=url, tick_ms=500, timeout_ms=60_000)

    assert seen == [b"first", b"r"]


async def test_not_idle_says_what_is_left(url: str) -> None:
    """States and numbers by queue, what is in hand by id; the handler is not waited for."""
    worker = Worker()

    @worker.handler("a", concurrency=1)
    async def hangs() -> None:
        await never_ends()

    @worker.handler("quiet")
    async def quiet() -> None: ...

    async with connect(url) as connector:
        receipts = await Jobs(connector).enqueue_many("a", [b"", b"", b""])
        with pytest.raises(NotIdle) as told:
            await run_until_idle(worker, url=url, timeout_ms=2_000)

    said = str(told.value)
    assert said.startswith("the worker was not idle after 2000 ms: a: 2 pending, 1 active, in hand: ")
    assert receipts[0].id in said
    assert "quiet" not in said


async def test_a_paused_queue_is_idle(url: str) -> None:
    """Nothing can be claimed there; its jobs stay."""
    worker = Worker()

    @worker.handler("a")
    async def handle() -> None: ...

    async with connect(url) as connector:
        await Jobs(connector).enqueue("a", b"")
        await connector.call("HSET", "emq:{a}:meta", "paused", 1)
        report = await run_until_idle(worker, url=url, timeout_ms=60_000)

    assert report.completed == 0


async def test_the_url_of_the_test_wins(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was made with the settings of production goes to the server of the test, or nowhere."""
    worker = Worker(quick("redis://production.invalid:6379/0"))

    @worker.handler("a")
    async def handle() -> None: ...

    monkeypatch.setenv("ECHOMQ_URL", url)
    await run_until_idle(worker, timeout_ms=60_000)
    with pytest.raises(Unreachable):
        await run_until_idle(worker, url=f"redis://127.0.0.1:{free_port()}")


async def test_a_worker_that_runs_already_goes_on(url: str) -> None:
    """A second run is refused with one line, and the first one is none the worse."""
    worker, seen = Worker(), list[bytes]()

    @worker.handler("a")
    async def handle(payload: bytes) -> None:
        seen.append(payload)

    async with connect(url) as connector, running(worker, url):
        await Jobs(connector).enqueue("a", b"1")
        await wait_until(lambda: seen, "it runs")
        with pytest.raises(ConfigError, match="it runs already"):
            await run_until_idle(worker, url=url)
        await Jobs(connector).enqueue("a", b"2")
        await wait_until(lambda: len(seen) == 2, "it still runs")


def test_another_event_loop_is_refused() -> None:
    """One line instead of a failure deep inside."""
    with pytest.raises(ConfigError, match="expected an event loop of asyncio"):
        run_until_idle(Worker()).send(None)


# ---------------------------------------------------------------------------------------------------- jobs


def test_a_job_has_what_it_was_made_with() -> None:
    """As a claimed one, without a server; what cannot be is refused."""
    group = Lanes.group_for("x")
    job = make_job({"a": 1}, queue="q", attempts=3, failures=2, max_attempts=3, group=group)

    assert (job.queue, job.payload, job.attempts, job.failures, job.group) == ("q", b'{"a":1}', 3, 2, group)
    assert job.last_attempt
    assert job.parse(dict[str, int]) == {"a": 1}
    assert job.minted_at > 0
    assert make_job().id != make_job().id
    for attempts, failures, max_attempts in ((0, 0, 1), (1, -1, 1), (1, 0, 0)):
        with pytest.raises(InvalidArgument):
            make_job(attempts=attempts, failures=failures, max_attempts=max_attempts)
    with pytest.raises(InvalidId):
        make_job(id="no id")


async def test_what_a_handler_tells_is_kept() -> None:
    """Checked as the real ones check it; the same for a plain function in any thread."""
    job = make_job(children={"JOB1": 1}, ignored={"JOB2": "late"})

    assert await job.progress({"at": 1})
    assert await job.log("line")
    assert await job.extend(5)
    assert (job.progressed, job.logged, job.extended) == ([{"at": 1}], ["line"], [5])
    assert await job.children_values() == {"JOB1": 1}
    assert (await job.dependencies()).ignored == ["JOB2"]
    with pytest.raises(InvalidArgument):
        await job.progress(object())
    with pytest.raises(InvalidArgument):
        await job.extend(0)


def test_a_plain_function_tells_without_a_loop() -> None:
    """`job.blocking` answers in the calling thread."""
    job = make_job(ignored={"JOB2": "late"})

    assert job.blocking.progress(1)
    assert job.blocking.log("x")
    assert job.blocking.extend(1)
    assert job.blocking.ignored_failures() == {"JOB2": "late"}


async def test_a_handler_is_called_as_the_worker_calls_it() -> None:
    """Its lifespan is entered and left; `state` stands in for it; batches and unknown queues are one line."""
    worker, entered = Worker(), list[str]()

    @worker.lifespan
    async def shared() -> AsyncIterator[str]:
        entered.append("in")
        yield "real"
        entered.append("out")

    @worker.handler("a")
    def handle(payload: int, state: str, job: Job) -> tuple[int, str, str]:
        return payload, state, job.queue

    @worker.batch_handler("b", min_size=1, timeout_ms=1)
    async def batch(jobs: list[Job]) -> None: ...

    assert await call_handler(worker, make_job(7, queue="a")) == (7, "real", "a")
    assert await call_handler(worker, make_job(7, queue="a"), state="fake") == (7, "fake", "a")
    assert entered == ["in", "out"]
    for queue in ("b", "c"):
        with pytest.raises(ConfigError, match=f"queue {queue}: expected a handler of single jobs"):
            await call_handler(worker, make_job(queue=queue))


async def test_a_lifespan_is_overridden_for_the_length_of_a_block(url: str) -> None:
    """The handlers of a run see it, and the one before is back afterwards.

    Report 114 (taskiq-python/taskiq#377).
    """
    worker, seen = Worker(), list[Any]()

    @worker.lifespan
    async def shared() -> AsyncIterator[str]:
        yield "real"

    @worker.handler("a")
    async def handle(state: str) -> None:
        seen.append(state)

    async with connect(url) as connector:
        for override in (True, False):
            await Jobs(connector).enqueue("a", b"")
            if override:
                with worker.override_lifespan("fake"):
                    await run_until_idle(worker, url=url, timeout_ms=60_000)
            else:
                await run_until_idle(worker, url=url, timeout_ms=60_000)

    assert seen == ["fake", "real"]


async def test_a_cancelled_test_stops_its_worker(url: str) -> None:
    """What runs is ended before the cancellation goes on; nothing is left over."""
    worker, begun = Worker(), asyncio.Event()

    @worker.handler("a")
    async def hangs() -> None:
        begun.set()
        await never_ends()

    async with connect(url) as connector:
        await Jobs(connector).enqueue("a", b"")
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: run_until_idle(worker, url=url, grace_ms=0))
                await begun.wait()
                scope.cancel()
