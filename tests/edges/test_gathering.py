"""Gathering: many coroutines that enqueue at the same time, on a real server."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from echomq_worker import Jobs, connect
from echomq_worker.connector import Connector
from echomq_worker.errors import KindRefused, WireError
from echomq_worker.gathering import _MOST_JOBS
from tests.support.plain import job
from tests.support.proxy import Proxy
from tests.support.stations import counting
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until


async def test_a_hundred_at_the_same_time_are_two_calls(url: str, raw: Redis, server: ValkeyServer) -> None:
    """The first leaves alone and at once, the others together at the end of that turn, in order."""
    async with connect(url) as connector:
        jobs = Jobs(connector)
        await jobs.enqueue_many("q", [b"the server has both scripts"])
        await jobs.enqueue("q", b"")
        with counting(server.admin) as calls:
            receipts = await asyncio.gather(*(jobs.enqueue("q", f"{n}") for n in range(100)))
            assert calls() == 2
    assert all(receipt.admitted for receipt in receipts)
    assert (await raw.zrange("emq:{q}:pending", 2, -1)) == [receipt.id.encode() for receipt in receipts]
    assert [await raw.hget(f"emq:{{q}}:job:{receipt.id}", "payload") for receipt in receipts[::33]] == [
        b"0",
        b"33",
        b"66",
        b"99",
    ]


async def test_one_after_the_other_is_the_plain_verb(url: str, server: ValkeyServer) -> None:
    """Who enqueues alone waits for nobody."""
    async with connect(url) as connector:
        jobs = Jobs(connector)
        await jobs.enqueue("q", b"")
        with counting(server.admin) as calls:
            for n in range(3):
                assert (await jobs.enqueue("q", f"{n}")).admitted
            assert calls() == 3


async def test_each_has_an_answer_of_its_own(url: str) -> None:
    """A duplicate is not admitted, a foreign id is refused; neither holds up the others, nor does another queue."""
    async with connect(url) as connector:
        jobs = Jobs(connector)
        answers = await asyncio.gather(
            jobs.enqueue("q", b"a", id=job(1)),
            jobs.enqueue("q", b"b", id=job(1)),
            jobs.enqueue("q", b"c", id="USR0KHTOWnGLuC"),
            jobs.enqueue("q", b"d", id=job(2)),
            jobs.enqueue("q", b"e", id=job(2)),
            jobs.enqueue("other", b"f", id=job(1)),
            return_exceptions=True,
        )
    admitted = [None if isinstance(answer, BaseException) else answer.admitted for answer in answers]
    assert admitted == [True, False, None, True, False, True]
    assert isinstance(answers[2], KindRefused)


async def test_more_than_a_call_takes_are_several(url: str, raw: Redis, server: ValkeyServer) -> None:
    """By number and by size."""
    async with connect(url) as connector:
        jobs = Jobs(connector)
        await jobs.enqueue_many("q", [b""])
        await jobs.enqueue("q", b"")
        with counting(server.admin) as calls:
            await asyncio.gather(*(jobs.enqueue("q", b"") for _ in range(2 * _MOST_JOBS + 1)))
            assert calls() == 3
            await asyncio.gather(*(jobs.enqueue("q", bytes(3_000_000)) for _ in range(3)))
            assert calls() == 6
    assert await raw.zcard("emq:{q}:pending") == 2 * _MOST_JOBS + 6


async def test_a_caller_that_is_cancelled_disturbs_nobody(url: str, raw: Redis) -> None:
    """Its job is admitted all the same, as the command of a single one would be."""
    async with connect(url) as connector:
        jobs = Jobs(connector)
        calls = [asyncio.create_task(jobs.enqueue("q", b"", id=job(n))) for n in range(4)]
        await asyncio.sleep(0)
        calls[2].cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        gathering = jobs._gathering
        assert gathering is not None
        await wait_until(lambda: not gathering._calls, "the call is answered")
    assert isinstance(answers[2], asyncio.CancelledError)
    assert await raw.zcard("emq:{q}:pending") == 4


async def test_a_lost_connection_is_told_to_all(server: ValkeyServer) -> None:
    """Each gets the error, as an object of its own."""
    async with Proxy(server.port) as proxy:
        connector = Connector(proxy.url)
        jobs = Jobs(connector)
        await jobs.enqueue("q", b"")
        proxy.stall()
        calls = [asyncio.create_task(jobs.enqueue("q", b"")) for _ in range(4)]
        await wait_until(lambda: connector.pending == 2, "both calls are on their way")
        proxy.reset()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await connector.aclose()
    assert all(isinstance(answer, WireError) for answer in answers)
    assert len({id(answer) for answer in answers}) == 4


async def test_the_end_of_the_loop_ends_the_waits(url: str) -> None:
    """A call that is cancelled, as when the loop closes, leaves nobody waiting."""
    async with connect(url) as connector:
        jobs = Jobs(connector)
        await jobs.enqueue("q", b"")
        calls = [asyncio.create_task(jobs.enqueue("q", b"")) for _ in range(3)]
        gathering = jobs._gathering
        assert gathering is not None
        for _ in range(3):
            await asyncio.sleep(0)
            if gathering._calls:
                break
        for call in list(gathering._calls):
            call.cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers[1:]] == [asyncio.CancelledError] * 2


@pytest.mark.parametrize("bad", ["", "JOB", "JOB000000000 1"])
async def test_an_id_that_is_none_is_refused_before_it_gathers(url: str, bad: str) -> None:
    """Alone or among others."""
    async with connect(url) as connector:
        jobs = Jobs(connector)
        answers = await asyncio.gather(jobs.enqueue("q", b""), jobs.enqueue("q", b"", id=bad), return_exceptions=True)
    assert type(answers[1]).__name__ == "InvalidId"
