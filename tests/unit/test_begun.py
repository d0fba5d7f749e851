"""Begun: what a coroutine does up to its first wait is done at once; the rest as if it had been awaited all along."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from echomq_worker.begun import Begun


async def test_the_first_step_runs_at_once_and_the_rest_where_it_is_awaited() -> None:
    """What it does before its first wait is done when it has been made; then it waits like any coroutine."""
    steps: list[str] = []
    first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        steps.append("sent")
        said = await first
        await asyncio.sleep(0)
        steps.append(said)
        return said.upper()

    begun = Begun(work())
    assert steps == ["sent"]
    asyncio.get_running_loop().call_soon(first.set_result, "answered")
    assert await begun == "ANSWERED"
    assert steps == ["sent", "answered"]


async def test_an_answer_that_is_there_before_anybody_asks_is_not_missed() -> None:
    """It may come turns of the loop before it is awaited."""
    first: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> int:
        return await first

    begun = Begun(work())
    first.set_result(7)
    for _ in range(3):
        await asyncio.sleep(0)
    assert await begun == 7


async def test_one_that_never_waits_has_its_value() -> None:
    """There is nothing left to do where it is awaited."""

    async def work() -> int:
        return 7

    assert await Begun(work()) == 7


@pytest.mark.parametrize("waits", [False, True])
async def test_what_it_raises_is_raised_where_it_is_awaited(waits: bool) -> None:
    """Not where it is begun: that may be in a callback that has other things to do."""

    async def work() -> None:
        if waits:
            await asyncio.sleep(0)
        raise ValueError("this")

    begun = Begun(work())
    with pytest.raises(ValueError, match="this"):
        await begun


@pytest.mark.parametrize("does", ["ends", "returns", "goes on"])
async def test_a_cancellation_is_the_coroutines(does: str) -> None:
    """It sees the cancellation at its first wait as at any other, and decides."""
    loop = asyncio.get_running_loop()
    first: asyncio.Future[None] = loop.create_future()
    second: asyncio.Future[None] = loop.create_future()

    async def work() -> str:
        try:
            await first
        except asyncio.CancelledError:
            if does == "ends":
                raise
            if does == "goes on":
                await second
        return does

    async def waits(begun: Begun[str]) -> str:
        return await begun

    task = asyncio.create_task(waits(Begun(work())))
    await asyncio.sleep(0)
    task.cancel()
    loop.call_soon(second.set_result, None)
    if does == "ends":
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        assert await task == does
    assert first.cancelled()


@pytest.mark.parametrize("cancelled", [True, False])
async def test_what_its_first_waits_raise_is_the_coroutines_each_time(cancelled: bool) -> None:
    """Where the first wait raised and the second one raises too, that is raised in the coroutine as well."""
    loop = asyncio.get_running_loop()
    first: asyncio.Future[None] = loop.create_future()
    second: asyncio.Future[None] = loop.create_future()

    async def work() -> str:
        with suppress(ValueError, asyncio.CancelledError):
            await first
        try:
            await second
        except ValueError:
            return "told"
        return "not told"

    async def waits(begun: Begun[str]) -> str:
        return await begun

    task = asyncio.create_task(waits(Begun(work())))
    await asyncio.sleep(0)
    if cancelled:
        task.cancel()
    else:
        first.set_exception(ValueError("the first"))
    loop.call_soon(second.set_exception, ValueError("the second"))
    assert await task == "told"
