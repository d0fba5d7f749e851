"""A thousand cancellations of every kind of command, at random moments: replies stay with those who asked, no token is
lost, every job is in one place and ends once.

Source: issue "The five promises" (1,000 random cancellations, then parity of replies on the same connections).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import anyio
import pytest
from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.errors import EchoMQError
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.lanes import Lanes
from echomq_worker.repeat import Repeat
from echomq_worker.script import evaluate
from tests.support.plain import GROUP, job
from tests.support.stations import Stand, stand
from tests.support.waiting import passes, wait_until

CANCELLATIONS = 1_000
ID = job(1)
TOKENS = "emq:{tokens}:wake"
Command = Callable[[], Awaitable[object]]


class Storm:
    """One process's connections and loops, and every kind of command that goes over them."""

    def __init__(self, made: Stand, seed: int) -> None:
        self.made = made
        self.draw = random.Random(seed)
        self.ended: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()
        self.parking = made.connector.parking()
        self.enqueued = self.pushed = self.taken = 0
        jobs, lanes, station = Jobs(made.connector), Lanes(made.connector), made.station
        assert station.pump is not None
        self.kinds: dict[str, Command] = {
            "call": self._call,
            "pipeline": self._pipeline,
            "evaluate": lambda: evaluate(made.connector, "where", [f"emq:{{q}}:job:{ID}"], ["emq:{q}:", ID, ""]),
            "blpop": self._blpop,
            "enqueue": lambda: jobs.enqueue("q", b"x"),
            "enqueue_many": lambda: jobs.enqueue_many("q", [b"x"] * 3),
            "enqueue in a lane": lambda: lanes.enqueue("q", GROUP, b"x"),
            "enqueue_in": lambda: jobs.enqueue_in("q", b"x", 1),
            "repeat": lambda: Repeat(made.connector).register("q", "often", 3_600_000, b"x"),
            "counts": lambda: jobs.counts("q"),
            "claim": self._claim,
            "settle": station.settle.beat,
            "sweep": station.pump.beat,
            "keep": lambda: made.shared.leases.beat(made.connector),
            "receipt": self._receipt,
        }

    async def _call(self) -> object:
        number = self.draw.randrange(10**9)
        assert await self.made.connector.call("ECHO", number) == str(number).encode()
        return None

    async def _pipeline(self) -> object:
        numbers = [self.draw.randrange(10**9) for _ in range(3)]
        replies = await self.made.connector.pipeline([("ECHO", number) for number in numbers])
        assert replies == [str(number).encode() for number in numbers]
        return None

    async def _blpop(self) -> object:
        if await self.parking.blpop([TOKENS], 50, stands_ms=50) is not None:
            self.taken += 1
        return None

    async def _receipt(self) -> object:
        # Asked for at a shutdown, where its jobs are given back; here they run.
        self.made.consumer.slots.start(await self.made.consumer.read_receipt())
        return None

    async def _claim(self) -> object:
        return await self.made.consumer.beat()

    async def one(self, kind: str) -> None:
        """Start one command and cancel it, some turns of the loop or some moments later."""
        # A list of tokens is cut at 64 by whoever gives one back.
        if self.draw.random() < 0.3 and self.pushed - self.taken < 60:
            self.pushed += 1
            await self.made.connector.call("RPUSH", TOKENS, "1")
        scope = anyio.CancelScope()
        task = asyncio.ensure_future(self._run(kind, scope))
        for _ in range(self.draw.randrange(5)):
            await asyncio.sleep(0)
        if self.draw.random() < 0.3:
            await passes(self.draw.random() / 2, "it is cancelled at any moment")
        # As a task group cancels, whose shields hold, or as anybody may cancel a task, whom no shield stops.
        scope.cancel() if self.draw.random() < 0.5 else task.cancel()
        try:
            ended = await task
        except asyncio.CancelledError:
            ended = False
        (self.ended if ended else self.cancelled)[kind] += 1

    async def _run(self, kind: str, scope: anyio.CancelScope) -> bool:
        with scope:
            await self.kinds[kind]()
        return not scope.cancelled_caught

    async def parity(self) -> None:
        """Every connection answers those who ask, each with its own reply."""
        numbers = [self.draw.randrange(10**9) for _ in range(50)]
        replies = await asyncio.gather(*(self.made.connector.call("ECHO", number) for number in numbers))
        assert replies == [str(number).encode() for number in numbers]


async def _drain_tokens(storm: Storm, raw: Redis) -> None:
    """Take what is left, and what a BLPOP that stands may have got."""
    while await raw.llen(TOKENS):
        await storm._blpop()
    await storm._blpop()


@pytest.mark.leaves_keys("a list of tokens of its own")
@pytest.mark.parametrize("seed", [4])
async def test_a_thousand_cancellations_lose_nothing(url: str, raw: Redis, seed: int) -> None:
    """On one connection for commands and one that parks, made once: parity in between and afterwards; as many tokens as
    were pushed; every job that the server has accepted runs, and its completion counts once.
    """
    runs: Counter[str] = Counter()

    async def handler(job: Job) -> None:
        runs[job.id] += 1
        await asyncio.sleep(0)

    async with stand(url, handler, settles=False, pump=True, concurrency=20, retry=1, lease_ms=60_000) as made:
        storm = Storm(made, seed)
        kinds = list(storm.kinds)
        while storm.cancelled.total() < CANCELLATIONS:
            await storm.one(storm.draw.choice(kinds))
            if storm.cancelled.total() % 100 == 0:
                await storm.parity()
        parked = await raw.client_list(_type="normal")
        await _drain_tokens(storm, raw)
        await storm.parity()
        assert made.connector.generation == 1
        assert made.connector.pending == 0
        names = [row["name"] for row in parked if row["name"].startswith("echomq")]
        assert sorted(names) == ["echomq", "echomq:parking"]
        assert storm.taken == storm.pushed
        await _finish(made, raw)

        rows = [key async for key in raw.scan_iter("emq:{q}:job:*", count=1_000)]
    completed = int(await raw.hget("emq:{q}:metrics:completed", "count") or 0)
    assert rows == [], "every job has ended, and none is anywhere"
    assert set(runs.values()) == {1}
    assert completed == len(runs) > 100
    assert made.counts["done"] + made.counts.get("gone", 0) == completed
    assert set(storm.cancelled) == set(kinds), "every kind was cancelled"


async def _finish(made: Stand, raw: Redis) -> None:
    """Work off what is there, without any cancellation."""
    await Repeat(made.connector).cancel("q", "often")
    assert made.station.pump is not None

    async def empty() -> bool:
        try:
            await made.station.pump.beat()  # type: ignore[union-attr]  # asked for above
            await made.consumer.beat()
            await made.station.settle.beat()
        except EchoMQError as error:
            raise AssertionError(str(error)) from error
        names = ("pending", "active", "ring", "schedule")
        return not any([await raw.exists(f"emq:{{q}}:{name}") for name in names])

    await wait_until(empty, "everything is worked off")


async def test_a_producers_cancelled_call_is_done_or_not_but_whole(url: str, raw: Redis) -> None:
    """Whatever became of a cancelled enqueue, its job has a row and a place, or neither."""
    draw = random.Random(9)
    async with connect(url) as connector:
        for _ in range(300):
            task = asyncio.ensure_future(Jobs(connector).enqueue("q", b"x"))
            for _ in range(draw.randrange(3)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
        await connector.call("PING")
    rows = {key.rpartition(b":")[2] async for key in raw.scan_iter("emq:{q}:job:*", count=1_000)}
    assert rows == set(await raw.zrange("emq:{q}:pending", 0, -1))
