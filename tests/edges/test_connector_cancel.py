"""Cancelling callers at random: the connection goes on, and every reply reaches the one who asked."""

from __future__ import annotations

import asyncio
import random

import pytest

from echomq_worker.connector import connect


@pytest.mark.parametrize("seed", range(3))
async def test_a_thousand_cancellations_shift_no_reply(url: str, seed: int) -> None:
    """1,000 calls and pipelines among many are cancelled at random moments: the rest get their own replies.

    Report 80 (taskforcesh/bullmq#3401).
    """
    draw = random.Random(seed)
    async with connect(url) as connector:

        async def one(number: int) -> int:
            for _ in range(draw.randrange(4)):
                await asyncio.sleep(0)
            if number % 3:
                assert await connector.call("ECHO", number) == str(number).encode()
            else:
                assert await connector.pipeline([("ECHO", number), ("ECHO", -number)]) == [
                    str(number).encode(),
                    str(-number).encode(),
                ]
            return number

        cancelled = start = 0
        while cancelled < 1000:
            start += 100
            tasks = [asyncio.ensure_future(one(start + i)) for i in range(100)]
            for victim in draw.sample(tasks, 60):
                if draw.random() < 0.1:
                    await asyncio.sleep(0)
                victim.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            for i, outcome in enumerate(outcomes):
                assert outcome == start + i or isinstance(outcome, asyncio.CancelledError)
            cancelled += sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        assert await connector.call("ECHO", "still in step") == b"still in step"
        assert connector.generation == 1
        assert connector.pending == 0


async def test_a_cancelled_command_runs_all_the_same(url: str) -> None:
    """The command of a cancelled caller is not taken back: it runs once and its reply is dropped."""
    async with connect(url) as connector:
        for i in range(200):
            call = asyncio.ensure_future(connector.call("SADD", "emq:{q}:paused", i))
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert await connector.call("SCARD", "emq:{q}:paused") == 200


async def test_cancelling_one_who_waits_for_the_connection_leaves_the_others(url: str) -> None:
    """Ten callers wait for one attempt to connect; the first is cancelled, the others are served by that attempt."""
    async with connect(url) as connector:
        assert connector._link is not None
        connector._link.abort()
        calls = [asyncio.ensure_future(connector.call("ECHO", i)) for i in range(10)]
        await asyncio.sleep(0)
        assert connector._opening is not None
        calls[0].cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        assert outcomes[1:] == [str(i).encode() for i in range(1, 10)]
        assert connector.generation == 2
