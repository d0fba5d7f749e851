"""Claims: numbers, receipts and suspects of one consumer, on a real server."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.claims import MOST, Claimed, Claims
from echomq_worker.connector import Connector, connect
from echomq_worker.job import Job, JobContext
from echomq_worker.keyspace import Keys
from echomq_worker.script import evaluate_many
from echomq_worker.suspects import Suspects
from tests.support.plain import GROUP, QUEUE, Queue, job, row
from tests.support.stations import pending, stand
from tests.support.waiting import wait_until

IDS = [job(number) for number in range(9)]


def claims(
    connector: Connector, consumer: str = "test-0", *, suspects: Suspects | None = None, max_crashes: int = 5
) -> Claims:
    """Those of one consumer."""
    context = JobContext(Keys(QUEUE), connector, max_attempts=3)
    return Claims(context, consumer=consumer, lease_ms=60_000, max_crashes=max_crashes, suspects=suspects or Suspects())


async def reply_to(connector: Connector, made: Claims, free: int) -> Any:
    """The server's reply to the next claim; nobody reads it."""
    (reply,) = await evaluate_many(connector, [made.call(free)])
    return reply


async def claim(connector: Connector, made: Claims, free: int) -> Claimed:
    """One claim, read."""
    return made.read(await reply_to(connector, made, free))


async def waiting(raw: Redis, numbers: range, **fields: Any) -> None:
    """Flat pending jobs."""
    await Queue(raw).put(
        {
            "pending": {job(number): 0 for number in numbers},
            **{f"job:{job(number)}": row(payload=f"p{number}", **fields) for number in numbers},
        }
    )


async def test_a_claim_brings_jobs_with_all_that_settling_needs(url: str, raw: Redis) -> None:
    """Id, payload, token, failures, lane and `held` as the row has it; a row without payload is a hollow job."""
    await waiting(raw, range(1), attempts=4, failures=2)
    lane = f"g:{GROUP}:pending"
    await Queue(raw).put(
        {
            lane: {IDS[1]: 0, IDS[2]: 0},
            "ring": [GROUP],
            f"job:{IDS[1]}": row(payload="in lane", group=GROUP),
            f"job:{IDS[2]}": row(payload=None, group=GROUP),
        }
    )
    async with connect(url) as connector:
        claimed = await claim(connector, claims(connector), 5)
    by_id = {one.id: one for one in claimed.jobs}
    flat, laned, hollow = (by_id[id] for id in IDS[:3])
    assert (flat.payload, flat.attempts, flat.failures, flat.group) == (b"p0", 5, 2, None)
    assert (laned.payload, laned.attempts, laned.failures, laned.group) == (b"in lane", 1, 0, GROUP)
    assert hollow.hollow
    assert (claimed.why, claimed.buried, claimed.full) == ("ok", [], False)
    for one in claimed.jobs:
        assert await raw.hget(f"emq:{{q}}:job:{one.id}", "held") == one.held.encode()
        assert one.held.startswith(f"{one.attempts}:")


async def test_a_claim_takes_what_is_asked_for_and_says_whether_there_may_be_more(url: str, raw: Redis) -> None:
    """Full: every free slot got a job. Each claim of a consumer has a random of its own."""
    await waiting(raw, range(5))
    async with connect(url) as connector:
        made = claims(connector)
        first, second, third = [await claim(connector, made, 2) for _ in range(3)]
        fourth = await claim(connector, made, 2)
    assert [[one.id for one in each.jobs] for each in (first, second, third)] == [IDS[:2], IDS[2:4], IDS[4:5]]
    assert [each.full for each in (first, second, third, fourth)] == [True, True, False, False]
    randoms = {one.held.split(":")[1] for each in (first, second, third) for one in each.jobs}
    assert len(randoms) == 3


async def test_an_unread_claim_is_replayed_and_takes_nothing_new(url: str, raw: Redis) -> None:
    """Its jobs come again with the tokens that they had; then claims go on where they were."""
    await waiting(raw, range(6))
    async with connect(url) as connector:
        made = claims(connector)
        await claim(connector, made, 1)
        lost = await reply_to(connector, made, 2)
        assert made.unread
        replayed = await claim(connector, made, 4)
        assert not made.unread
        after = await claim(connector, made, 4)
    assert replayed.why == "replayed"
    assert replayed.full, "there may be more"
    assert [one.id for one in replayed.jobs] == IDS[1:3]
    random = lost[2].decode()
    assert [one.held for one in replayed.jobs] == [f"1:{random}"] * 2
    assert [one.id for one in after.jobs] == IDS[3:6]
    assert await raw.zcard("emq:{q}:active") == 6


async def test_a_claim_that_never_arrived_is_simply_made_again(url: str, raw: Redis) -> None:
    """No receipt, no replay: the next call claims."""
    await waiting(raw, range(2))
    async with connect(url) as connector:
        made = claims(connector)
        made.call(2)
        assert made.unread
        claimed = await claim(connector, made, 2)
    assert claimed.why == "ok"
    assert [one.id for one in claimed.jobs] == IDS[:2]


async def test_a_claim_for_no_slot_reads_a_receipt_and_takes_nothing(url: str, raw: Redis) -> None:
    """What a shutdown does with a claim whose reply was lost; without one it brings nothing."""
    await waiting(raw, range(4))
    async with connect(url) as connector:
        made = claims(connector)
        await reply_to(connector, made, 3)
        assert [one.id for one in (await claim(connector, made, 0)).jobs] == IDS[:3]
        again = await claim(connector, made, 0)
    assert (again.jobs, again.full) == ([], False)
    assert await raw.zcard("emq:{q}:pending") == 1


async def test_consumers_have_receipts_of_their_own(url: str, raw: Redis) -> None:
    """One consumer's lost claim is not read by another."""
    await waiting(raw, range(3))
    async with connect(url) as connector:
        one, other = claims(connector, "test-0"), claims(connector, "test-1")
        await reply_to(connector, one, 2)
        assert [job.id for job in (await claim(connector, other, 2)).jobs] == IDS[2:3]
        assert [job.id for job in (await claim(connector, one, 2)).jobs] == IDS[:2]


async def test_more_slots_than_a_script_takes_are_asked_for_in_parts(url: str, raw: Redis) -> None:
    """A claim is bounded; a full part says that there may be more."""
    await waiting(raw, range(MOST + 5))
    async with connect(url) as connector:
        made = claims(connector)
        first = await claim(connector, made, 5_000)
        second = await claim(connector, made, 4_000)
    assert (len(first.jobs), first.full, len(second.jobs), second.full) == (MOST, True, 5, False)


@pytest.mark.parametrize("state", [{"paused": "1"}, {"concurrency": "0"}])
async def test_a_paused_queue_or_a_full_one_gives_nothing(url: str, raw: Redis, state: dict[str, str]) -> None:
    """The reason is on the answer; the sets are left alone."""
    await waiting(raw, range(2))
    await Queue(raw).put({"meta": state})
    async with connect(url) as connector:
        claimed = await claim(connector, claims(connector), 2)
    assert (claimed.jobs, claimed.why, claimed.full) == ([], "paused" if "paused" in state else "ceiling", False)
    assert await raw.zcard("emq:{q}:pending") == 2


async def test_a_job_that_crashed_too_often_is_buried_instead(url: str, raw: Redis) -> None:
    """It is not in hand, but named with its reason.

    Report 42 (Bogdanp/dramatiq#383).
    """
    await waiting(raw, range(1), attempts=3, held="3:x", crashes="2:3")
    async with connect(url) as connector:
        claimed = await claim(connector, claims(connector, max_crashes=3), 2)
    assert claimed.jobs == []
    assert claimed.buried == [(IDS[0], "crashed: 3 claims in a row never ended")]


async def suspicious(raw: Redis, numbers: range) -> None:
    """Jobs that have crashed once already: their next claim makes suspects of them."""
    await waiting(raw, numbers, attempts=1, held="1:x", crashes="1:1")


async def test_one_suspect_at_a_time_in_a_process(url: str, raw: Redis) -> None:
    """The rest stay pending, healthy jobs behind them are taken; when the first has ended the next may come."""
    await suspicious(raw, range(3))
    await waiting(raw, range(3, 5))
    async with connect(url) as connector:
        suspects, poked = Suspects(), list[str]()
        one, other = (claims(connector, name, suspects=suspects) for name in ("test-0", "test-1"))
        first = await claim(connector, one, 9)
        passed = await claim(connector, other, 9)
        other.wait_for_suspect(lambda: poked.append("other"))
        assert poked == []
        suspects.release(first.jobs[0])
        assert poked == ["other"]
        second = await claim(connector, other, 9)
    assert [job.id for job in first.jobs] == [IDS[0], *IDS[3:5]]
    assert (first.why, passed.jobs, passed.why) == ("suspects", [], "suspects")
    assert [job.id for job in second.jobs] == IDS[1:2]


async def test_a_claim_without_a_suspect_gives_the_place_back(url: str, raw: Redis) -> None:
    """It held it only while it was on its way."""
    await waiting(raw, range(1))
    async with connect(url) as connector:
        suspects = Suspects()
        await claim(connector, claims(connector, suspects=suspects), 2)
    assert suspects.reserve("anybody")


async def test_an_unread_claim_keeps_the_place_until_it_is_read(url: str, raw: Redis) -> None:
    """It may hold a suspect: no other consumer of the process takes one meanwhile."""
    await suspicious(raw, range(2))
    async with connect(url) as connector:
        suspects = Suspects()
        one, other = (claims(connector, name, suspects=suspects) for name in ("test-0", "test-1"))
        await reply_to(connector, one, 1)
        assert (await claim(connector, other, 1)).jobs == []
        replayed = await claim(connector, one, 1)
        assert [job.id for job in replayed.jobs] == IDS[:1]
        assert not suspects.reserve(one), "the job has it now"
        assert (await claim(connector, other, 1)).jobs == []
        suspects.release(replayed.jobs[0])
        assert [job.id for job in (await claim(connector, other, 1)).jobs] == IDS[1:2]


@pytest.mark.parametrize("failures", [b"x", b"", b"1.5", b"inf", b"\xff"])
async def test_failures_that_are_no_number_count_as_none(url: str, raw: Redis, failures: bytes) -> None:
    """What another client left in a row's `failures` ends no worker: the job runs, its first failure is the first."""
    (id,) = await pending(raw, range(1))
    await raw.hset(f"emq:{{q}}:job:{id}", "failures", failures)
    seen: list[int] = []

    async def handler(job: Job) -> None:
        seen.append(job.failures)

    async with stand(url, handler) as made:
        await made.consumer.beat()
        await wait_until(lambda: made.counts.get("done") == 1, "it is done")
    assert seen == [0]


async def test_an_id_that_is_no_text_ends_no_worker(url: str, raw: Redis) -> None:
    """An id, a lane or a token in a claim that cannot be read: the others run, it waits for its lease, and is buried
    as what never ends.
    """
    ids = await pending(raw, range(3))
    odd = b"\xff\xfe"
    await raw.hset(b"emq:{q}:job:" + odd, mapping={"state": "pending", "attempts": "0", "payload": b"x"})
    await raw.zadd("emq:{q}:pending", {odd: 0})
    await raw.hset(f"emq:{{q}}:job:{ids[2]}", "attempts", "1e999")
    async with stand(url) as made:
        claimed = (await made.consumer.beat()).claimed
        assert claimed is not None
        assert [job.id for job in claimed.jobs] == ids[:2]
        await wait_until(lambda: made.counts.get("done") == 2, "the others are done")
        await raw.hset(b"emq:{q}:job:" + odd, "crashes", "9:1")
        await raw.zrem("emq:{q}:active", odd)
        await raw.zadd("emq:{q}:pending", {odd: 0})
        claimed = (await made.consumer.beat()).claimed
        assert claimed is not None
        assert [reason for _, reason in claimed.buried] == ["crashed: 10 claims in a row never ended"]
    assert await raw.zscore("emq:{q}:dead", odd) == 0
    await raw.delete(b"emq:{q}:job:" + odd, "emq:{q}:dead")


async def test_an_id_that_is_not_branded_dies_as_others_do(url: str, raw: Redis) -> None:
    """Another client has put an id of its own form there: its job runs, fails, is dead with its reason and is told."""

    async def handler(job: Job) -> None:
        raise ValueError("no")

    await Queue(raw).put({"pending": {"some job": 0, "other": 0}, "job:some job": row()})
    async with stand(url, handler, max_attempts=1) as made:
        await made.consumer.beat()
        await wait_until(lambda: made.counts.get("dead") == 2, "both are dead")
    assert await raw.hget("emq:{q}:job:some job", "last_error") == b"ValueError: no"
    await raw.delete("emq:{q}:job:some job", "emq:{q}:job:other", "emq:{q}:dead")
