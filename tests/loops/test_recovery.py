"""Recovery: reap and promote, each pass bounded, repeated until it comes back short within a time budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.clock import SystemClock
from echomq_worker.connector import Connector, connect
from echomq_worker.errors import ServerError
from echomq_worker.keyspace import Keys
from echomq_worker.recovery import RECOUNT_BEATS, Recovery, Swept
from tests.support.clock import ManualClock
from tests.support.keyspace import keyspace_of
from tests.support.plain import GROUP, QUEUE, Queue, job, row
from tests.support.stations import Gate, counting, expired, stand
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until


class Answers:
    """A wire that has an answer ready for each pass."""

    def __init__(self, replies: list[list[Any]]) -> None:
        self.replies = replies

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The next one."""
        return self.replies.pop(0)

    async def call(self, *args: Any) -> Any:
        """One pipeline per pass, and nothing else."""
        raise AssertionError(args)


async def nothing() -> None:
    """No lease of ours is late."""


def recovery(connector: Connector, *, budget_ms: float = 5_000, clock: Any = None, **options: Any) -> Recovery:
    """Of the queue of the tests, with batches of 100."""
    return Recovery(
        connector,
        Keys(QUEUE),
        clock=clock or SystemClock(),
        promote_batch=100,
        budget_ms=budget_ms,
        before=nothing,
        **options,
    )


async def expired_and_due(raw: Redis, expired: int, due: int) -> None:
    """Jobs whose lease ran out in 1970, and as many others that were due then."""
    pipeline: Any = raw.pipeline(transaction=False)
    for number in range(expired):
        pipeline.hset(f"emq:{{q}}:job:{job(number)}", mapping=row("active", 1, held="1:x"))
        pipeline.zadd("emq:{q}:active", {job(number): 1})
    for number in range(expired, expired + due):
        pipeline.hset(f"emq:{{q}}:job:{job(number)}", mapping=row("scheduled"))
        pipeline.zadd("emq:{q}:schedule", {job(number): 1})
    await pipeline.execute()


async def test_one_beat_brings_back_what_fits_in_its_budget(url: str, raw: Redis, server: ValkeyServer) -> None:
    """2,000 expired leases and 2,000 due jobs at once: all are back after one beat, in passes of 100 and 100."""
    await expired_and_due(raw, 2_000, 2_000)
    async with connect(url) as connector:
        swept = await recovery(connector).beat()
        with counting(server.admin) as count:
            assert await recovery(connector).beat() == Swept()
            assert count() == 3, "nothing left: one pass, and the recount of a first beat"
    assert swept == Swept(recovered=2_000, promoted=2_000)
    assert await raw.zcard("emq:{q}:pending") == 4_000
    assert not await raw.exists("emq:{q}:active", "emq:{q}:schedule")


async def test_a_beat_ends_when_its_budget_is_spent(url: str, raw: Redis) -> None:
    """One pass is made in any case; the rest is for the next beat."""
    await expired_and_due(raw, 250, 120)
    async with connect(url) as connector:
        made = recovery(connector, budget_ms=0)
        assert [await made.beat() for _ in range(4)] == [Swept(100, 100), Swept(100, 20), Swept(50, 0), Swept()]


async def test_a_full_pass_of_either_is_repeated(url: str, raw: Redis) -> None:
    """Exactly one batch may not be all: whichever leg is full, both go on."""
    await expired_and_due(raw, 0, 100)
    async with connect(url) as connector:
        assert await recovery(connector).beat() == Swept(0, 100)
    await expired_and_due(raw, 100, 0)
    async with connect(url) as connector:
        assert await recovery(connector).beat() == Swept(100, 0)


async def test_every_tenth_beat_recounts_the_lanes(url: str, raw: Redis) -> None:
    """Slots that a foreign worker never gave back are free again; beats in between leave the counters alone."""
    queue = Queue(raw)
    wrong: dict[str, Any] = {"gactive": {GROUP: "3"}}
    async with connect(url) as connector:
        made = recovery(connector)
        await queue.put(wrong)
        corrected = [(await made.beat()).corrected]
        await queue.put(wrong)
        corrected += [(await made.beat()).corrected for _ in range(RECOUNT_BEATS)]
    assert corrected == [1, *[0] * (RECOUNT_BEATS - 1), 1]
    assert "gactive" not in await queue.state()


@pytest.mark.parametrize("passes", [2, 5, 9, 10])
async def test_a_beat_of_many_passes_counts_as_one_for_the_recount(passes: int) -> None:
    """On a queue that always has much to bring back the recount comes all the same."""
    wire = Answers([])
    made = Recovery(wire, Keys(QUEUE), clock=ManualClock(), promote_batch=100, budget_ms=10, before=nothing)
    recounts = []
    for _ in range(RECOUNT_BEATS + 1):
        recounts.append(len(made.calls()) == 3)
        wire.replies = [[100, 0]] * (passes - 2) + [[0, 0]]
        await made.sweep([100, 0, 0])
    assert recounts == [True, *[False] * (RECOUNT_BEATS - 1), True]


async def test_a_queue_with_more_in_hand_than_the_recount_may_look_at_is_left_alone() -> None:
    """The script says -1: that is no correction."""
    made = Recovery(
        Answers([[0, 0, -1]]), Keys(QUEUE), clock=ManualClock(), promote_batch=100, budget_ms=10, before=nothing
    )
    assert await made.beat() == Swept()


@pytest.mark.parametrize("broken", ["active", "schedule"])
async def test_an_error_of_a_script_is_raised(url: str, raw: Redis, broken: str) -> None:
    """Whichever leg it is: the beat is a degraded one, nothing else is written."""
    await raw.set(f"emq:{{q}}:{broken}", "not a sorted set")
    async with connect(url) as connector:
        with pytest.raises(ServerError, match="WRONGTYPE"):
            await recovery(connector).beat()
    await raw.delete(f"emq:{{q}}:{broken}")
    assert set(await keyspace_of(raw)) == {"{emq}:version"}


async def test_by_choice_lost_leases_are_counted(url: str, raw: Redis) -> None:
    """In passes like those of reap; a job is dead at its `max_stalled`th, and what each pass found is told."""
    told: list[tuple[int, list[str]]] = []
    await expired_and_due(raw, 150, 0)
    await raw.hset(f"emq:{{q}}:job:{job(120)}", "stalled", "1")
    async with connect(url) as connector:
        made = recovery(connector, max_stalled=2, on_stalled=lambda back, dead: told.append((len(back), dead)))
        assert await made.beat() == Swept(recovered=150)
        assert await made.beat() == Swept()
    assert told == [(100, []), (49, [job(120)])]
    state = await keyspace_of(raw)
    assert state["emq:{q}:dead"] == {job(120): 0}
    assert state[f"emq:{{q}}:job:{job(120)}"] == row("dead", 1, stalled=2, last_error="stalled")
    assert state[f"emq:{{q}}:job:{job(1)}"] == row("pending", 1, stalled=1, held="1:x")


async def test_a_worker_that_counts_lost_leases_says_so(url: str, raw: Redis) -> None:
    """In its log and in what it counts; no job that is buried is handed out."""
    back, dead = await expired(raw, 1), await expired(raw, 2)
    await raw.hset(f"emq:{{q}}:job:{dead}", "stalled", "1")
    gate = Gate()
    async with stand(url, gate.handler, stalled=2) as made:
        await made.consumer.beat()
        await made.consumer.beat()
        await wait_until(lambda: gate.began == [back], "the other one runs")
    assert made.lines.of("jobs stalled") == [{"queue": "q", "ids": [back]}]
    assert made.lines.of("job dead") == [{"queue": "q", "id": dead, "error": "stalled"}]
    assert (made.counts["stalled"], made.counts["buried"]) == (1, 1)
