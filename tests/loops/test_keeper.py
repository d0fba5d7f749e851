"""Keeper: the thread that keeps leases whatever the event loop does, and tells what is lost where it belongs."""

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

from echomq_worker.clock import SystemClock
from echomq_worker.connector import Connector
from echomq_worker.degraded import Outage
from echomq_worker.job import Job
from echomq_worker.leases import ClosingWire, Keeper, Leases
from tests.loops.test_leases import KEYS, LEASE_MS, hold, in_hand, left_ms
from tests.support.plain import job
from tests.support.proxy import Proxy
from tests.support.stations import Lines, job_of
from tests.support.valkey import OwnServer, ValkeyServer
from tests.support.waiting import passes, wait_until, works_plainly_for


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
    await wait_until(lambda: not threads(), "the thread is gone")


async def test_the_keeper_extends_before_half_the_lease_is_over(url: str, raw: Redis) -> None:
    """Over two leases the deadline is never near."""
    leases, lease_ms = Leases(clock=SystemClock()), 2_000
    async with keeping(leases, url):
        hold(leases, await in_hand(raw, range(1), lease_ms=lease_ms), lease_ms=lease_ms)
        least = float(lease_ms)
        until = time.monotonic() + 1.7 * lease_ms / 1000
        while time.monotonic() < until:
            least = min(least, await left_ms(raw, job(0)))
            await passes(10, "the lease is looked at now and then")
    # Half a lease, and what a busy machine takes.
    assert least > lease_ms * 0.1


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
    """A handler that blocks it for two leases loses nothing."""
    leases, lease_ms = Leases(clock=SystemClock()), 2_000
    async with keeping(leases, url):
        hold(leases, await in_hand(raw, range(3), lease_ms=lease_ms), lease_ms=lease_ms)
        works_plainly_for(2 * lease_ms)
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


async def test_a_password_that_is_set_back_is_found_again(own_server: OwnServer) -> None:
    """A login that is refused is an outage, also while nothing is due, as it is extended elsewhere or has ended; when
    the server takes it again the connection is made anew by itself.
    """
    server, leases, lines = own_server(), Watched(), Lines()
    admin: Any = server.admin
    admin.execute_command("ACL", "SETUSER", "keeper", "on", ">secret", "~*", "&*", "+@all")
    connector = Connector(server.url.replace("://", "://keeper:secret@"), name="leases")
    async with keeping(leases, "", lines=lines, make=lambda: connector):
        held = job_of()
        hold(leases, [held])
        await wait_until(lambda: connector.connected, "it keeps")
        admin.execute_command("ACL", "SETUSER", "keeper", "resetpass", ">another")
        admin.execute_command("CLIENT", "KILL", "USER", "keeper")
        await wait_until(lambda: admin.info("stats")["acl_access_denied_auth"], "it is refused")
        await wait_until(lambda: "degraded" in lines.events, "it is told")
        leases.let_go(held)
        looks = leases.looks
        await wait_until(lambda: leases.looks >= looks + 4, "it has looked again")
        assert lines.events == ["degraded"]
        admin.execute_command("ACL", "SETUSER", "keeper", "resetpass", ">secret")
        await wait_until(lambda: "recovered" in lines.events, "it is back")
        assert connector.connected
    assert lines.events == ["degraded", "recovered"]


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

    async def open(self) -> None:
        """It is."""

    async def aclose(self) -> None:
        """Note it."""
        self.closed = True


async def test_a_bug_in_the_thread_ends_the_run_with_its_error() -> None:
    """Leases that nobody keeps are no silent loss.

    Report 57 (tastyware/streaq#43).
    """

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
            until = time.monotonic() + 20
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
