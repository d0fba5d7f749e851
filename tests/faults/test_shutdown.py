"""SIGTERM in every state a worker can be in: exit 0 within the grace and a stated margin, and a last line that names
what was given back and what is left to its lease.

Source: issue "The five promises" (shutdown), design section 3 (Shutdown), user-needs 58. The margin is what the design
says: 1 s for cancelled handlers, 2 s for what is said before the grace, 2 s after it, and closing.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs
from tests.support.fleet import Fleet, fleet
from tests.support.process import WorkerProcess
from tests.support.proxy import Proxy
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until

GRACE_MS = 300
# And what a shared machine needs to run a process to its end.
MARGIN_S = 5.0 + 10.0
# Nobody has to say anything, or everybody hears it.
SHORT_S = 0.5 + 10.0
LONG = {"sleep_ms": 60_000}


@dataclass
class Stop:
    """What there is when the signal comes."""

    url: str
    proxy: Proxy
    workers: Fleet
    worker: WorkerProcess
    queue: str

    async def run(self, count: int) -> list[str]:
        """So many long jobs that run; their ids in order."""
        async with connect(self.url) as connector:
            ids = [one.id for one in await Jobs(connector).enqueue_many(self.queue, [LONG] * count)]
        await wait_until(lambda: set(ids) <= self.workers.started(), "they run")
        return ids


@asynccontextmanager
async def _worker(server: ValkeyServer, url: str, queue: str, concurrency: int) -> AsyncIterator[Stop]:
    """A worker of one queue behind a proxy, with half a second for a command."""
    async with Proxy(server.port) as proxy:
        with fleet(proxy.url, grace_ms=GRACE_MS, command_timeout_ms=1_000, lease_ms=60_000) as workers:
            worker = workers.start("--queue", queue, concurrency=concurrency)
            await worker.saw("worker started")
            yield Stop(url, proxy, workers, worker, queue)
            proxy.flow()


async def _stopped(stop: Stop, within_s: float) -> dict[str, Any]:
    """Send SIGTERM, and answer its last line."""
    asked = time.monotonic()
    stop.worker.send(signal.SIGTERM)
    assert await stop.worker.ended() == 0
    took_s = time.monotonic() - asked
    assert took_s < GRACE_MS / 1000 + within_s, f"{stop.queue}: {took_s:.1f} s"
    last = stop.worker.records()[-1]
    assert last["event"] == "worker stopped"
    return last


async def _parked(server: ValkeyServer, url: str) -> None:
    """Nothing in hand, in its BLPOP: at once, and nothing to name."""
    async with _worker(server, url, "other", 5) as stop:
        await wait_until(lambda: stop.proxy.count(b"BLPOP"), "it parks")
        last = await _stopped(stop, SHORT_S)
    assert not {"released_ids", "left_ids"} & last.keys()


async def _every_slot_busy(server: ValkeyServer, url: str) -> None:
    """With more that waits: what ran is given back, all of it is counted and the first hundred are named."""
    async with _worker(server, url, "jobs", 120) as stop:
        ids = await stop.run(120)
        async with connect(url) as connector:
            await Jobs(connector).enqueue_many("jobs", [LONG] * 10)
        last = await _stopped(stop, SHORT_S)
    assert last["released"] == 120
    assert len(last["released_ids"]) == 100
    assert set(last["released_ids"]) < set(ids)
    named = [id for line in stop.worker.records("jobs released") for id in line["ids"]]
    assert sorted(named) == sorted(ids), "each on a line of its own kind"
    assert "left_ids" not in last


async def _server_frozen(server: ValkeyServer, url: str) -> None:
    """Connections stand and nothing is answered: what ran is left to its lease."""
    async with _worker(server, url, "pool", 5) as stop:
        ids = await stop.run(3)
        stop.proxy.stall()
        last = await _stopped(stop, MARGIN_S)
    assert sorted(last["left_ids"]) == sorted(ids)


async def _server_down(server: ValkeyServer, url: str) -> None:
    """Degraded, the server gone: the same."""
    async with _worker(server, url, "plain", 5) as stop:
        ids = await stop.run(3)
        await stop.proxy.refuse()
        stop.proxy.reset()
        await stop.worker.saw('"degraded"')
        last = await _stopped(stop, MARGIN_S)
    assert sorted(last["left_ids"]) == sorted(ids)


async def _ignores_cancellation(_server: ValkeyServer, url: str) -> None:
    """A handler that takes no cancellation for an answer keeps its lease, and no process."""
    env = {"ECHOMQ_URL": url, "ECHOMQ_GRACE_MS": str(GRACE_MS), "ECHOMQ_LOG_FORMAT": "json"}
    with WorkerProcess("run", "tests.support.stubborn:worker", "--queue", "swallows", env=env) as worker:
        async with connect(url) as connector:
            id = (await Jobs(connector).enqueue("swallows", b"{}")).id
        await worker.saw("begun")
        asked = time.monotonic()
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
        assert time.monotonic() - asked < GRACE_MS / 1000 + MARGIN_S
        last = worker.records("worker stopped")[-1]
    assert last["left_ids"] == [id]


async def test_a_stop_in_any_state_is_in_time_and_names_what_it_leaves(
    server: ValkeyServer, url: str, raw: Redis
) -> None:
    """Parked, every slot busy, the server frozen, the server down, a handler that ignores cancellation: five workers,
    each of its own queue, at once.

    Report 56 (oban-bg/oban#1076). Report 58 (taskforcesh/bullmq#1975).
    """
    states: list[Callable[[ValkeyServer, str], Awaitable[None]]] = [
        _parked,
        _every_slot_busy,
        _server_frozen,
        _server_down,
        _ignores_cancellation,
    ]
    async with asyncio.TaskGroup() as tasks:
        for state in states:
            tasks.create_task(_named(state, server, url))
    # What could be given back can be claimed at once: ten that waited, and a hundred and twenty that ran.
    assert await raw.zcard("emq:{jobs}:pending") == 130


async def _named(state: Callable[[ValkeyServer, str], Awaitable[None]], server: ValkeyServer, url: str) -> None:
    try:
        await state(server, url)
    except AssertionError as error:
        error.add_note(f"in the state {state.__doc__}")
        raise


async def test_nothing_begins_after_the_signal_behind_a_handler_that_blocks(url: str, raw: Redis) -> None:
    """What was claimed for other slots, or ahead of them, goes back when the loop turns again; who keeps it from that
    is named meanwhile, for the platform may not wait so long.
    """
    async with connect(url) as connector:
        await Jobs(connector).enqueue_many("jobs", [{"block_first_ms": 2_500}] * 12)
    with fleet(url, prefetch=6, blocked_ms=200) as workers:
        worker = workers.start("--queue", "jobs", concurrency=3)
        await wait_until(workers.started, "the first one blocks")
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
        assert len(workers.notes("start")) == len(workers.notes("end")) == 1
        (said,) = worker.records("event loop still blocked")
        assert (said["handler"], said["level"]) == ("tests.support.app.run", "error")
    assert await raw.zcard("emq:{jobs}:pending") == 11


async def test_a_lifespan_that_does_not_close_keeps_no_process(url: str) -> None:
    """What is left of the grace, two seconds at least, then it is cut short: one line names it, and the code is 1."""
    env = {"ECHOMQ_URL": url, "ECHOMQ_GRACE_MS": "100"}
    with WorkerProcess("run", "tests.support.closing:worker", env=env) as worker:
        await worker.saw("worker started")
        worker.send(signal.SIGTERM)
        await worker.saw("the lifespan closes")
        assert await worker.ended() == 1
        assert "lifespan tests.support.closing.endless: it had not closed" in worker.log_text()
        assert "Traceback" not in worker.log_text()


async def test_a_signal_that_comes_while_the_lifespan_closes_ends_that_too(url: str) -> None:
    """The second one: what hangs there keeps no process, and the exit code is that of the run."""
    with WorkerProcess("run", "tests.support.closing:worker", env={"ECHOMQ_URL": url}) as worker:
        await worker.saw("worker started")
        worker.send(signal.SIGTERM)
        await worker.saw("the lifespan closes")
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
        assert "Traceback" not in worker.log_text()


LEFT = "lifespan tests.support.closing.endless: it does not end though it was cancelled: left behind"
SWALLOWING = {"lifespan swallows": 1, "start swallows": 1, "hook swallows": 0, "observer swallows": 0}


async def test_what_swallows_its_cancellation_keeps_no_process(url: str) -> None:
    """A hook and an observer are left behind, and change no exit code; a lifespan is named by the last line, and the
    code is 1. Nobody has to send a second signal.
    """
    async with asyncio.TaskGroup() as tasks:
        for way, code in SWALLOWING.items():
            tasks.create_task(_swallows(url, way, code))


async def _swallows(url: str, way: str, code: int) -> None:
    env = {"ECHOMQ_URL": url, "ECHOMQ_GRACE_MS": "100", "TEST_CLOSING": way}
    queue = way.split(maxsplit=1)[0]
    with WorkerProcess("run", "tests.support.closing:worker", "--queue", queue, env=env) as worker:
        async with connect(url) as connector:
            await Jobs(connector).enqueue(queue, b"")
        await worker.saw("worker started" if way == "lifespan swallows" else "it swallows")
        worker.send(signal.SIGTERM)
        assert await worker.ended() == code, way
        assert ("it swallows" in worker.log_text(), "Traceback" in worker.log_text()) == (True, False), way
        assert (worker.lines()[-1].endswith(LEFT), "worker stopped" in worker.log_text()) == (
            code == 1,
            way != "start swallows",
        ), way


async def test_a_second_signal_ends_a_lifespan_that_swallows_it_too(url: str) -> None:
    """It is cut short, and as that does not end it the process ends without it, long before the grace is over."""
    env = {"ECHOMQ_URL": url, "ECHOMQ_GRACE_MS": "3600000", "TEST_CLOSING": "lifespan swallows"}
    with WorkerProcess("run", "tests.support.closing:worker", env=env) as worker:
        await worker.saw("worker started")
        worker.send(signal.SIGTERM)
        await worker.saw("the lifespan closes")
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 1
        assert worker.lines()[-1].endswith(LEFT)
