"""A claim that leaves when a token comes, before its loop has woken: it is one like any other, whatever comes then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.errors import Unreachable
from echomq_worker.options import Limits
from tests.support.clock import ManualClock
from tests.support.proxy import Proxy
from tests.support.stations import FastClock, Gate, Stand, counting, parked, pending, stand
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until

LONG: dict[str, Any] = {"beat_ms": 60_000, "limits": Limits(lease_ms=120_000)}


class Hand:
    """Where a consumer parks until a hand lets it go: as a BLPOP does it, `told` is called first."""

    def __init__(self) -> None:
        self.parks = 0
        self.told: Callable[[], object] | None = None
        self._left: asyncio.Future[None] | None = None

    async def park(self, _timeout_ms: float, told: Callable[[], object] | None = None, /) -> None:
        """Until `leave`."""
        self.parks, self.told = self.parks + 1, told
        self._left = asyncio.get_running_loop().create_future()
        await self._left

    def leave(self) -> None:
        """End the park."""
        if self._left is not None and not self._left.done():
            self._left.set_result(None)

    def more(self) -> None:
        """Nobody else is here."""

    def token(self) -> None:
        """A token comes."""
        assert self.told is not None
        self.told()
        self.leave()


@asynccontextmanager
async def at_rest(url: str, handler: Any, **options: Any) -> AsyncIterator[tuple[Stand, Hand, asyncio.Task[None]]]:
    """A consumer that runs, in a task, and has parked once."""
    async with stand(url, handler, **{**LONG, **options}) as made:
        hand = Hand()
        made.consumer._rest = hand
        task = asyncio.create_task(made.consumer.run(), name="consumer")
        await wait_until(lambda: hand.parks == 1, "it parks")
        try:
            yield made, hand, task
        finally:
            made.consumer.stop()
            await asyncio.wait([task])


async def test_a_token_is_answered_with_a_claim_before_the_loop_has_woken(
    url: str, raw: Redis, server: ValkeyServer
) -> None:
    """It has left when the token has been told of; there is no second one for the same token."""
    gate = Gate()
    async with at_rest(url, gate.handler) as (made, hand, _):
        ids = await pending(raw, range(1))
        with counting(server.admin) as calls:
            hand.token()
            assert made.consumer.claims.unread
            assert made.connector.pending == 1
            await wait_until(lambda: gate.began == ids and hand.parks == 2, "it runs, and the consumer parks again")
            assert not made.consumer.claims.unread
            assert calls() == 1


async def test_where_nothing_may_be_claimed_or_a_sweep_is_due_nothing_leaves(url: str, raw: Redis) -> None:
    """A full consumer, one that is held, and one whose beat is over: recovery comes before the claim."""
    gate, clock = Gate(), ManualClock()
    async with at_rest(url, gate.handler, concurrency=1, clock=clock) as (made, hand, _):
        clock.advance(60_000)
        hand.token()
        assert not made.consumer.claims.unread
        await wait_until(lambda: hand.parks == 2, "the pass has swept and claimed, and it parks again")
        await pending(raw, range(1))
        hand.token()
        await wait_until(lambda: gate.began, "its slot is taken")
        assert hand.told is not None
        hand.told()
        assert not made.consumer.claims.unread
        gate.gate.set()
        await wait_until(lambda: made.consumer.slots.free == 1, "it is free again")
        made.consumer.hold()
        hand.told()
        assert not made.consumer.claims.unread


@pytest.mark.parametrize("ends", ["stop", "cancel", "hold"])
async def test_what_it_brings_is_in_hand_when_the_consumer_ends(url: str, raw: Redis, ends: str) -> None:
    """A stop or a cancellation in the very turn in which the token came: the answer is waited for all the same."""
    gate = Gate()
    async with at_rest(url, gate.handler) as (made, hand, task):
        ids = await pending(raw, range(3))
        hand.token()
        if ends == "cancel":
            task.cancel()
        else:
            (made.consumer.stop if ends == "stop" else made.consumer.hold)()
        await asyncio.wait([task])
        assert task.cancelled() is (ends == "cancel")
        assert not made.consumer.claims.unread
        assert made.shared.leases.held == 3
        if ends == "cancel":
            await wait_until(lambda: gate.began == ids, "they run")
        else:
            assert [one.id for one in made.consumer.unstarted] == ids


@pytest.mark.parametrize("consumers", [1, 2])
async def test_a_token_for_one_that_is_held_goes_back(url: str, raw: Redis, consumers: int) -> None:
    """A stop is near, nothing is claimed any more: another process has the token, and need not wait for its beat. In a
    pool too.
    """
    async with stand(url, consumers=consumers, **LONG) as made:
        ready = made.station.keys.ready
        made.station.start(made.shared.tasks)
        await parked(raw)
        made.station.hold()
        await raw.lpush(ready, "1")
        await wait_until(lambda: raw.llen(ready), "the token is there again")
        assert not any(one.claims.unread for one in made.station.consumers)


async def test_a_lost_answer_is_found_by_its_receipt(url: str, raw: Redis, server: ValkeyServer) -> None:
    """As that of any claim: each job runs, once."""
    gate = Gate()
    async with Proxy(server.port) as proxy, at_rest(proxy.url, gate.handler, clock=FastClock()) as (made, hand, _):
        ids = await pending(raw, range(3))
        lost = proxy.swallow_reply(b"claimed:")
        hand.token()
        await wait_until(lambda: gate.began == ids, "the next claim has them")
        assert lost.done
        assert made.lines.events[:2] == ["degraded", "recovered"]
    assert await raw.hget(f"emq:{{q}}:job:{ids[0]}", "attempts") == b"1"


async def test_one_that_could_not_leave_is_not_owed_an_answer(url: str, raw: Redis, server: ValkeyServer) -> None:
    """The connection for commands is gone and none can be made: the pass fails as any does, and the next one claims."""
    async with Proxy(server.port) as proxy, stand(proxy.url, **LONG) as made:
        assert (await made.consumer.beat()).asked
        ids = await pending(raw, range(1))
        await proxy.refuse()
        proxy.reset()
        await wait_until(lambda: not made.connector.connected, "the connection is gone")
        made.consumer._claim_ahead()
        assert made.consumer.claims.unread
        with pytest.raises(Unreachable):
            await made.consumer.beat()
        assert not made.consumer.claims.unread
        await proxy.accept()
        beat = await made.consumer.beat()
        assert beat.claimed is not None
        assert [one.id for one in beat.claimed.jobs] == ids
