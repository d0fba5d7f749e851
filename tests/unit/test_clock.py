"""The system clock: milliseconds, a monotonic clock that never steps back, a sleep that is cancellable; a rhythm."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.clock import Clock, Rhythm, SystemClock
from tests.support.clock import ManualClock


def test_the_system_clock_is_a_clock() -> None:
    """SystemClock has the shape of the Clock protocol (checked by the type checker here)."""
    clock: Clock = SystemClock()
    assert isinstance(clock.now_ms(), int)
    assert isinstance(clock.monotonic_ms(), float)


def test_wall_time_is_in_milliseconds_since_1970() -> None:
    """now_ms is the host's wall clock in whole milliseconds."""
    before = time.time()
    now_ms = SystemClock().now_ms()
    after = time.time()
    assert int(before * 1000) - 1 <= now_ms <= int(after * 1000) + 1


def test_monotonic_time_never_steps_back() -> None:
    """A later reading is never below an earlier one."""
    clock = SystemClock()
    readings = [clock.monotonic_ms() for _ in range(1000)]
    assert readings == sorted(readings)


async def test_a_sleep_takes_at_least_its_milliseconds() -> None:
    """sleep_ms counts in milliseconds, not seconds."""
    clock = SystemClock()
    started = clock.monotonic_ms()
    await clock.sleep_ms(5)
    taken_ms = clock.monotonic_ms() - started
    assert 4 <= taken_ms < 4000


@pytest.mark.parametrize("ms", [0, -1, -1e9])
async def test_a_sleep_of_nothing_gives_the_loop_one_turn(ms: float) -> None:
    """Zero and negative sleeps let others run once, and return."""
    turns: list[str] = []
    asyncio.get_running_loop().call_soon(turns.append, "other")
    await SystemClock().sleep_ms(ms)
    assert turns == ["other"]


async def test_a_sleep_lets_a_cancellation_through() -> None:
    """A cancelled sleeper ends at once, as cancelled."""
    sleeper = asyncio.create_task(SystemClock().sleep_ms(3_600_000))
    await asyncio.sleep(0)
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper


@given(
    origin=st.floats(0, 1e9),
    period=st.integers(1, 86_400_000),
    elapsed=st.floats(0, 1e9),
)
def test_the_next_moment_is_at_most_a_period_away(origin: float, period: int, elapsed: float) -> None:
    """Later than now, never further than a period (and what a timer is early), and one of those that all count."""
    rhythm = Rhythm(origin, period)
    now = origin + elapsed
    after = rhythm.after(now)
    slack = 1e-6 * max(1.0, after)
    assert now < after + slack
    assert after <= now + period + rhythm.early_ms + slack
    beats = (after - origin) / period
    assert abs(beats - round(beats)) <= 1e-6 * max(1.0, beats) + slack / period


def test_who_wakes_a_little_early_has_had_its_moment() -> None:
    """A timer of whole milliseconds may be early: the moment that it was for is over, the next is a period later."""
    rhythm = Rhythm.of(ManualClock(), 1_000)
    assert rhythm.after(0) == 1_000
    assert rhythm.after(998.5) == 2_000
    assert rhythm.after(997) == 1_000
    assert rhythm.after(1_300) == 2_000
    assert Rhythm.of(ManualClock(), 1_000, 500).after(600) == 1_500
