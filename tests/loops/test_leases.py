"""Leases: what is in hand is kept, whatever the event loop does; what is lost is told, once, where it belongs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from echomq_worker.clock import Clock, SystemClock
from echomq_worker.connector import Connector, connect
from echomq_worker.errors import ServerError, Unreachable
from echomq_worker.job import Job
from echomq_worker.keyspace import Keys
from echomq_worker.leases import CHUNK, Leases
from tests.support.clock import ManualClock
from tests.support.plain import QUEUE, Queue, job, row
from tests.support.stations import counting, job_of
from tests.support.valkey import ValkeyServer

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


async def test_a_lease_is_extended_when_a_third_of_it_is_over(url: str, raw: Redis) -> None:
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
            assert 4_000 < await left_ms(raw, job(n)) <= 9_000
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
