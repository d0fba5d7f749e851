"""Nap: a wait that somebody else may end early."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from echomq_worker.clock import SystemClock
from echomq_worker.nap import Nap
from tests.support.clock import ManualClock
from tests.support.waiting import wait_until


async def test_a_nap_ends_by_itself() -> None:
    """Unwoken it lasts as long as it was asked to, and says that nobody woke it."""
    clock, nap = ManualClock(), Nap()
    sleeping = asyncio.create_task(nap.sleep(clock, 1_000))
    await wait_until(lambda: clock.sleepers == 1, "it sleeps")
    clock.advance(999)
    await asyncio.sleep(0)
    assert not sleeping.done()
    clock.advance(1)
    assert await sleeping is False


async def test_a_wake_ends_the_nap_that_is_on() -> None:
    """And only that one: the next nap sleeps again."""
    clock, nap = ManualClock(), Nap()
    sleeping = asyncio.create_task(nap.sleep(clock, 1_000))
    await wait_until(lambda: clock.sleepers == 1, "it sleeps")
    nap.wake()
    assert await sleeping is True

    again = asyncio.create_task(nap.sleep(clock, 1_000))
    await wait_until(lambda: clock.sleepers == 1, "it sleeps again")
    clock.advance(1_000)
    assert await again is False


async def test_a_wake_before_the_nap_ends_it_at_once_and_wakes_do_not_add_up() -> None:
    """What is to be waited for is never begun; however often it was woken, one nap is skipped."""
    nap = Nap()
    nap.wake()
    nap.wake()

    async def never() -> None:
        raise AssertionError("the wait was begun")

    assert await nap.until(never, lambda: None) is True
    assert await nap.sleep(SystemClock(), 1) is False


async def test_a_wake_in_the_turn_in_which_the_wait_ends_is_not_lost() -> None:
    """The wait ended by itself and was woken too: it says so, and nothing is left for the next."""
    clock, nap = ManualClock(), Nap()
    sleeping = asyncio.create_task(nap.sleep(clock, 1))
    await wait_until(lambda: clock.sleepers == 1, "it sleeps")
    clock.advance(1)
    nap.wake()
    assert await sleeping is True
    assert await nap.sleep(SystemClock(), 1) is False


async def test_a_wake_ends_what_is_waited_for() -> None:
    """It is asked to end, once, and returns; a wake after that has nothing to end."""
    nap, ended = Nap(), asyncio.Event()
    asked: list[str] = []

    def end() -> None:
        asked.append("to end")
        ended.set()

    waiting = asyncio.create_task(nap.until(ended.wait, end))
    await asyncio.sleep(0)
    nap.wake()
    assert await waiting is True
    nap.wake()
    assert asked == ["to end"]


async def test_errors_of_the_wait_come_through() -> None:
    """A wait that fails is not a wake; the nap can be used again."""
    nap = Nap()

    async def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await nap.until(broken, lambda: None)
    assert await nap.sleep(SystemClock(), 1) is False


async def test_a_cancellation_of_the_sleeper_comes_through() -> None:
    """Cancelled by its task group or as a task: it is no wake, and nothing after the nap runs."""
    nap = Nap()
    after: list[str] = []

    async def sleeper() -> None:
        await nap.until(anyio.sleep_forever, lambda: None)
        after.append("went on")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleeper)
        await asyncio.sleep(0)
        tasks.cancel_scope.cancel()
    task = asyncio.create_task(sleeper())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert after == []


@pytest.mark.parametrize("wake_first", [True, False])
async def test_a_wake_does_not_hide_a_cancellation_in_the_same_turn(wake_first: bool) -> None:
    """Whichever comes first, the cancellation of the task is the one that counts."""
    nap = Nap()
    after: list[str] = []

    async def sleeper() -> None:
        await nap.until(anyio.sleep_forever, lambda: None)
        after.append("went on")

    task = asyncio.create_task(sleeper())
    await asyncio.sleep(0)
    for step in (nap.wake, task.cancel) if wake_first else (task.cancel, nap.wake):
        step()
    await asyncio.wait([task])
    assert task.cancelled()
    assert after == []
