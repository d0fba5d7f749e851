"""Prefetch: jobs that are claimed beyond the free slots, kept while they wait, and given back by who stops.

Source: issue "Faster than every peer" (never more claimed than free slots; a `prefetch` setting may relax it).
"""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from echomq_worker.errors import InvalidArgument
from echomq_worker.handover import HandOver
from echomq_worker.options import Limits, Options
from tests.support.clock import ManualClock
from tests.support.plain import Queue, row
from tests.support.stations import LEASE_MS, Gate, Stand, pending, stand
from tests.support.waiting import wait_until

LONG = Limits(lease_ms=60_000)


def _in_hand(made: Stand) -> list[tuple[int, int]]:
    return [(len(one.slots.running), one.slots.free) for one in made.station.consumers]


async def test_never_more_than_slots_and_prefetch(url: str, raw: Redis) -> None:
    """Two run, three wait; as one ends the oldest that waits begins, and one more may be claimed."""
    gate, active = Gate(), "emq:{q}:active"
    ids = await pending(raw, range(20))
    async with stand(url, gate.handler, concurrency=2, prefetch=3, limits=LONG) as made:
        for _ in range(3):
            await made.consumer.beat()
        await wait_until(lambda: gate.began == ids[:2], "two run")
        assert await raw.zcard(active) == 5
        assert _in_hand(made) == [(2, 0)]
        assert (await made.consumer.beat()).claimed is None, "there is room for none"
        gate.gate.set()
        await wait_until(lambda: made.counts.get("done") == 5, "all five end")
        assert gate.began == ids[:5]
        gate.gate.clear()
        await made.consumer.beat()
        await wait_until(lambda: gate.began == ids[:7], "two more run")
        assert await raw.zcard(active) == 5


async def test_a_pool_shares_it(url: str, raw: Redis) -> None:
    """As the concurrency, it is the queue's in this process, however many consumers claim."""
    gate = Gate()
    await pending(raw, range(20))
    async with stand(url, gate.handler, concurrency=3, prefetch=4, consumers=2, limits=LONG) as made:
        for consumer in made.station.consumers * 2:
            await consumer.beat()
        await wait_until(lambda: len(gate.began) == 3, "three run")
        assert await raw.zcard("emq:{q}:active") == 7
        assert _in_hand(made) == [(2, 0), (1, 0)]


async def test_what_waits_is_kept(url: str, raw: Redis) -> None:
    """The lease of a job that waits is extended as that of one that runs."""
    gate, clock = Gate(), ManualClock()
    ids = await pending(raw, range(4))
    async with stand(url, gate.handler, clock=clock, concurrency=1, prefetch=3) as made:
        await made.consumer.beat()
        await wait_until(lambda: gate.began == ids[:1], "one runs")
        clock.advance(LEASE_MS // 2)
        assert await made.shared.leases.beat(made.connector) == 4
        assert (await Queue(raw).state())["active"].keys() == set(ids)
        assert made.shared.leases.held == 4


async def test_what_waited_beyond_its_lease_begins_when_it_is_kept_again(url: str, raw: Redis) -> None:
    """The process stood still for a lease: what waits may be another's by now. It begins when the keeper has it back,
    and what the keeper has lost does not begin.
    """
    gate, clock = Gate(), ManualClock()
    ids = await pending(raw, range(3))
    async with stand(url, gate.handler, clock=clock, concurrency=1, prefetch=2) as made:
        await made.consumer.beat()
        await wait_until(lambda: gate.began == ids[:1], "one runs")
        clock.advance(LEASE_MS)
        await raw.hset(f"emq:{{q}}:job:{ids[1]}", mapping={"attempts": 2, "held": "2:other"})
        gate.gate.set()
        await wait_until(lambda: made.counts.get("done") == 1, "it ends, and its slot is free")
        await made.connector.call("PING")
        assert gate.began == ids[:1]
        await made.shared.leases.beat(made.connector)
        await wait_until(lambda: made.counts.get("done") == 2, "what is kept runs")
        assert gate.began == [ids[0], ids[2]]
        assert made.shared.leases.held == 0


async def test_who_stops_gives_back_what_waits(url: str, raw: Redis) -> None:
    """At once and as it was: pending, no failure, no crash. What runs ends in its grace, and none that waited begins in
    the slot that it leaves.
    """
    gate = Gate()
    ids = await pending(raw, range(5))
    async with stand(url, gate.handler, concurrency=1, prefetch=4, limits=LONG) as made:
        await made.consumer.beat()
        await wait_until(lambda: gate.began == ids[:1], "one runs")
        made.station.stop()
        gate.gate.set()
        await wait_until(lambda: made.counts.get("done") == 1, "it ends before the hand-over begins")
        async with asyncio.timeout(30):
            await HandOver(made.connector, [made.station], clock=made.clock).run(60_000)
        assert made.shared.leases.held == 0
    assert gate.began == ids[:1]
    assert made.counts == {"done": 1, "released": 4}
    state = await Queue(raw).state()
    assert state["pending"] == dict.fromkeys(ids[1:], 0)
    assert [state[f"job:{id}"] for id in ids[1:]] == [row("pending", 1)] * 4
    assert "active" not in state


def test_it_is_an_int_and_not_for_batches() -> None:
    """What it takes; the handler's own wins over the worker's, and behind a batch nothing waits."""
    for wrong in (-1, True, 1.5, "2"):
        with pytest.raises(InvalidArgument, match="handler of q: prefetch: expected an integer from 0 to 10000"):
            Options(queue="q", prefetch=wrong)  # type: ignore[arg-type]  # what a user may write
    worker = Limits(prefetch=7)
    assert Options(queue="q").over(worker).prefetch == 7
    assert Options(queue="q", prefetch=0).over(worker).prefetch == 0
    assert Options(queue="q", min_size=2).over(worker).prefetch == 0
