"""Consumer: how it stops, what it does in trouble, and what becomes of jobs whose lease is lost."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from redis.asyncio import Redis

from echomq_worker.degraded import SCRIPT_ERRORS
from echomq_worker.errors import CommandTimeout, ServerError
from echomq_worker.job import LEASE_LOST
from echomq_worker.options import Limits
from echomq_worker.recovery import Swept
from echomq_worker.script import evaluate
from tests.support.clock import ManualClock
from tests.support.plain import GROUP, Queue, job, row
from tests.support.proxy import Proxy
from tests.support.stations import LEASE_MS, FastClock, Gate, Stand, parked, pending, stand
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until


async def stops(made: Stand) -> None:
    """Stop, twice; `run` returns at once."""
    task = next(task for task in asyncio.all_tasks() if task.get_name() == "consumer")
    made.consumer.stop()
    made.consumer.stop()
    await asyncio.wait_for(asyncio.wait([task]), 20)
    assert task.done()


@pytest.mark.parametrize("while_it_is", ["parked", "full", "degraded"])
async def test_a_stop_ends_the_run_at_once(url: str, raw: Redis, server: ValkeyServer, while_it_is: str) -> None:
    """Whatever it waits for, and however long it would."""
    gate = Gate()
    if while_it_is == "full":
        await pending(raw, range(2))
    async with (
        Proxy(server.port) as proxy,
        stand(proxy.url, gate.handler, concurrency=1, beat_ms=60_000, limits=Limits(lease_ms=120_000)) as made,
    ):
        made.shared.tasks.start_soon(made.consumer.run, name="consumer")
        match while_it_is:
            case "parked":
                await parked(raw)
            case "full":
                await wait_until(lambda: gate.began, "its slot is taken")
            case _:
                await parked(raw)
                await proxy.refuse()
                proxy.reset()
                await wait_until(lambda: "degraded" in made.lines.events, "it is degraded")
        await stops(made)
        assert made.consumer.slots.free == (0 if while_it_is == "full" else 1)


async def test_what_a_claim_brings_after_a_stop_is_not_started(url: str, raw: Redis, server: ValkeyServer) -> None:
    """The claim in flight is answered first; its jobs are kept for the hand-over."""
    gate = Gate()
    ids = await pending(raw, range(3))
    async with (
        Proxy(server.port) as proxy,
        stand(proxy.url, gate.handler, beat_ms=60_000, limits=Limits(lease_ms=120_000)) as made,
    ):
        proxy.delay(100)
        made.shared.tasks.start_soon(made.consumer.run, name="consumer")
        await wait_until(lambda: proxy.count(b"claimed:"), "the claim is on its way")
        await stops(made)
        assert [one.id for one in made.consumer.unstarted] == ids
        assert made.shared.leases.held == 3
        assert (await made.consumer.beat()).claimed is None
    assert gate.began == []


async def test_a_cancellation_waits_for_the_claim_in_flight(url: str, raw: Redis, server: ValkeyServer) -> None:
    """What was claimed is in hand, not lost with the task that asked for it."""
    import anyio

    gate = Gate()
    await pending(raw, range(3))
    async with Proxy(server.port) as proxy, stand(proxy.url, gate.handler) as made:
        proxy.delay(50)
        async with anyio.create_task_group() as loops:
            loops.start_soon(made.consumer.run)
            await wait_until(lambda: proxy.count(b"claimed:"), "the claim is on its way")
            loops.cancel_scope.cancel()
        await wait_until(lambda: len(gate.began) == 3, "they run")
        assert not made.consumer.claims.unread


async def test_a_receipt_can_be_read_at_the_end(url: str, raw: Redis) -> None:
    """The jobs of a claim that was never read, nothing new; without one nothing is sent."""
    ids = await pending(raw, range(3))
    async with stand(url, settles=False) as made:
        assert await made.consumer.read_receipt() == []
        name, keys, values = made.consumer.claims.call(2)
        await evaluate(made.connector, name, keys, values)
        assert [one.id for one in await made.consumer.read_receipt()] == ids[:2]
        assert await made.consumer.read_receipt() == []
    assert await raw.zcard("emq:{q}:pending") == 1


# ------------------------------------------------------------------------------------------------ trouble


@pytest.mark.parametrize("broken", ["pending", "schedule"])
async def test_an_error_of_a_script_is_raised_and_nothing_is_forgotten(url: str, raw: Redis, broken: str) -> None:
    """The claim's, or the sweep's: what was claimed before it is in hand."""
    gate = Gate()
    await Queue(raw).put(
        {f"g:{GROUP}:pending": {job(0): 0}, f"job:{job(0)}": row(group=GROUP), "ring": [GROUP], broken: "text"}
    )
    async with stand(url, gate.handler, name="test", clock=ManualClock()) as made:
        with pytest.raises(ServerError, match="WRONGTYPE"):
            await made.consumer.beat()
        # A sweep that failed is due again. One that finds nothing due does not look at pending.
        await raw.delete(f"emq:{{q}}:{broken}")
        assert ((await made.consumer.beat()).swept is not None) is (broken == "schedule")
        await wait_until(lambda: gate.began == [job(0)], "the job runs")


async def test_a_script_that_keeps_failing_ends_the_run(url: str, raw: Redis) -> None:
    """Ten times in a row; once is a degraded beat."""
    await raw.set("emq:{q}:schedule", "not a sorted set")

    async def run() -> None:
        async with stand(url, clock=FastClock()) as made:
            made.shared.tasks.start_soon(made.consumer.run)
            await anyio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(run(), 20)
    assert caught.group_contains(ServerError, match="WRONGTYPE")
    await raw.delete("emq:{q}:schedule")


async def test_a_rest_that_keeps_failing_is_one_outage_and_ends_the_run(
    url: str, raw: Redis, server: ValkeyServer
) -> None:
    """BLPOP forbidden, say: beats that work in between do not make an outage of each, and hide nothing."""
    stands: list[Stand] = []

    async def run() -> None:
        async with Proxy(server.port) as proxy, stand(proxy.url, clock=FastClock()) as made:
            stands.append(made)
            for _ in range(SCRIPT_ERRORS):
                proxy.answer("NOPERM this user has no permissions to run the 'blpop' command", b"BLPOP")
            made.shared.tasks.start_soon(made.consumer.run)
            await anyio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(run(), 20)
    assert caught.group_contains(ServerError, match="NOPERM")
    assert stands[0].lines.events == ["degraded"]


async def test_one_failed_rest_is_a_degraded_beat(url: str, raw: Redis, server: ValkeyServer) -> None:
    """The server says UNBLOCKED, LOADING and the like: the loop goes on."""
    gate = Gate()
    async with Proxy(server.port) as proxy, stand(proxy.url, gate.handler) as made:
        for text in ("UNBLOCKED force unblock from blocking operation", "LOADING x", "READONLY x", "MASTERDOWN x"):
            proxy.answer(text, b"BLPOP")
        made.shared.tasks.start_soon(made.consumer.run)
        await wait_until(lambda: "recovered" in made.lines.events, "it is back")
        await pending(raw, range(1))
        await wait_until(lambda: gate.began, "it runs")
    assert made.lines.events[:2] == ["degraded", "recovered"]


# ------------------------------------------------------------------------------------------------ lost leases


async def test_a_lost_lease_cancels_the_handler_and_its_verdict_is_not_written(url: str, raw: Redis) -> None:
    """Told twice it is lost once; the slot is free, the place of a suspect given back."""
    gate = Gate()
    (id,) = await pending(raw, range(1), attempts=1, held="1:x", crashes="1:1")
    async with stand(url, gate.handler) as made:
        beat = await made.consumer.beat()
        assert beat.claimed is not None
        (one,) = beat.claimed.jobs
        await wait_until(lambda: gate.began, "it runs")
        for _ in range(2):
            one.lease and one.lease.on_lost(one, "stale")
            made.consumer._lost(one, "stale")
        await wait_until(lambda: gate.cancelled == [id], "it is cancelled")
        await wait_until(lambda: made.station.idle, "its slot is free")
        assert one.cancel_reason == LEASE_LOST
        assert made.shared.leases.held == 0
        assert made.shared.suspects.reserve("anybody")
    assert made.counts == {"lost": 1}
    assert (made.lines.of("lease lost")[0]["id"], made.lines.of("lease lost")[0]["reason"]) == (id, "stale")
    assert await raw.hget(f"emq:{{q}}:job:{id}", "state") == b"active", "nothing was written"


async def test_a_lost_lease_of_a_job_that_waits_for_a_runner_takes_it_back(url: str, raw: Redis) -> None:
    """Its handler is never called."""
    gate = Gate()
    await pending(raw, range(1))
    async with stand(url, gate.handler) as made:
        beat = await made.consumer.beat()
        assert beat.claimed is not None
        made.consumer._lost(beat.claimed.jobs[0], "not_active")
        assert made.consumer.slots.free == made.consumer.slots.size
        await asyncio.sleep(0)
    assert gate.began == []
    assert made.counts == {"lost": 1}


async def test_a_job_that_has_ended_is_not_lost(url: str, raw: Redis) -> None:
    """Its verdict waits, or is answered: the keeper asked about an id that was settled meanwhile."""
    gate = Gate()
    gate.gate.set()
    await pending(raw, range(1))
    async with stand(url, gate.handler, settles=False) as made:
        beat = await made.consumer.beat()
        assert beat.claimed is not None
        (one,) = beat.claimed.jobs
        await wait_until(lambda: made.station.settle.open, "it has ended")
        made.consumer._lost(one, "gone")
        await made.station.settle.beat()
        made.consumer._lost(one, "gone")
    assert made.counts == {"done": 1}


async def test_after_an_outage_longer_than_the_lease_its_own_jobs_are_not_taken_from_it(url: str, raw: Redis) -> None:
    """Its own recovery would be the first to look: what is in hand is extended before, so it goes on, once."""
    gate, clock = Gate(), ManualClock()
    (id,) = await pending(raw, range(1))
    async with stand(url, gate.handler, clock=clock) as made:
        await made.consumer.beat()
        await wait_until(lambda: gate.began, "it runs")
        # Nobody has kept it, and its lease is over.
        await raw.zadd("emq:{q}:active", {id: 1})
        clock.advance(LEASE_MS)
        beat = await made.consumer.beat()
        assert (beat.swept, beat.claimed and beat.claimed.jobs) == (Swept(), [])
        gate.gate.set()
        await wait_until(lambda: made.counts.get("done") == 1, "it is done")
    assert gate.began == [id]


async def test_what_somebody_else_has_recovered_meanwhile_is_lost(url: str, raw: Redis) -> None:
    """It is told before it is claimed again by the very same consumer."""
    gate, clock = Gate(), ManualClock()
    (id,) = await pending(raw, range(1))
    async with stand(url, gate.handler, clock=clock) as made:
        await made.consumer.beat()
        await wait_until(lambda: gate.began, "it runs")
        await raw.zrem("emq:{q}:active", id)
        await raw.hset(f"emq:{{q}}:job:{id}", "state", "pending")
        await raw.zadd("emq:{q}:pending", {id: 0})
        clock.advance(LEASE_MS)
        beat = await made.consumer.beat()
        assert beat.claimed is not None
        assert [one.attempts for one in beat.claimed.jobs] == [2]
        await wait_until(lambda: gate.cancelled == [id], "the first run is cancelled")
        await wait_until(lambda: gate.began == [id, id], "the second runs")
        gate.gate.set()
        await wait_until(lambda: made.counts.get("done") == 1, "it is done")
    assert made.counts == {"lost": 1, "done": 1}


async def test_a_claim_that_is_answered_a_lease_late_is_not_started(url: str, raw: Redis, server: ValkeyServer) -> None:
    """A process that was frozen in between starts nothing that others may have had; what it still has, it runs."""
    gate, clock, lease_ms = Gate(), ManualClock(), 60_000
    taken, kept = await pending(raw, range(2))
    async with (
        Proxy(server.port) as proxy,
        stand(proxy.url, gate.handler, clock=clock, limits=Limits(lease_ms=lease_ms)) as made,
    ):
        proxy.delay(100)
        beat = asyncio.create_task(made.consumer.beat())
        await wait_until(lambda: proxy.count(b"claimed:"), "the claim is on its way")
        clock.advance(lease_ms)
        with pytest.raises(CommandTimeout, match="a lease after it was sent"):
            await beat
        assert gate.began == []
        proxy.delay(0)
        # Somebody else has recovered one of them, and completed it.
        await raw.zrem("emq:{q}:active", taken)
        await raw.delete(f"emq:{{q}}:job:{taken}")
        again = await made.consumer.beat()
        assert again.claimed is not None
        assert (again.claimed.why, [one.id for one in again.claimed.jobs]) == ("replayed", [kept])
        gate.gate.set()
        await wait_until(lambda: made.counts.get("done") == 1, "it is done")
    assert gate.began == [kept]


async def test_an_empty_claim_that_is_answered_a_lease_late_is_no_fault(url: str, server: ValkeyServer) -> None:
    """A handler blocked the loop while the claim for the other slots was on its way: it brought nothing that somebody
    else could have had, so there is nothing to fear and nothing to report.
    """
    gate, clock, lease_ms = Gate(), ManualClock(), 60_000
    async with (
        Proxy(server.port) as proxy,
        stand(proxy.url, gate.handler, clock=clock, limits=Limits(lease_ms=lease_ms)) as made,
    ):
        proxy.delay(100)
        beating = asyncio.create_task(made.consumer.beat())
        await wait_until(lambda: proxy.count(b"claimed:"), "the claim is on its way")
        clock.advance(lease_ms)
        beat = await beating
        assert beat.claimed is not None
        assert (beat.claimed.why, beat.claimed.jobs) == ("ok", [])
