"""Metronome: one beat, one wait and one sweep for all consumers of a queue in a process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from echomq_worker.clock import Clock, SystemClock
from echomq_worker.connector import connect
from echomq_worker.errors import ServerError, Unreachable
from echomq_worker.keyspace import Keys
from echomq_worker.metronome import Metronome
from echomq_worker.options import Limits
from echomq_worker.recovery import Recovery, Swept
from echomq_worker.seats import Token
from tests.support.clock import ManualClock
from tests.support.plain import QUEUE
from tests.support.stations import (
    LEASE_MS,
    FastClock,
    Gate,
    Lines,
    counting,
    degraded,
    expired,
    parked,
    pending,
    stand,
)
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until

LONG: dict[str, Any] = {"beat_ms": 60_000, "limits": Limits(lease_ms=120_000)}


class Pool:
    """A metronome, and consumers that note when they are poked and park again."""

    def __init__(self, made: Metronome, tasks: anyio.abc.TaskGroup) -> None:
        self.made = made
        self.tasks = tasks
        self.poked: list[str] = []

    def park(self, *names: str) -> None:
        """Consumers that go idle in this order, each for one poke."""
        for name in names:
            self.tasks.start_soon(self._rest, name, name=name)

    async def _rest(self, name: str) -> None:
        await self.made.rest().park(60_000)
        self.poked.append(name)


@asynccontextmanager
async def pool(
    url: str, *, beat_ms: int = 60_000, clock: Clock | None = None, runs: bool = True
) -> AsyncIterator[Pool]:
    """A metronome on the tests' queue; it runs unless it is to be driven by hand."""
    clock, keys = SystemClock(), Keys(QUEUE)

    async def nothing() -> None:
        pass

    async with connect(url) as connector, anyio.create_task_group() as tasks:
        recovery = Recovery(connector, keys, clock=clock, promote_batch=100, budget_ms=beat_ms / 2, before=nothing)
        made = Metronome(
            connector.parking(),
            keys,
            clock=clock,
            beat_ms=beat_ms,
            recovery=recovery,
            degraded=degraded("metronome", clock=clock, beat_ms=beat_ms),
        )
        if runs:
            begun = clock.monotonic_ms()
            tasks.start_soon(made.run, name="metronome")
            await wait_until(lambda: made._next_beat_ms > begun, "its first beat")
        yield Pool(made, tasks)
        tasks.cancel_scope.cancel()


async def push(raw: Redis, count: int = 1, where: str = "ready") -> None:
    """Readiness tokens."""
    key: Any = f"emq:{{q}}:{where}"
    await raw.lpush(key, *["1"] * count)
    await raw.pexpire(key, 60_000)


async def push_late(made: Pool, raw: Redis) -> None:
    """A readiness token while the wait on the server still stands, for which the only idle consumer has just gone."""
    made.park("a")
    await parked(raw)
    made.made.poke()
    await wait_until(lambda: made.poked == ["a"], "nobody is idle")
    await push(raw)


async def test_tokens_poke_consumers_in_the_order_in_which_they_went_idle(url: str, raw: Redis) -> None:
    """One token, one consumer; of either kind."""
    async with pool(url) as made:
        made.park("a", "b", "c")
        await parked(raw)
        await push(raw)
        await wait_until(lambda: made.poked == ["a"], "the first is poked")
        made.park("d")
        await push(raw, where="wake")
        await wait_until(lambda: made.poked == ["a", "b"], "the second is poked")
        await push(raw, 2)
        await wait_until(lambda: len(made.poked) == 4, "all are poked")
    assert made.poked == ["a", "b", "c", "d"]


async def test_a_beat_sweeps_once_and_pokes_the_one_that_is_idle_longest(
    url: str, raw: Redis, server: ValkeyServer
) -> None:
    """Whatever the number of consumers: reap and promote are sent once; one of them looks, for jobs without a token."""
    async with pool(url, runs=False) as made:
        made.park("a", "b", "c")
        await asyncio.sleep(0)
        await expired(raw, 1)
        assert await made.made.beat() == Swept(recovered=1)
        with counting(server.admin) as calls:
            await made.made.beat()
            assert calls() == 2
        await wait_until(lambda: len(made.poked) == 2, "two were poked")
    assert made.poked == ["a", "b"]


async def test_a_consumer_that_left_work_behind_pokes_the_next(url: str) -> None:
    """A burst wakes one after the other, as long as there is more."""
    async with pool(url, runs=False) as made:
        made.park("a", "b")
        await asyncio.sleep(0)
        made.made.poke()
        await wait_until(lambda: made.poked == ["a"], "the first looks")
        made.made.poke()
        made.made.poke()
        await wait_until(lambda: made.poked == ["a", "b"], "the second looks")


async def test_who_left_its_seat_is_not_poked(url: str) -> None:
    """A consumer that stops, or is woken by something else, takes no poke with it."""
    async with pool(url, runs=False) as made:
        with anyio.move_on_after(0):
            await made.made.rest().park(60_000)
        made.park("a")
        await asyncio.sleep(0)
        made.made.poke()
        await wait_until(lambda: made.poked == ["a"], "the one that is there looks")


async def test_tokens_are_left_alone_while_nobody_is_idle(url: str, raw: Redis) -> None:
    """They wake other processes; the first consumer to go idle finds them."""
    await push(raw)
    async with pool(url) as made:
        for _ in range(20):
            await asyncio.sleep(0)
        assert await raw.llen("emq:{q}:ready") == 1
        made.park("a")
        await wait_until(lambda: made.poked == ["a"], "it looks")


async def test_a_token_that_comes_when_the_last_idle_one_has_just_gone_is_not_lost(url: str, raw: Redis) -> None:
    """The wait on the server stands a little longer than the idle consumer: the next one to go idle looks at once."""
    async with pool(url) as made:
        await push_late(made, raw)

        async def taken() -> bool:
            return not await raw.exists("emq:{q}:ready")

        await wait_until(taken, "the token is taken all the same")
        await wait_until(lambda: made.made._owed, "it is known")
        made.park("b", "c")
        await wait_until(lambda: made.poked == ["a", "b"], "the next one looks")
        await parked(raw)
        assert made.poked == ["a", "b"], "once"


async def test_a_token_that_the_parking_has_kept_is_handed_on(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It came while nobody of the pool waited, and a consumer goes idle before it is given back: that one looks, once,
    and not at the next beat.
    """
    monkeypatch.setattr("echomq_worker.parking._OWED_S", 600)
    async with pool(url, beat_ms=600_000) as made:
        parking = made.made._parking
        parking._seat(made.made._keys)
        parking._hand(Token(b"emq:{q}:ready", b"1"))
        made.park("a", "b")
        await wait_until(lambda: made.poked == ["a"], "the first one looks")
        await wait_until(lambda: parking._answer is not None, "the pool waits for the next token")
        assert made.poked == ["a"]


async def test_a_token_that_is_owed_goes_back_at_a_stop(url: str, raw: Redis) -> None:
    """Nobody was idle when it came, and now nobody claims any more: another process has it, and need not wait for its
    beat. Who goes idle meanwhile takes none with it.
    """
    async with pool(url) as made:
        await push_late(made, raw)
        await wait_until(lambda: made.made._owed, "the token is taken all the same")
        made.made.hold()
        made.park("b")
        await asyncio.sleep(0)
        made.made.stop()
        await wait_until(lambda: raw.llen("emq:{q}:ready"), "it is there again")
        assert await raw.llen("emq:{q}:ready") == 1
        assert made.poked == ["a"]


@pytest.mark.parametrize("consumers", [2, 5])
async def test_a_pool_sweeps_once_a_beat(url: str, raw: Redis, server: ValkeyServer, consumers: int) -> None:
    """Its consumers only claim."""
    clock = ManualClock()
    async with stand(url, clock=clock, consumers=consumers, concurrency=10) as made:
        metronome = made.station.metronome
        assert metronome is not None
        assert len(made.station.consumers) == consumers
        await metronome.beat()
        await made.consumer.beat()
        with counting(server.admin) as calls:
            await metronome.beat()
            assert calls() == 2
            for consumer in made.station.consumers:
                assert (await consumer.beat()).swept is None
            assert calls() == 2 + consumers


async def test_a_foreign_job_without_a_token_is_found_within_a_beat(url: str, raw: Redis) -> None:
    """And so it is again, though another consumer of the pool is idle longest by then."""
    gate = Gate()
    gate.gate.set()
    async with stand(url, gate.handler, consumers=3, concurrency=3) as made, anyio.create_task_group() as loops:
        made.station.start(loops)
        await parked(raw)
        for number in range(4):
            await pending(raw, range(number, number + 1))
            await wait_until(lambda number=number: len(gate.began) == number + 1, "it runs")  # type: ignore[misc]  # a default
        made.station.stop()
    assert made.counts == {"done": 4}


async def test_a_burst_is_spread_over_the_consumers_of_a_pool(url: str, raw: Redis) -> None:
    """One token is enough for all: who fills its slots pokes the next."""
    gate = Gate()
    async with stand(url, gate.handler, consumers=3, concurrency=9, **LONG) as made, anyio.create_task_group() as loops:
        made.station.start(loops)
        await parked(raw)
        await pending(raw, range(20))
        await push(raw)
        await wait_until(lambda: len(gate.began) == 9, "all slots are taken")
        assert [consumer.slots.free for consumer in made.station.consumers] == [0, 0, 0]
        made.station.stop()
    assert await raw.zcard("emq:{q}:pending") == 11


async def test_a_lost_lease_of_this_process_is_kept_from_the_sweep_of_its_pool(url: str, raw: Redis) -> None:
    """As for a consumer alone: after an outage what is in hand is extended first."""
    gate, clock = Gate(), ManualClock()
    (id,) = await pending(raw, range(1))
    async with stand(url, gate.handler, clock=clock, consumers=2) as made:
        await made.consumer.beat()
        await wait_until(lambda: gate.began, "it runs")
        await raw.zadd("emq:{q}:active", {id: 1})
        clock.advance(LEASE_MS)
        assert made.station.metronome is not None
        assert await made.station.metronome.beat() == Swept()


@pytest.mark.parametrize("idle", [True, False])
async def test_a_stop_ends_the_run_at_once(url: str, raw: Redis, idle: bool) -> None:
    """In its BLPOP, or while nobody is idle; twice is fine."""
    async with pool(url, runs=False) as made:
        if idle:
            made.park("a", "b")
        begun = made.made._next_beat_ms
        running = asyncio.create_task(made.made.run())
        await wait_until(lambda: made.made._next_beat_ms > begun, "its first beat")
        if idle:
            await parked(raw)
        started = time.monotonic()
        made.made.stop()
        made.made.stop()
        await asyncio.wait_for(running, 20)
        assert time.monotonic() - started < 20


class Broken:
    """A recovery that fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.tries = 0

    async def beat(self) -> Swept:
        """Fail."""
        self.tries += 1
        raise self.error


async def test_a_wire_error_waits_on_the_degraded_curve_whoever_goes_idle() -> None:
    """Consumers that park meanwhile do not make it try again."""
    clock, lines = ManualClock(), Lines()
    broken: Any = Broken(Unreachable("x"))
    made = Metronome(
        None,  # type: ignore[arg-type]  # nobody gets as far as parking
        Keys(QUEUE),
        clock=clock,
        beat_ms=100,
        recovery=broken,
        degraded=degraded("metronome", clock=clock, beat_ms=100, lines=lines),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        for tries, wait_ms in enumerate([100, 200, 400], 1):
            tasks.start_soon(made.rest().park, 1_000)
            await wait_until(lambda: clock.sleepers == 1, "it waits")
            tasks.start_soon(made.rest().park, 1_000)
            for _ in range(5):
                await asyncio.sleep(0)
            clock.advance(wait_ms - 1)
            for _ in range(5):
                await asyncio.sleep(0)
            assert broken.tries == tries
            clock.advance(1)
            await wait_until(lambda tries=tries: broken.tries == tries + 1, "it tries again")  # type: ignore[misc]  # a default
        tasks.cancel_scope.cancel()
    assert lines.events == ["degraded"]


async def test_a_script_that_keeps_failing_ends_the_run(url: str, raw: Redis) -> None:
    """The pool's sweep is as any: ten errors of a script in a row."""
    made = Metronome(
        None,  # type: ignore[arg-type]  # nobody gets as far as parking
        Keys(QUEUE),
        clock=FastClock(),
        beat_ms=100,
        recovery=Broken(ServerError("WRONGTYPE x")),  # type: ignore[arg-type]  # all that is asked of it
        degraded=degraded(),
    )
    with pytest.raises(ServerError, match="WRONGTYPE"):
        await asyncio.wait_for(made.run(), 20)


@pytest.mark.parametrize("consumers", [1, 4])
async def test_handlers_see_no_difference(url: str, raw: Redis, consumers: int) -> None:
    """Standalone and pooled: the same jobs, each once."""
    gate = Gate()
    gate.gate.set()
    ids = await pending(raw, range(50))
    async with (
        stand(url, gate.handler, consumers=consumers, concurrency=8) as made,
        anyio.create_task_group() as loops,
    ):
        made.station.start(loops)
        await wait_until(lambda: made.counts.get("done") == 50, "all are done")
        made.station.stop()
    assert sorted(gate.began) == ids
