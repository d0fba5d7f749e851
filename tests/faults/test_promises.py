"""The promises, one small check each, and the proof that each hangs on its mechanism: with that one switched off the
check fails.

Source: issue "The five promises" (each failing when its mechanism is switched off), docs/guarantees.md, whose sentences
name the thorough tests; these are the cheap ones.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.claims import Claims
from echomq_worker.clock import Clock
from echomq_worker.connector import Connector, connect
from echomq_worker.degraded import Degraded, Outage
from echomq_worker.handover import HandOver
from echomq_worker.identity import Mint
from echomq_worker.job import Job, JobContext
from echomq_worker.jobs import Jobs
from echomq_worker.keyspace import Keys
from echomq_worker.leases import Leases
from echomq_worker.pump import Pump, Tick
from echomq_worker.repeat import Repeat
from echomq_worker.script import evaluate, scripts
from echomq_worker.settle import Settle
from echomq_worker.suspects import Suspects
from echomq_worker.worker import Worker
from tests.support.clock import ManualClock
from tests.support.mutants import mutated
from tests.support.proxy import Proxy
from tests.support.running import running
from tests.support.stations import Lines
from tests.support.valkey import ValkeyServer
from tests.support.waiting import PATIENCE_S, never_ends, passes, wait_until, works_for

BEAT_MS = 100
LEASE_MS = 1_000
# Of a handler that is well: four times as long as a process may stand still.
HEALTHY_LEASE_MS = 2_000
# What never comes is waited for so long where its mechanism is switched off; what comes has all the time it needs.
NEVER_S = 3.0


@dataclass
class Place:
    """Where a promise is tried."""

    server: ValkeyServer
    url: str
    raw: Redis
    connector: Connector
    soon_s: float


Check = Callable[[Place], Awaitable[None]]
Off = Callable[[pytest.MonkeyPatch], None]


async def _claimed_by_the_dead(place: Place, *, lease_ms: int, consumer: str = "dead") -> list[str]:
    """What a worker claims that ends there and then; answers the ids."""
    context = JobContext(Keys("a"), place.connector, max_attempts=3)
    claims = Claims(context, consumer=consumer, lease_ms=lease_ms, max_crashes=5, suspects=Suspects())
    name, keys, values = claims.call(10)
    return [job.id for job in claims.read(await evaluate(place.connector, name, keys, values)).jobs]


async def _an_accepted_job_is_run(place: Place) -> None:
    """1. Five jobs whose worker dies with them in hand run in another one."""
    ran, worker = Counter[str](), Worker()

    @worker.handler("a")
    async def handle(job: Job) -> None:
        ran[job.id] += 1

    ids = [one.id for one in await Jobs(place.connector).enqueue_many("a", [b"x"] * 5)]
    assert await _claimed_by_the_dead(place, lease_ms=LEASE_MS) == ids
    async with running(worker, place.url, beat_ms=BEAT_MS, lease_ms=LEASE_MS):
        await wait_until(lambda: set(ran) == set(ids), "promise 1: what was accepted runs", place.soon_s)


async def _a_dead_workers_job_starts_again_in_time(place: Place) -> None:
    """2. Within a lease and a beat of the claim that was its worker's last sign of life."""
    began, worker = list[float](), Worker()

    @worker.handler("a")
    async def handle() -> None:
        began.append(time.monotonic())

    await Jobs(place.connector).enqueue("a", b"x")
    asked = time.monotonic()
    await _claimed_by_the_dead(place, lease_ms=LEASE_MS)
    async with running(worker, place.url, beat_ms=BEAT_MS, lease_ms=LEASE_MS):
        await wait_until(lambda: began, "promise 2: a dead worker's job starts again in time", place.soon_s)
        assert began[0] - asked > 0.9 * LEASE_MS / 1000, "not before its lease is over"


async def _a_healthy_handler_is_not_started_twice(place: Place) -> None:
    """3. One that runs for two leases and more, beside an idle worker."""
    runs, ended = Counter[str](), asyncio.Event()

    async def handle(job: Job) -> None:
        runs[job.id] += 1
        await works_for(2.2 * HEALTHY_LEASE_MS)
        ended.set()

    async with AsyncExitStack() as stack:
        for _ in range(2):
            worker = Worker()
            worker.handler("a")(handle)
            await stack.enter_async_context(running(worker, place.url, beat_ms=BEAT_MS, lease_ms=HEALTHY_LEASE_MS))
        id = (await Jobs(place.connector).enqueue("a", b"x")).id
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
        assert runs == {id: 1}, "promise 3: it is started once"


async def _a_poison_is_given_up(place: Place) -> None:
    """4. After five claims that never ended, with the reason, and no sixth."""
    id = (await Jobs(place.connector).enqueue("a", b"x")).id
    for claim in range(6):
        await _claimed_by_the_dead(place, lease_ms=1, consumer=f"dead-{claim}")
        await place.raw.zadd("emq:{a}:active", {id: 1}, xx=True)
        await evaluate(place.connector, "reap", [Keys("a").active, Keys("a").pending], [Keys("a").base])
    reason = await place.raw.hget(f"emq:{{a}}:job:{id}", "last_error")
    assert reason == b"crashed: 5 claims in a row never ended", "promise 4: it is given up"
    assert await place.raw.zcard("emq:{a}:dead") == 1


async def _a_repeat_fires_once_for_the_fleet(place: Place) -> None:
    """5. Three Pumps that read the same ten due names over a slow line."""
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(Proxy(place.server.port))
        wires = [await stack.enter_async_context(connect(proxy.url)) for _ in range(3)]
        repeat = Repeat(place.connector, clock=clock)
        for number in range(10):
            await repeat.register("a", f"name-{number}", 60_000, b"x", fixed_rate=True)
        proxy.delay(5)
        await asyncio.gather(*(_pump(wire, clock, number).beat() for number, wire in enumerate(wires)))
        assert await place.raw.zcard("emq:{a}:pending") == 10, "promise 5: it fires once"


def _pump(wire: Connector, clock: Clock, node_id: int) -> Pump:
    degraded = Degraded("pump", outage=Outage(clock=clock, log=Lines()), beat_ms=100)
    mint = Mint(clock, node_id)
    return Pump(wire, Keys("a"), clock=clock, mint=mint, tick_ms=1_000, promote_batch=100, degraded=degraded)


async def _a_stop_gives_back(place: Place) -> None:
    """A stop: what is over the grace is pending again when the process ends, and nothing is held against it."""
    began, worker = asyncio.Event(), Worker()

    @worker.handler("a")
    async def handle() -> None:
        began.set()
        await never_ends()

    id = (await Jobs(place.connector).enqueue("a", b"x")).id
    async with running(worker, place.url, grace_ms=20, lease_ms=60_000):
        await asyncio.wait_for(began.wait(), PATIENCE_S)
    assert await place.raw.zrange("emq:{a}:pending", 0, -1) == [id.encode()], "a stop: it is given back"
    row = await place.raw.hgetall(f"emq:{{a}}:job:{id}")
    assert {b"held", b"crashes", b"failures"}.isdisjoint(row)


async def _a_verdict_outlives_an_outage(place: Place) -> None:
    """An outage: a handler that ends while the server is away for longer than its lease has run once, and counts."""
    runs, go_on, worker = Counter[str](), asyncio.Event(), Worker()

    @worker.handler("a")
    async def handle(job: Job) -> None:
        runs[job.id] += 1
        await go_on.wait()

    async with Proxy(place.server.port) as proxy, running(worker, proxy.url, beat_ms=BEAT_MS, lease_ms=LEASE_MS):
        id = (await Jobs(place.connector).enqueue("a", b"x")).id
        await wait_until(lambda: runs, "it runs")
        await proxy.refuse()
        proxy.reset()
        go_on.set()
        await passes(1.2 * LEASE_MS, "the outage is longer than the lease")
        await proxy.accept()
        counted = partial(place.raw.hget, "emq:{a}:metrics:completed", "count")
        await wait_until(counted, "an outage: its verdict is kept", place.soon_s)
        assert await counted() == b"1"
    assert runs == {id: 1}, "an outage: it runs once"


# --------------------------------------------------------------------------------------------- mechanisms switched off


def _script(name: str, old: str, new: str, patch: pytest.MonkeyPatch) -> None:
    mutants = {**scripts(), name: mutated(name, old, new)}
    patch.setattr("echomq_worker.script.scripts", lambda: mutants)


def _no_extension(patch: pytest.MonkeyPatch) -> None:
    async def beat(*_: object, **__: object) -> int:
        return 0

    patch.setattr(Leases, "beat", beat)


def _two_step_fire(patch: pytest.MonkeyPatch) -> None:
    """As the seed's Pump has it: enqueue, then advance."""

    async def beat(self: Any) -> Tick:
        now, keys, wire = self._clock.now_ms(), self._keys, self._wire
        due = await wire.call("ZRANGEBYSCORE", keys.repeat, "-inf", now)
        for name in due:
            await Jobs(wire).enqueue(keys.queue, b"x")
            await Repeat(wire, clock=self._clock).advance(keys.queue, name.decode(), 60_000)
        return Tick(len(due), 0, None)

    patch.setattr(Pump, "beat", beat)


def _no_hand_over(patch: pytest.MonkeyPatch) -> None:
    async def give_back(_self: object) -> bool:
        return True

    async def end(_self: object) -> None: ...

    patch.setattr(HandOver, "_give_back", give_back)
    patch.setattr(HandOver, "_end", end)


def _no_second_sending(patch: pytest.MonkeyPatch) -> None:
    """A verdict that was not answered is forgotten."""
    beat = Settle.beat

    async def once(self: Any) -> int:
        try:
            return await beat(self)
        except Exception:
            self._sending = []
            raise

    patch.setattr(Settle, "beat", once)


_LEASE = "redis.call('ZADD', claim.active, unpack(leases))"
_REAPED = "redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms(), 'LIMIT', 0, 100)"
_CRASHES = "local crashes = count_crashes(row)"

PROMISES: dict[str, tuple[Check, str, Off]] = {
    "1 at least once": (_an_accepted_job_is_run, "a claim leaves a lease", partial(_script, "claim_many", _LEASE, "")),
    "2 a lease and a beat": (
        _a_dead_workers_job_starts_again_in_time,
        "recovery",
        partial(_script, "reap", _REAPED, "{}"),
    ),
    "3 not twice": (_a_healthy_handler_is_not_started_twice, "leases are extended", _no_extension),
    "4 given up": (
        _a_poison_is_given_up,
        "crashes are counted at the claim",
        partial(_script, "claim_many", _CRASHES, "local crashes = 0"),
    ),
    "5 once per period": (_a_repeat_fires_once_for_the_fleet, "fire and advance are one step", _two_step_fire),
    "a stop": (_a_stop_gives_back, "the hand-over", _no_hand_over),
    "an outage": (_a_verdict_outlives_an_outage, "verdicts are kept until answered", _no_second_sending),
}


@pytest.mark.parametrize("switched", ["on", "off"])
@pytest.mark.parametrize("name", PROMISES)
async def test_a_promise_hangs_on_its_mechanism(
    server: ValkeyServer, url: str, raw: Redis, name: str, switched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its mechanism each promise holds; with that one alone switched off the same check says that it does not."""
    check, mechanism, off = PROMISES[name]
    async with connect(url) as connector:
        soon_s = PATIENCE_S if switched == "on" else LEASE_MS / 1000 + NEVER_S
        place = Place(server, url, raw, connector, soon_s)
        if switched == "on":
            await check(place)
            return
        off(monkeypatch)
        broken = await _broken(check, place)
    assert re.search(r"promise \d:|a stop:|an outage:", broken), (
        f"{name}, without its mechanism ({mechanism}): {broken}"
    )


async def _broken(check: Check, place: Place) -> str:
    """What the check says is broken."""
    try:
        await check(place)
    except AssertionError as error:
        return str(error)
    return "it holds"
