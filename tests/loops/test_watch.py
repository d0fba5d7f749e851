"""Watch: an event loop that is blocked is noticed, once, and what blocks it is named.

A coroutine that waits for a thread blocks its loop: that thread looks, as the keeper's would.
"""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from echomq_worker.connector import connect
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.logs import current_job
from echomq_worker.observers import Blocked
from echomq_worker.watch import Culprit, Watch
from echomq_worker.worker import Worker
from tests.support.clock import ManualClock
from tests.support.running import running
from tests.support.stations import Lines, job_of
from tests.support.waiting import wait_until, works_plainly_for

LIMIT_MS = 1_000


@dataclass
class APlace:
    """A queue with its handler and the jobs that run."""

    queue: str = "q"
    handler: str = "app.send"
    running: list[Job] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        """Whether one runs."""
        return bool(self.running)


class Watched:
    """A watch on a clock that the test moves."""

    def __init__(self, *places: APlace) -> None:
        self.clock, self.lines, self.told = ManualClock(), Lines(), list[tuple[Culprit, int]]()
        self.watch = Watch(
            LIMIT_MS,
            places=places,
            clock=self.clock,
            log=self.lines,
            tell=lambda culprit, blocked_ms: self.told.append((culprit, blocked_ms)),
        )

    def looks_for(self, ms: int, *, every: int = LIMIT_MS // 4) -> None:
        """The other thread looks while the time passes; the loop has no turn meanwhile."""

        def look() -> None:
            self.watch.look()
            for _ in range(ms // every):
                self.clock.advance(every)
                self.watch.look()

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()


async def a_job_of(place: APlace) -> Job:
    """A job that runs in the current task."""
    job = job_of(queue=place.queue)
    job.runner = asyncio.current_task()
    place.running.append(job)
    return job


async def test_a_blocked_loop_is_one_warning_with_its_handler_and_how_long() -> None:
    """However often it was looked at meanwhile; the next turns of the loop add nothing.

    Report 29 (taskforcesh/bullmq#3183).
    """
    place = APlace()
    job, watched = await a_job_of(place), Watched(APlace("other"), place)
    watched.looks_for(3_000)
    assert watched.lines.kept == [], "it is told when it is over"
    for _ in range(3):
        await asyncio.sleep(0)
        watched.watch.look()
    ((level, event, said),) = watched.lines.kept
    assert (level, event) == ("warning", "event loop blocked")
    where = said.pop("where")
    assert said == {"blocked_ms": 3_000, "queue": "q", "handler": "app.send", "id": job.id}
    assert "test_watch.py:" in where
    assert watched.told == [(Culprit("q", "app.send", job.id, where), 3_000)]


async def test_a_loop_that_turns_in_time_is_not_mentioned() -> None:
    """Below the limit, however often; and nothing is asked of it while no handler runs."""
    place = APlace()
    watched = Watched(place)
    watched.looks_for(10_000)
    await asyncio.sleep(0)
    await a_job_of(place)
    for _ in range(20):
        watched.looks_for(750)
        await asyncio.sleep(0)
    assert watched.lines.kept == []


async def test_one_that_does_not_end_is_told_before_it_does() -> None:
    """Once, as an error: a worker that lives and does nothing must show."""
    place = APlace()
    await a_job_of(place)
    watched = Watched(place)
    watched.looks_for(30_000)
    assert [(level, event) for level, event, _ in watched.lines.kept] == [("error", "event loop still blocked")]
    await asyncio.sleep(0)
    assert watched.lines.events == ["event loop still blocked", "event loop blocked"]
    assert watched.lines.of("event loop blocked")[0]["blocked_ms"] == 30_000


class _Slow(APlace):
    """A place that takes until `read` is set to say what runs, once it was told to be `slow`."""

    def __init__(self) -> None:
        super().__init__()
        self.slow, self.asked, self.read = threading.Event(), threading.Event(), threading.Event()

    def __getattribute__(self, name: str) -> Any:
        if name == "running" and threading.current_thread() is not threading.main_thread() and self.slow.is_set():
            self.asked.set()
            self.read.wait(10)
        return super().__getattribute__(name)


async def test_one_that_ends_while_it_is_looked_at_harms_nobody() -> None:
    """The loop has its turn in the middle of a look of the other thread: it was blocked, and it is over."""
    place = _Slow()
    await a_job_of(place)
    watched = Watched(place)
    watched.looks_for(9_750)
    watched.clock.advance(250)
    place.slow.set()
    looking = asyncio.get_running_loop().run_in_executor(None, watched.watch.look)
    assert place.asked.wait(10), "the other thread looks"
    await wait_until(lambda: watched.lines.events, "the loop has its turn")
    place.read.set()
    await looking
    assert watched.lines.events == ["event loop blocked"]


async def test_who_keeps_the_process_from_stopping_is_told_at_the_limit() -> None:
    """The platform may kill it before it would be told otherwise."""
    place = APlace()
    await a_job_of(place)
    watched = Watched(place)
    watched.watch.awaited = True
    watched.looks_for(LIMIT_MS)
    assert watched.lines.events == ["event loop still blocked"]


async def test_a_process_that_stood_still_accuses_nobody() -> None:
    """Frozen, or without a processor, for a minute: the thread that looks stood still as well."""
    place = APlace()
    await a_job_of(place)
    watched = Watched(place)
    watched.watch.look()
    watched.clock.advance(60_000)
    await asyncio.sleep(0)
    watched.looks_for(500)
    watched.clock.advance(60_000)
    watched.watch.look()
    await asyncio.sleep(0)
    assert watched.lines.kept == []


async def test_what_is_no_handler_is_named_by_its_line() -> None:
    """A callback of the user's, say, that runs beside one."""
    place = APlace(running=[job_of()])
    watched = Watched(place)
    asyncio.get_running_loop().call_soon(lambda: watched.looks_for(2_000))
    for _ in range(3):
        await asyncio.sleep(0)
    (said,) = watched.lines.of("event loop blocked")
    assert {*said} == {"blocked_ms", "where"}
    assert re.match(r"test_watch\.py:\d+ in test_what.*lambda> > ", said["where"])


@pytest.mark.skipif(not hasattr(asyncio.Task, "get_context"), reason="Python 3.11 does not tell a task's context")
async def test_a_task_that_a_handler_has_made_is_its_handlers() -> None:
    """By the job in whose context it was made."""
    place = APlace(running=[job_of()])
    watched = Watched(place)
    current_job.set(place.running[0])

    async def made() -> None:
        watched.looks_for(2_000)

    await asyncio.create_task(made())
    await asyncio.sleep(0)
    assert watched.lines.of("event loop blocked")[0]["handler"] == "app.send"


@pytest.mark.blocks(reason="a handler that blocks the event loop is what this is about")
@pytest.mark.parametrize("limit_ms", [100, 0], ids=["on", "off"])
@pytest.mark.parametrize("kind", ["one", "batch"])
async def test_an_observer_hears_of_it(url: str, limit_ms: int, kind: str) -> None:
    """From a whole worker, whose thread it is that looks; with 0 there is nobody who looks."""
    worker, told = Worker(), list[object]()
    worker.observe(told.append)
    threads = threading.active_count()

    def block() -> None:
        assert threading.active_count() == threads + 1, "the keeper's thread does both"
        # Time for which the whole process stands still is not the handler's.
        works_plainly_for(1_500 if limit_ms else 200)

    if kind == "one":

        @worker.handler("a")
        async def blocks() -> None:
            block()

    else:

        @worker.batch_handler("a", min_size=1, timeout_ms=10)
        async def blocks_all(jobs: list[Job]) -> None:
            block()

    async with connect(url) as connector, running(worker, url, blocked_ms=limit_ms) as run:
        id = (await Jobs(connector).enqueue("a", b"x")).id
        await wait_until(lambda: any(type(event).__name__ == "Completed" for event in told), "it has run")
    blocked: list[Any] = [event for event in told if isinstance(event, Blocked)]
    assert run.report.completed == 1
    assert len(blocked) == (1 if limit_ms else 0)
    for event in blocked:
        assert (event.queue, event.id) == ("a", id if kind == "one" else None)
        assert event.handler is not None
        assert "blocks" in event.handler
        assert event.blocked_ms >= 250
