"""Leases: a job whose end somebody asked for is told so at each extension, apart from losses, and kept all the same."""

from __future__ import annotations

from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.job import Job
from echomq_worker.keyspace import Keys
from echomq_worker.leases import Leases
from tests.loops.test_leases import LEASE_MS, ignore, in_hand
from tests.support.clock import ManualClock
from tests.support.plain import QUEUE, job
from tests.support.stations import job_of

KEYS = Keys(QUEUE)


async def test_what_is_asked_to_end_is_told_and_kept(url: str, raw: Redis) -> None:
    """With the reason as it was given, at each extension until it is let go; what is lost is told as lost."""
    clock, told = ManualClock(), list[tuple[str, str, str]]()
    leases = Leases(clock=clock)
    async with connect(url) as connector:
        jobs = await in_hand(raw, range(4))
        leases.hold(
            KEYS,
            jobs,
            lease_ms=LEASE_MS,
            claimed_ms=clock.monotonic_ms(),
            on_lost=lambda one, reason: told.append(("lost", one.id, reason)),
            on_asked=lambda one, why: told.append(("asked", one.id, why)),
        )
        await raw.hset(KEYS.job(job(1)), "cancel", "gone: cancel:zoë")
        await raw.hset(KEYS.job(job(3)), "cancel", "")
        await raw.delete(KEYS.job(job(2)))
        for _ in range(2):
            clock.advance(LEASE_MS)
            assert await leases.beat(connector) == 4
        leases.let_go(jobs[1])
        clock.advance(LEASE_MS)
        await leases.beat(connector)
    each = [("asked", job(1), "gone: cancel:zoë"), ("lost", job(2), "gone"), ("asked", job(3), "")]
    assert told == [*each, *each, *each[1:]]


async def test_who_listens_asks_by_id() -> None:
    """Every claim of that id in that queue is told; another queue's is not, nor one that was let go."""
    clock, told = ManualClock(), list[tuple[Job, str]]()
    leases = Leases(clock=clock)

    def hold(queue: str, jobs: list[Job]) -> None:
        leases.hold(
            Keys(queue),
            jobs,
            lease_ms=LEASE_MS,
            claimed_ms=clock.monotonic_ms(),
            on_lost=ignore,
            on_asked=lambda one, why: told.append((one, why)),
        )

    first, again, other = job_of(), job_of(attempts=2), job_of(queue="other")
    hold(QUEUE, [first])
    hold(QUEUE, [again])
    hold("other", [other])
    assert leases.ask(QUEUE, first.id, "why") == 2
    assert told == [(first, "why"), (again, "why")]
    leases.let_go(first)
    assert leases.ask(QUEUE, first.id, "why") == 1
    assert leases.ask(QUEUE, job(9), "why") == 0
