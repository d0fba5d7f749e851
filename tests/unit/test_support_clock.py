"""The tests' clock stands still until it is moved."""

from __future__ import annotations

import asyncio

import pytest

from echomq_worker.clock import Clock
from tests.support.clock import START_MS, ManualClock
from tests.support.waiting import wait_until


def test_it_is_a_clock_and_stands_still() -> None:
    """It satisfies the package's protocol; set moves the wall clock alone, advance moves both."""
    manual = ManualClock()
    clock: Clock = manual
    assert (clock.now_ms(), clock.monotonic_ms()) == (START_MS, 0)
    manual.set(START_MS - 3_600_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (START_MS - 3_600_000, 0)
    manual.advance(250)
    assert (clock.now_ms(), clock.monotonic_ms()) == (START_MS - 3_600_000 + 250, 250)
    with pytest.raises(ValueError, match="expected 0 or more"):
        manual.advance(-1)


async def test_sleepers_wake_on_advance_in_order_of_their_deadlines() -> None:
    """A sleeper wakes when its time has passed, not before; setting the wall clock wakes nobody."""
    clock = ManualClock()
    woken: list[str] = []

    async def sleeper(name: str, ms: int) -> None:
        await clock.sleep_ms(ms)
        woken.append(name)

    async with asyncio.TaskGroup() as group:
        for name, ms in (("late", 300), ("early", 100), ("never waits", 0)):
            group.create_task(sleeper(name, ms))
        await wait_until(lambda: clock.sleepers == 2, "two sleep")
        assert woken == ["never waits"]
        clock.set(START_MS + 10_000)
        clock.advance(99)
        await asyncio.sleep(0)
        assert woken == ["never waits"]
        clock.advance(201)
    assert woken == ["never waits", "early", "late"]
    assert clock.sleepers == 0


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    """Cancelling a sleeper goes through at once and leaves nothing that a later advance could wake."""
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep_ms(10))
    await wait_until(lambda: clock.sleepers == 1, "it sleeps")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.sleepers == 0
    clock.advance(10)
