"""Connections that are lost again and again, and a server that is not there: one curve, no spinning, nothing stuck."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

from redis.asyncio import Redis

from echomq_worker.clock import SystemClock, Timer
from echomq_worker.connector import connect
from echomq_worker.errors import ConnectionLost
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.pool import connect_pool
from echomq_worker.worker import Worker
from tests.support.proxy import Proxy, Rule
from tests.support.running import running
from tests.support.valkey import OwnServer, ValkeyServer
from tests.support.waiting import passes, wait_until, works_for

BEAT_MS = 100
# A key of every script that the loops of the queue send; not of `keep`, which asks for what is held where a connection
# was made while a job is in hand.
OF_A_LOOP = b"emq:{a}:pending"
# A process of a shared machine that is asked to run, mostly and at worst.
MARGIN_S = 0.3
PAUSE_S = 2.5


class Noted(SystemClock):
    """A clock that keeps how long was waited for: of an idle consumer these are the waits after a failed beat."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def sleep_ms(self, ms: float) -> None:
        """As it is, and kept."""
        self.waits.append(ms)
        await super().sleep_ms(ms)

    def call_later(self, ms: float, callback: Callable[[], object], /) -> Timer:
        """As it is, and kept."""
        self.waits.append(ms)
        return super().call_later(ms, callback)


async def test_the_same_curve_answers_whichever_command_fails(server: ValkeyServer, url: str, raw: Redis) -> None:
    """The 1st, 2nd, and 50th script that the worker sends loses its connection, and so does its next try: each time it
    waits a beat, then two, and the next job runs. The first connect is nothing special.

    Report 3 (python-arq/arq#386).
    """
    clock = Noted()
    worker = Worker(clock=clock)
    losses: list[Rule] = []

    @worker.handler("a")
    async def handle() -> None: ...

    def next_try(command: bytes) -> None:
        if OF_A_LOOP in command and len(losses) == 1 and losses[0].done:
            losses.append(proxy.swallow_reply(OF_A_LOOP))

    async def settled(count: int) -> bool:
        return await raw.hget("emq:{a}:metrics:completed", "count") == str(count).encode()

    proxy = Proxy(server.port, tap=next_try)
    async with (
        connect(url) as connector,
        proxy,
        running(worker, proxy.url, options={"pump": False}, beat_ms=BEAT_MS),
    ):
        expected: list[float] = []
        for count, nth in enumerate((1, 2, 50, 0), 1):
            await Jobs(connector).enqueue("a", b"x")
            await wait_until(partial(settled, count), "it works, and has said all that it has to say")
            assert clock.waits == expected
            if not nth:
                break
            clock.waits.clear()
            expected = [BEAT_MS, 2 * BEAT_MS]
            losses[:] = [proxy.swallow_reply(OF_A_LOOP, nth)]
            await wait_until(lambda: [loss.done for loss in losses] == [True, True], f"script {nth} and the next")


@asynccontextmanager
async def _closed_door(port: int) -> AsyncIterator[list[float]]:
    """Somebody listens on the port and hangs up at once; when."""
    knocks: list[float] = []

    def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        knocks.append(time.monotonic())
        writer.transport.abort()

    async with await asyncio.start_server(answer, "127.0.0.1", port):
        yield knocks


async def test_an_outage_costs_its_process_next_to_nothing(own_server: OwnServer) -> None:
    """Without a server for two seconds: no loop tries more often than its curve says, and the event loop, which an
    application may share, is as quick as ever.

    Report 10 (taskforcesh/bullmq#3103).
    """
    server, clock = own_server(), Noted()
    worker = Worker(clock=clock)

    @worker.handler("a")
    async def handle() -> None: ...

    async with running(worker, server.url, beat_ms=BEAT_MS, tick_ms=BEAT_MS):
        await wait_until(lambda: clock.waits, "its loops run")
        server.stop()
        async with _closed_door(server.port) as knocks:
            await wait_until(lambda: knocks, "it has noticed")
            lags: list[float] = []
            used, began = time.process_time(), time.monotonic()
            while time.monotonic() < began + 2:
                before = time.monotonic()
                await passes(10, "the loop is measured")
                lags.append(time.monotonic() - before - 0.01)
            used = time.process_time() - used

    # A beat, two, four, eight: five tries of a loop in two seconds. Its consumer, Pump and listener may try.
    assert 3 <= len(knocks) <= 3 * 6
    assert used < 1.0, "half of one core, that of a slow machine"
    assert sorted(lags)[len(lags) * 3 // 4] < 0.05


async def test_a_run_of_random_losses_leaves_nothing_stuck(server: ValkeyServer, url: str, raw: Redis) -> None:
    """For three seconds, and ten losses, connections are killed at random while jobs come in, standalone and pooled:
    between two starts there are never three beats, and every job runs once and is settled.

    Report 11 (taskforcesh/bullmq#3517).
    """
    worker, draw = Worker(), random.Random(11)
    starts: dict[str, list[float]] = {"a": [], "b": []}
    runs: Counter[str] = Counter()

    async def handle(job: Job) -> None:
        starts[job.queue].append(time.monotonic())
        runs[job.id] += 1
        await works_for(20)

    for queue, consumers in (("a", 1), ("b", 3)):
        worker.handler(queue, consumers=consumers, concurrency=30)(handle)

    async def settled() -> bool:
        counts = [await raw.hget(f"emq:{{{queue}}}:metrics:completed", "count") for queue in starts]
        return sum(int(count or 0) for count in counts) == len(ids)

    ids: set[str] = set()
    async with connect(url, name="tests-producer") as connector, running(worker, url, beat_ms=BEAT_MS):
        jobs, kill_at, kills = Jobs(connector), 0.0, 0
        ids |= {(await jobs.enqueue(queue, b"x")).id for queue in starts}
        await wait_until(settled, "the worker works")
        until = time.monotonic() + 3
        while time.monotonic() < until or kills <= 10:
            ids |= {(await jobs.enqueue(queue, b"x")).id for queue in starts}
            if time.monotonic() > kill_at:
                ours = [row["id"] for row in server.admin.client_list() if row["name"].startswith("echomq")]
                kills += sum(
                    int(server.admin.client_kill_filter(_id=id)) for id in draw.sample(ours, min(2, len(ours)))
                )
                kill_at = time.monotonic() + draw.uniform(0.05, 0.4)
            await passes(10, "jobs and losses come one after the other")
        await wait_until(settled, "every job is settled")

    assert set(runs) == ids
    assert set(runs.values()) == {1}
    for when in starts.values():
        gaps = sorted(late - early for early, late in pairwise(when))
        assert gaps[-4] < 3 * BEAT_MS / 1000 + MARGIN_S
        assert gaps[-1] < 3 * BEAT_MS / 1000 + PAUSE_S


async def test_a_pool_whose_connections_were_dropped_is_whole_again(server: ValkeyServer, url: str) -> None:
    """Connections killed 20 times over, in use and idle: each call after it is served and no connection is lost.

    Report 17 (PrefectHQ/prefect#22478).
    """
    async with Proxy(server.port) as proxy, connect_pool(proxy.url, size=2) as pool:
        for _ in range(20):
            calls = [asyncio.ensure_future(pool.call("ECHO", "x")) for _ in range(6)]
            await asyncio.sleep(0)
            proxy.reset()
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert outcome == b"x" or isinstance(outcome, ConnectionLost)
            await wait_until(lambda: proxy.open == 0, "all are dropped")
            assert await asyncio.gather(*(pool.call("ECHO", "y") for _ in range(6))) == [b"y"] * 6
        assert pool.connected
        assert pool.pending == 0
        assert proxy.open == 2
