"""Promise 7: a repeat fires once per period for the whole fleet, whatever happens to its Pumps.

Source: the seed "Recurrence mints a fresh job per occurrence", decisions P1 to P3.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from redis.asyncio import Redis

from echomq_worker.clock import Clock, SystemClock
from echomq_worker.connector import Wire, connect
from echomq_worker.degraded import Degraded, Outage
from echomq_worker.identity import Mint, minted_at_ms
from echomq_worker.job import Job
from echomq_worker.keyspace import Keys
from echomq_worker.logs import get_logger
from echomq_worker.pump import Pump
from echomq_worker.repeat import Repeat
from echomq_worker.script import scripts
from echomq_worker.worker import Worker
from tests.support.clock import ManualClock
from tests.support.process import WorkerProcess
from tests.support.proxy import Proxy
from tests.support.running import running
from tests.support.ticking import occurrences
from tests.support.valkey import ValkeyServer
from tests.support.waiting import passes, passes_until, wait_until

NAMES = [f"every-{number}" for number in range(20)]
PERIOD_MS = 200
MANY_S = 20
GRID_S = 60
LEASE_MS = 2_000


def _worker(url: str, notes: Path) -> WorkerProcess:
    numbers = {"beat_ms": 500, "tick_ms": 1_000, "lease_ms": LEASE_MS, "log_level": "warning", "log_format": "json"}
    env = {f"ECHOMQ_{name.upper()}": str(value) for name, value in numbers.items()}
    env |= {"ECHOMQ_URL": url, "TEST_NOTES": str(notes)}
    return WorkerProcess("run", "tests.support.ticking:worker", env=env)


def _pump(wire: Wire, clock: Clock, node_id: int) -> Pump:
    degraded = Degraded("pump", outage=Outage(clock=clock, log=get_logger("test")), beat_ms=100)
    mint = Mint(clock, node_id)
    return Pump(wire, Keys("a"), clock=clock, mint=mint, tick_ms=1_000, promote_batch=100, degraded=degraded)


@pytest.mark.timeout(300)
async def test_three_pumps_fire_each_repeat_once_per_period(url: str, tmp_path: Path) -> None:
    """Three worker processes, each with a Pump. 20 repeats of 200 ms for 20 s give about 100 jobs each, one per name
    and period; one of 1 s at a fixed rate gives about 60 in 60 s, though meanwhile one process is frozen for longer
    than its lease and goes on, and another is killed.

    Report 64 (taskiq-python/taskiq#296). Report 67 (oban-bg/oban#1488). Report 69 (python-arq/arq#459).
    """
    notes = tmp_path / "notes"
    async with connect(url) as connector:
        repeat = Repeat(connector)
        with ExitStack() as stack:
            frozen, killed, third = processes = [stack.enter_context(_worker(url, notes)) for _ in range(3)]
            await _pumps_run(connector, processes)
            began = time.time()
            await repeat.register("grid", "grid", 1_000, "grid", fixed_rate=True)
            for name in NAMES:
                await repeat.register("many", name, PERIOD_MS, name)
            await passes_until(began + MANY_S, "repeats fire for so long")
            many_ended = time.time()
            for name in NAMES:
                assert await repeat.cancel("many", name)

            frozen.send(signal.SIGSTOP)
            await passes(3 * LEASE_MS, "it is frozen for so long")
            frozen.send(signal.SIGCONT)
            await passes_until(began + MANY_S + 15, "one is killed later")
            killed.kill()
            await passes_until(began + GRID_S, "the grid goes on for so long")
            grid_ended = time.time()
            await repeat.cancel("grid", "grid")
            # What was claimed by the killed one comes back.
            await passes(LEASE_MS + 1_000, "what the dead worker held comes back")
            fired = occurrences(notes)
            assert third.alive
            assert frozen.alive

    _fired_once(fired, many_ended, grid_ended)


def _fired_once(fired: dict[str, list[str]], many_ended: float, grid_ended: float) -> None:
    """One job per name and period; the repeats of `many` ended before that of the grid, in seconds since 1970."""
    grid = [minted_at_ms(id) for id in fired.pop("grid")]
    # One that is late by a whole period is left out.
    assert 55 <= sum(at < grid_ended * 1000 for at in grid) <= 61
    # The first waits for the tick that finds the new name; from then on each comes on the grid, some late.
    assert sum(late - early <= 500 for early, late in pairwise(grid[1:])) <= len(grid) / 5
    assert set(fired) == set(NAMES)
    for name, ids in fired.items():
        minted = [minted_at_ms(id) for id in ids]
        # A period counts from when the last was fired: 90 or more, less where the machine is late each time.
        assert 65 <= sum(at < many_ended * 1000 for at in minted) <= 101, name
        # The id is minted a round trip after the clock was read that the next period counts from: on a loaded machine
        # some are late. Two Pumps that fire the same would be close to each other all the time.
        assert sum(late - early <= PERIOD_MS / 2 for early, late in pairwise(minted)) <= len(minted) / 5, name
    everything = [id for ids in fired.values() for id in ids]
    assert len(set(everything)) == len(everything)


async def _pumps_run(wire: Wire, processes: list[WorkerProcess]) -> None:
    """Wait until each of the processes has its connections: commands, and one that parks."""

    async def connected() -> bool:
        clients = await wire.call("CLIENT", "LIST")
        return bool(clients.count(b"name=echomq-worker:parking ") == len(processes))

    await wait_until(connected, "all processes are parked")


async def test_three_pumps_on_a_slow_line(server: ValkeyServer, url: str, raw: Redis) -> None:
    """Three Pumps that read the same 100 due names, each answer 5 ms late: one job per name and period.

    Report 64 (taskiq-python/taskiq#296).
    """
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(Proxy(server.port))
        wires = [await stack.enter_async_context(connect(proxy.url)) for _ in range(3)]
        pumps = [_pump(wire, clock, number) for number, wire in enumerate(wires)]
        repeat = Repeat(wires[0], clock=clock)
        for number in range(100):
            await repeat.register("a", f"name-{number}", 1_000, f"name-{number}")
        proxy.delay(5)
        for period in range(1, 4):
            ticks = await asyncio.gather(*(pump.beat() for pump in pumps))
            assert sum(tick.fired for tick in ticks) == 100
            assert await raw.zcard("emq:{a}:pending") == 100 * period
            clock.advance(1_000)

    rows = [await raw.hget(key, "payload") async for key in raw.scan_iter("emq:{a}:job:*", count=1_000)]
    assert set(Counter(rows).values()) == {3}


async def test_a_lost_reply_fires_nothing_twice(server: ValkeyServer, url: str) -> None:
    """The reply of every second fire is lost, as when a Pump dies right after it: no occurrence comes twice, and the
    repeat goes on.

    Report 61 (taskforcesh/bullmq#2876).
    """
    worker = Worker()
    seen: list[str] = []

    @worker.handler("a")
    async def handle(job: Job) -> None:
        seen.append(job.id)

    async with connect(url) as connector:
        # Known to the server already: each loss hits the call itself, not the text sent after NOSCRIPT.
        await connector.call("SCRIPT", "LOAD", scripts()["repeat_fire"].source)
        async with Proxy(server.port) as proxy, running(worker, proxy.url, beat_ms=50, lease_ms=1_000):
            losses = [proxy.swallow_reply(scripts()["repeat_fire"].sha.encode(), nth) for nth in (1, 2, 2, 2, 2, 2)]
            await Repeat(connector).register("a", "often", 250, b"x")
            await wait_until(lambda: all(loss.done for loss in losses), "six replies were lost")
            before = len(seen)
            await wait_until(lambda: len(seen) > before + 1, "the repeat goes on")

    assert len(set(seen)) == len(seen)
    minted = sorted(map(minted_at_ms, seen))
    # Six replies were lost; one occurrence may have been minted late.
    assert sum(late - early <= 125 for early, late in pairwise(minted)) <= 2


@pytest.mark.parametrize("fixed_rate", [False, True], ids=["from-now", "fixed-rate"])
async def test_a_pump_that_was_away_catches_up_once(url: str, raw: Redis, *, fixed_rate: bool) -> None:
    """Away for 3.5 periods: one run on return, however many were missed. Then a period from now, or the old grid.

    Report 74 (sidekiq/sidekiq#6656).
    """
    clock = ManualClock()
    start = clock.now_ms()
    async with connect(url) as connector:
        pump, repeat = _pump(connector, clock, 1), Repeat(connector, clock=clock)
        await repeat.register("a", "nightly", 1_000, b"x", fixed_rate=fixed_rate)
        assert (await pump.beat()).fired == 1
        clock.advance(3_500)
        ticks = [await pump.beat() for _ in range(3)]

    assert [tick.fired for tick in ticks] == [1, 0, 0]
    assert ticks[-1].next_due_ms == start + (4_000 if fixed_rate else 4_500)
    assert await raw.zcard("emq:{a}:pending") == 2


class _Off(SystemClock):
    def __init__(self, off_ms: int) -> None:
        self._off_ms = off_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._off_ms


async def test_pumps_whose_clocks_disagree(url: str) -> None:
    """Hosts half a second behind, right, and half a second ahead: one occurrence per period, where that is longer than
    the hosts are apart (the seed prices repeats on the host's clock).

    Report 68 (python-arq/arq#196).
    """
    period_ms = 800
    seen: list[str] = []
    starts: list[float] = []

    def a_worker(off_ms: int) -> Worker:
        worker = Worker(clock=_Off(off_ms))

        @worker.handler("a")
        async def handle(job: Job) -> None:
            seen.append(job.id)
            starts.append(time.monotonic())

        return worker

    async with AsyncExitStack() as stack:
        connector = await stack.enter_async_context(connect(url))
        for off_ms in (-500, 0, 500):
            await stack.enter_async_context(running(a_worker(off_ms), url))
        began = time.monotonic()
        await Repeat(connector).register("a", "often", period_ms, b"x", first_in_ms=period_ms)
        await wait_until(lambda: len(seen) >= 5, "five have fired")
        took_ms = (time.monotonic() - began) * 1000

    assert 4 * period_ms < took_ms < 5 * period_ms + 3_000
    assert len(set(seen)) == len(seen)
    # Where this process stands still for a while one start may come close to the next.
    assert sorted(late - early for early, late in pairwise(starts))[1] > period_ms / 2 / 1000
