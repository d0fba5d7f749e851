"""Leases: what is in hand is kept, whatever the event loop does; what is lost is told, once, where it belongs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from echomq_worker.clock import Clock, SystemClock
from echomq_worker.connector import Connector, connect
from echomq_worker.degraded import Outage
from echomq_worker.errors import ServerError, Unreachable
from echomq_worker.job import Job
from echomq_worker.keyspace import Keys
from echomq_worker.leases import CHUNK, ClosingWire, Keeper, Leases
from tests.support.clock import ManualClock
from tests.support.plain import QUEUE, Queue, job, row
from tests.support.proxy import Proxy
from tests.support.stations import Lines, counting, job_of
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until

LEASE_MS = 600
KEYS = Keys(QUEUE)


def ignore(job: Job, reason: str) -> None:
    """Nothing is lost in this test."""
    raise AssertionError(f"lost: {job.id} {reason}")


async def in_hand(raw: Redis, numbers: range, *, queue: str = QUEUE, lease_ms: int = LEASE_MS) -> list[Job]:
    """Active jobs of ours on the server, as a claim leaves them now."""
    where = Queue(raw, queue)
    until = await where.now_ms() + lease_ms
    rows = {f"job:{job(n)}": row("active", 1, held="1:x") for n in numbers}
    await where.put({"active": {job(n): until for n in numbers}, **rows})
    return [job_of(id=job(n), held="1:x", queue=queue) for n in numbers]


def hold(
    leases: Leases,
    jobs: list[Job],
    *,
    queue: str = QUEUE,
    lease_ms: int = LEASE_MS,
    on_lost: Callable[[Job, str], None] = ignore,
    clock: Clock | None = None,
) -> None:
    """Keep `jobs` as the claim of one call that was sent now."""
    clock = clock or SystemClock()
    leases.hold(Keys(queue), jobs, lease_ms=lease_ms, claimed_ms=clock.monotonic_ms(), on_lost=on_lost)


async def left_ms(raw: Redis, id: str, queue: str = QUEUE) -> float:
    """How long the lease of a job still lasts on the server's clock."""
    score = await raw.zscore(f"emq:{{{queue}}}:active", id)
    assert score is not None
    return score - await Queue(raw).now_ms()


# ------------------------------------------------------------------------------------------------ one pass


async def test_a_batch_is_extended_when_a_third_of_its_lease_is_over(url: str, raw: Redis) -> None:
    """Not earlier; and then again a third later. The deadline on the server is a whole lease from then."""
    clock = ManualClock()
    leases = Leases(clock=clock)
    async with connect(url) as connector:
        hold(leases, await in_hand(raw, range(2), lease_ms=1), clock=clock, lease_ms=9_000)
        clock.advance(2_999)
        assert await leases.beat(connector) == 0
        clock.advance(1)
        assert await leases.beat(connector) == 2
        assert await leases.beat(connector) == 0
        for n in range(2):
            assert 8_000 < await left_ms(raw, job(n)) <= 9_000
        clock.advance(3_000)
        assert await leases.beat(connector) == 2


async def test_several_claims_are_kept_in_one_call(url: str, raw: Redis, server: ValkeyServer) -> None:
    """Claims of one queue and lease share a call, others the round trip; more than a script takes go in parts."""
    clock = ManualClock()
    leases = Leases(clock=clock)
    async with connect(url) as connector:
        for n in range(5):
            hold(leases, await in_hand(raw, range(n, n + 1)), clock=clock)
        clock.advance(LEASE_MS)
        assert await leases.beat(connector) == 5
        clock.advance(LEASE_MS)
        with counting(server.admin) as calls:
            assert await leases.beat(connector) == 5
            assert calls() == 1
        hold(leases, await in_hand(raw, range(5), queue="other"), queue="other", clock=clock)
        hold(leases, await in_hand(raw, range(5, 6)), lease_ms=LEASE_MS * 2, clock=clock)
        hold(leases, await in_hand(raw, range(6, 6 + CHUNK)), clock=clock)
        clock.advance(LEASE_MS)
        with counting(server.admin) as calls:
            assert await leases.beat(connector) == 11 + CHUNK
            assert calls() == 4
    assert leases.held == 11 + CHUNK


async def test_what_was_let_go_is_not_kept(url: str, raw: Redis) -> None:
    """Settled or released: its lease may run out. Letting go twice has no effect."""
    clock = ManualClock()
    leases = Leases(clock=clock)
    async with connect(url) as connector:
        kept, settled = await in_hand(raw, range(2), lease_ms=1)
        hold(leases, [kept, settled], clock=clock)
        hold(leases, [], clock=clock)
        for _ in range(2):
            leases.let_go(settled)
        assert leases.held == 1
        clock.advance(LEASE_MS)
        assert await leases.beat(connector) == 1
        assert await left_ms(raw, settled.id) <= 1
        leases.let_go(kept)
        assert leases.held == 0
        clock.advance(LEASE_MS)
        assert await leases.beat(connector) == 0


async def test_what_cannot_be_extended_is_lost_with_its_reason(url: str, raw: Redis) -> None:
    """No row, somebody else's claim (by token or by random), reaped; the others of the same call are kept."""
    clock, lost = ManualClock(), list[tuple[str, str]]()
    leases = Leases(clock=clock)
    async with connect(url) as connector:
        hold(
            leases, await in_hand(raw, range(5)), clock=clock, on_lost=lambda job, reason: lost.append((job.id, reason))
        )
        await raw.delete(KEYS.job(job(0)))
        await raw.hset(KEYS.job(job(1)), "attempts", "2")
        await raw.hset(KEYS.job(job(2)), "held", "1:y")
        await raw.zrem(KEYS.active, job(3))
        clock.advance(LEASE_MS)
        assert await leases.beat(connector) == 5
    assert lost == [(job(0), "gone"), (job(1), "stale"), (job(2), "stale"), (job(3), "not_active")]
    assert await raw.zcard(KEYS.active) == 4, "nothing is revived"


async def test_of_two_claims_of_one_id_the_earlier_is_lost(url: str, raw: Redis) -> None:
    """It was claimed again by this very process: the later claim is kept."""
    clock, lost = ManualClock(), list[Job]()
    leases = Leases(clock=clock)
    async with connect(url) as connector:
        (old,) = await in_hand(raw, range(1))
        hold(leases, [old], clock=clock, on_lost=lambda job, _: lost.append(job))
        await raw.hset(KEYS.job(old.id), mapping={"attempts": "2", "held": "2:y"})
        new = job_of(id=old.id, attempts=2, held="2:y")
        hold(leases, [new], clock=clock)
        clock.advance(LEASE_MS)
        await leases.beat(connector)
        leases.let_go(old)
        assert leases.held == 1
    assert lost == [old]


async def test_an_error_in_one_queue_does_not_touch_the_others(url: str, raw: Redis) -> None:
    """They are extended, and their losses told; the error is raised, and what it is about stays due."""
    clock, lost = ManualClock(), list[str]()
    leases = Leases(clock=clock)
    async with connect(url) as connector:
        hold(leases, await in_hand(raw, range(1), queue="bad"), queue="bad", clock=clock)
        hold(leases, await in_hand(raw, range(2), lease_ms=1), clock=clock, on_lost=lambda job, _: lost.append(job.id))
        await raw.zrem(KEYS.active, job(1))
        await raw.rename("emq:{bad}:active", "emq:{bad}:pending")
        await raw.set("emq:{bad}:active", "not a sorted set")
        clock.advance(LEASE_MS)
        with pytest.raises(ServerError, match="WRONGTYPE"):
            await leases.beat(connector)
        assert lost == [job(1)]
        assert await left_ms(raw, job(0)) > 0
        await raw.rename("emq:{bad}:pending", "emq:{bad}:active")
        assert await leases.beat(connector) == 1, "only what was not extended is due"


async def test_without_a_server_nothing_is_forgotten(url: str, raw: Redis) -> None:
    """It raises, and everything is due again."""
    clock = ManualClock()
    leases = Leases(clock=clock)
    hold(leases, await in_hand(raw, range(2)), clock=clock)
    clock.advance(LEASE_MS)
    with pytest.raises(Unreachable):
        await leases.beat(Connector("redis://127.0.0.1:1/0"))
    async with connect(url) as connector:
        assert await leases.beat(connector) == 2


async def test_leases_are_late_when_two_thirds_are_over(url: str, raw: Redis) -> None:
    """Then nobody has kept them as they should be; each queue by itself, and it can be extended by itself."""
    clock = ManualClock()
    leases = Leases(clock=clock)
    hold(leases, await in_hand(raw, range(1)), clock=clock)
    hold(leases, await in_hand(raw, range(1), queue="other"), queue="other", clock=clock)
    clock.advance(LEASE_MS * 2 // 3)
    assert not leases.late(QUEUE)
    clock.advance(1)
    assert leases.late(QUEUE)
    assert not leases.late("third")
    async with connect(url) as connector:
        assert await leases.beat(connector, queue=QUEUE) == 1
    assert not leases.late(QUEUE)
    assert leases.late("other")


# ------------------------------------------------------------------------------------------------ the thread


class Watched(Leases):
    """Leases that count the keeper's looks."""

    def __init__(self) -> None:
        super().__init__(clock=SystemClock())
        self.looks = 0

    async def beat(self, *args: Any, **options: Any) -> int:
        """As it is, and counted."""
        self.looks += 1
        return await super().beat(*args, **options)


def threads() -> list[threading.Thread]:
    """Those of keepers."""
    return [one for one in threading.enumerate() if one.name == "leases"]


@asynccontextmanager
async def keeping(
    leases: Leases, url: str, *, lines: Lines | None = None, make: Callable[[], ClosingWire] | None = None
) -> AsyncIterator[anyio.abc.TaskGroup]:
    """A keeper that runs; afterwards its thread is gone."""
    outage = Outage(clock=SystemClock(), log=lines or Lines())
    keeper = Keeper(leases, make or (lambda: Connector(url, name="leases")), shortest_lease_ms=LEASE_MS, outage=outage)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeper.run)
        yield tasks
        tasks.cancel_scope.cancel()
    await wait_until(lambda: not threads(), "the thread is gone", 1)


async def test_the_keeper_extends_before_half_the_lease_is_over(url: str, raw: Redis) -> None:
    """Over three leases the deadline is never near; the batch that is held later has its own rhythm."""
    leases = Leases(clock=SystemClock())
    async with keeping(leases, url):
        hold(leases, await in_hand(raw, range(1)))
        least = float(LEASE_MS)
        until = time.monotonic() + 2.2 * LEASE_MS / 1000
        while time.monotonic() < until:
            least = min(least, await left_ms(raw, job(0)))
            await asyncio.sleep(0.01)
    # Half a lease, and what a busy machine takes.
    assert least > LEASE_MS * 0.25


async def test_nothing_in_hand_needs_no_connection(url: str, raw: Redis) -> None:
    """The keeper connects when something is first due."""
    leases, connector = Watched(), Connector(url, name="leases")
    async with keeping(leases, url, make=lambda: connector):
        await wait_until(lambda: leases.looks >= 3, "it has looked three times")
        assert not connector.connected
        hold(leases, await in_hand(raw, range(1)))
        await wait_until(lambda: connector.connected, "it has connected")


@pytest.mark.blocks(reason="a handler that blocks the event loop is what this is about")
async def test_leases_are_kept_while_the_event_loop_is_blocked(url: str, raw: Redis) -> None:
    """A handler that blocks it for three leases loses nothing."""
    leases = Leases(clock=SystemClock())
    async with keeping(leases, url):
        hold(leases, await in_hand(raw, range(3)))
        time.sleep(3 * LEASE_MS / 1000)  # noqa: ASYNC251 - that is the point
        assert [await left_ms(raw, job(n)) > 0 for n in range(3)] == [True] * 3


async def test_a_loss_is_told_once_on_the_loop_of_the_owner(url: str, raw: Redis) -> None:
    """Who lets go of it on hearing of it does not hear of it again."""
    leases, lost = Watched(), list[tuple[str, str, int]]()

    def on_lost(job: Job, reason: str) -> None:
        lost.append((job.id, reason, threading.get_ident()))
        leases.let_go(job)

    async with keeping(leases, url):
        hold(leases, await in_hand(raw, range(2)), on_lost=on_lost)
        await raw.zrem(KEYS.active, job(1))
        await wait_until(lambda: lost, "it is told")
        looks = leases.looks
        await wait_until(lambda: leases.looks >= looks + 5, "it has looked again, and extended")
    assert lost == [(job(1), "not_active", threading.get_ident())]


async def test_an_outage_is_survived_and_told(url: str, raw: Redis, server: ValkeyServer) -> None:
    """One line at the start, one at the end; leases that did not run out meanwhile are extended."""
    leases, lines = Leases(clock=SystemClock()), Lines()
    async with Proxy(server.port) as proxy, keeping(leases, proxy.url, lines=lines):
        await proxy.refuse()
        hold(leases, await in_hand(raw, range(1), lease_ms=60_000))
        await wait_until(lambda: "degraded" in lines.events, "it has failed")
        await proxy.accept()
        await wait_until(lambda: "recovered" in lines.events, "it is back")
        proxy.reset()
        # The deadline on the server was far away, and an extension never shortens.
        assert await left_ms(raw, job(0)) > LEASE_MS
    assert lines.of("degraded")[0]["loop"] == "leases"
    assert lines.events[:2] == ["degraded", "recovered"]


class Wire:
    """A wire that does what it is told; it notes that it was closed."""

    def __init__(self, does: Callable[[], Any]) -> None:
        self.does = does
        self.closed = False

    async def pipeline(self, commands: Any) -> list[Any]:
        """What was told."""
        result: list[Any] = await self.does()
        return result

    async def call(self, *args: Any) -> Any:
        """Nobody keeps leases with it."""
        raise AssertionError(args)

    async def aclose(self) -> None:
        """Note it."""
        self.closed = True


async def test_a_bug_in_the_thread_ends_the_run_with_its_error() -> None:
    """Leases that nobody keeps are no silent loss."""

    async def broken() -> None:
        raise RuntimeError("a bug")

    wire, leases = Wire(broken), Leases(clock=SystemClock())
    hold(leases, [job_of()], lease_ms=1)
    with pytest.raises(ExceptionGroup) as caught:
        async with keeping(leases, "", make=lambda: wire):
            await anyio.sleep_forever()
    assert caught.group_contains(RuntimeError, match="a bug")
    assert wire.closed
    await wait_until(lambda: not threads(), "the thread is gone")


@pytest.mark.parametrize("stalled_at", ["nothing", "call", "connect"])
async def test_a_cancellation_ends_the_thread_at_once(
    url: str, raw: Redis, server: ValkeyServer, stalled_at: str
) -> None:
    """Also where the server says nothing: between two looks, in the middle of a call, while it connects."""
    leases, until = Watched(), 0.0
    async with Proxy(server.port) as proxy:
        connector = Connector(proxy.url)
        async with keeping(leases, proxy.url, make=lambda: connector):
            if stalled_at == "connect":
                proxy.stall()
            hold(leases, await in_hand(raw, range(1)))
            await wait_until(lambda: proxy.opened, "it connects")
            if stalled_at == "call":
                await wait_until(lambda: proxy.count(b"EVALSHA"), "it has extended")
                proxy.stall()
                await wait_until(lambda: connector.pending, "a call hangs")
            until = time.monotonic() + 1.5
        assert time.monotonic() < until
        assert not connector.connected


async def test_a_cancellation_right_at_the_start_leaves_no_thread(url: str) -> None:
    """However far the thread has come."""
    for turns in range(4):
        async with keeping(Leases(clock=SystemClock()), url):
            for _ in range(turns):
                await asyncio.sleep(0)


async def test_holding_and_letting_go_beside_a_pass_is_safe() -> None:
    """The event loop changes what the keeper's thread reads: no entry is lost, none is left."""
    leases, gone = Leases(clock=SystemClock()), threading.Event()

    async def nobody_lost() -> list[Any]:
        return [[]]

    wire = Wire(nobody_lost)
    passed: list[int] = []

    def pass_after_pass() -> None:
        while not gone.is_set():
            passed.append(asyncio.run(leases.beat(wire)))
        passed.append(-1)

    thread = threading.Thread(target=pass_after_pass)
    thread.start()
    try:
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            jobs = [job_of(id=job(n)) for n in range(50)]
            hold(leases, jobs, lease_ms=1)
            for one in jobs:
                leases.let_go(one)
            await asyncio.sleep(0)
    finally:
        gone.set()
        await asyncio.to_thread(thread.join)
    assert passed[-1] == -1, "the thread has not died of it"
    assert leases.held == 0
