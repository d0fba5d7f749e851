"""Dedup keys and expiries of single admissions: every way in has them, and a wrong one writes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.connector import Connector, connect
from echomq_worker.errors import InvalidArgument, InvalidId, KindRefused
from echomq_worker.jobs import Jobs, New
from echomq_worker.lanes import Lanes
from echomq_worker.rows import Receipt
from echomq_worker.worker import Worker
from tests.support.plain import FAR_MS, GROUP, QUEUE, Queue, Within, job, row
from tests.support.running import running
from tests.support.waiting import wait_until

Enqueue = Callable[..., Awaitable[Receipt]]


def ways(wire: Connector) -> dict[str, Enqueue]:
    """Every way to admit one job."""
    jobs, lanes = Jobs(wire), Lanes(wire)
    return {
        "now": lambda **more: jobs.enqueue(QUEUE, b"x", **more),
        "in": lambda **more: jobs.enqueue_in(QUEUE, b"x", FAR_MS, **more),
        "at": lambda **more: jobs.enqueue_at(QUEUE, b"x", FAR_MS, **more),
        "lane": lambda **more: lanes.enqueue(QUEUE, GROUP, b"x", **more),
    }


WAYS = ["now", "in", "at", "lane"]
HOMES = {"now": "pending", "in": "schedule", "at": "schedule", "lane": f"g:{GROUP}:pending"}


@pytest.mark.parametrize("way", WAYS)
async def test_a_second_job_of_a_key_is_not_admitted(wire: Connector, queue: Queue, way: str) -> None:
    """Its receipt is `deduplicated` and names the first, whichever way the second comes; the first stands as it did."""
    enqueue = ways(wire)[way]
    first = await enqueue(id=job(1), dedup="report")
    before = await queue.state()

    again = [await other(dedup="report", id=job(2)) for other in ways(wire).values()]

    assert first == Receipt(job(1), admitted=True)
    assert again == [Receipt(job(1), admitted=False, deduplicated=True)] * 4
    assert (before["de:report"], list(before[HOMES[way]])) == (job(1), [job(1)])
    assert await queue.state() == before


async def test_a_key_that_stands_for_an_id_that_is_no_text(wire: Connector, queue: Queue) -> None:
    """Another client's job has it: the receipt says so, as far as the id can be shown."""
    row = f"{queue.keys.base}job:".encode() + b"\xff"
    await queue.raw.set(f"{queue.keys.base}de:report", b"\xff")
    await queue.raw.hset(row, "state", "pending")

    receipt = await Jobs(wire).enqueue(QUEUE, b"x", dedup="report")
    await queue.raw.delete(row)
    assert (receipt.id, receipt.deduplicated) == ("\N{REPLACEMENT CHARACTER}", True)


@pytest.mark.parametrize("way", WAYS)
async def test_a_key_may_stand_for_a_time_only_and_a_job_may_expire(wire: Connector, queue: Queue, way: str) -> None:
    """The key has its time to live; the row has the moment until which it may be started."""
    before = await queue.now_ms()

    await ways(wire)[way](id=job(1), dedup="report", dedup_ttl_ms=60_000, expires_in_ms=1_000)
    await ways(wire)[way](id=job(2), expires_at_ms=-7)

    state: dict[str, Any] = await queue.state()
    assert 0 < await queue.raw.pttl(queue.keys.dedup("report")) <= 60_000
    assert state[f"job:{job(2)}"]["expires_at"] == "-7"
    expires_at = int(state[f"job:{job(1)}"]["expires_at"])
    assert Within(before + 1_000, await queue.now_ms() + 1_000) == expires_at
    assert set(state[HOMES[way]]) == {job(1), job(2)}


async def test_a_flat_job_with_neither_is_as_any_client_makes_it(wire: Connector, queue: Queue) -> None:
    """No field and no key more."""
    await Jobs(wire).enqueue(QUEUE, b"x", id=job(1))

    assert await queue.state() == {f"job:{job(1)}": row(), "pending": {job(1): 0}, "ready": ["1"]}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("more", "refused", "said"),
    [
        ({"dedup": ""}, InvalidArgument, "dedup key is empty"),
        ({"dedup": 5}, InvalidArgument, "dedup key 5: expected text"),
        ({"dedup": "\ud800"}, InvalidArgument, "UTF-8"),
        ({"dedup_ttl_ms": 5}, InvalidArgument, "dedup_ttl_ms: expected dedup with it"),
        ({"dedup": "a", "dedup_ttl_ms": 0}, InvalidArgument, "dedup_ttl_ms 0: expected 1 or more"),
        ({"dedup": "a", "dedup_ttl_ms": 2**60}, InvalidArgument, "expected 9007199254740992 or less"),
        ({"dedup": "a", "dedup_ttl_ms": "5"}, InvalidArgument, "dedup_ttl_ms of type str"),
        ({"expires_in_ms": -1}, InvalidArgument, "expires_in_ms -1: expected 0 or more"),
        ({"expires_in_ms": 10**5_000}, InvalidArgument, "expires_in_ms of 16610 bits"),
        ({"expires_at_ms": 2**60}, InvalidArgument, "expires_at_ms 1152921504606846976: expected"),
        ({"expires_in_ms": 1, "expires_at_ms": 1}, InvalidArgument, "are both given"),
        ({"dedup": "a", "id": "JOB1"}, InvalidId, "JOB1"),
        ({"dedup": "a", "id": job(1, "USR")}, KindRefused, "EMQKIND"),
    ],
)
async def test_what_is_refused_writes_nothing(
    wire: Connector, queue: Queue, way: str, more: dict[str, Any], refused: type[Exception], said: str
) -> None:
    """A key that is no text, numbers out of bounds, both ways to say a moment, an id of another kind."""
    with pytest.raises(refused, match=said):
        await ways(wire)[way](**more)

    assert await queue.state() == {}


async def test_the_longest_time_to_live_is_one_the_server_takes(wire: Connector, queue: Queue) -> None:
    """At the bound: admitted, with row and key; above it the server would have refused the key behind the row."""
    receipt = await Jobs(wire).enqueue(QUEUE, b"x", dedup="a", dedup_ttl_ms=2**53, expires_in_ms=2**53)

    assert receipt.admitted
    assert (await queue.state())["pending"] == {receipt.id: 0}


async def test_a_job_that_is_late_is_dead_and_no_handler_sees_it(url: str, raw: Redis) -> None:
    """Flat, in a lane, and one that was scheduled: not started after its moment, dead as `expired`; the others run."""
    worker, seen = Worker(), list[bytes]()

    @worker.handler("a")
    async def handle(payload: bytes) -> None:
        seen.append(payload)

    async with connect(url) as connector:
        jobs = Jobs(connector)
        group = Lanes(connector).group_for("t")
        late = [New(b"late", expires_at_ms=1), New(b"late", group=group, expires_at_ms=1)]
        late.append(New(b"late", in_ms=100, expires_in_ms=50))
        ids = [one.id for one in await jobs.enqueue_many("a", late)]
        await jobs.enqueue_many("a", [New(b"in time", expires_in_ms=60_000), New(b"in time", group=group)])
        async with running(worker, url):
            await wait_until(lambda: len(seen) == 2, "those in time have run")

            async def all_dead() -> bool:
                return await raw.zcard("emq:{a}:dead") == 3

            await wait_until(all_dead, "the late ones are dead")

    assert seen == [b"in time"] * 2
    assert {await raw.hget(f"emq:{{a}}:job:{id}", "last_error") for id in ids} == {b"expired"}
