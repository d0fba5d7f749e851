"""The backoff policies: the seeds' values, the full table, the guards, the bounds of jitter, the far edge."""

from __future__ import annotations

import doctest
from collections import Counter
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker import backoff
from echomq_worker.backoff import Exponential, Fixed, Jitter, Policy, delay_ms
from echomq_worker.clock import SystemClock
from echomq_worker.errors import InvalidArgument

FIXED = st.builds(Fixed, st.integers(0, 10**9))
EXPONENTIAL = st.builds(Exponential, st.integers(1, 10**9), st.integers(1, 10**12))
POLICIES = st.recursive(FIXED | EXPONENTIAL, lambda inner: st.builds(Jitter, inner), max_leaves=3)
ATTEMPTS = st.integers(1, 5000)


def highest(bound: int) -> int:
    """The draw that gives the bound itself."""
    return bound


def lowest(bound: int) -> int:
    """The draw that gives 0."""
    return 0 * bound


def never(bound: int) -> int:
    """A draw that must not be asked for."""
    raise AssertionError(f"asked to draw up to {bound}")


def test_the_doctests_hold() -> None:
    """The module's examples are the doctests of the seeds, and they run."""
    results = doctest.testmod(backoff)
    assert (results.failed, results.attempted) == (0, 3)


@pytest.mark.parametrize(
    ("policy", "table"),
    [
        (Fixed(1000), [1000] * 8),
        (Fixed(0), [0] * 8),
        (Exponential(100, 10_000), [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000]),
        (Exponential(1, 8), [1, 2, 4, 8, 8, 8]),
        (Exponential(3, 7), [3, 6, 7, 7]),
        (Exponential(1000, 30_000), [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]),
        (Exponential(1, 1), [1, 1, 1]),
        (Exponential(500, 100), [100, 100, 100]),
    ],
)
def test_the_full_table(policy: Policy, table: list[int]) -> None:
    """Every value from the first attempt until after the curve holds at its cap; jitter may draw exactly up to it."""
    attempts = range(1, len(table) + 1)
    assert [delay_ms(policy, attempt) for attempt in attempts] == table
    assert [delay_ms(Jitter(policy), attempt, highest) for attempt in attempts] == table
    assert [delay_ms(Jitter(policy), attempt, lowest) for attempt in attempts] == [0] * len(table)


@given(EXPONENTIAL, ATTEMPTS)
def test_the_curve_is_exact(policy: Exponential, attempt: int) -> None:
    """The delay is the formula of the seeds in exact integers, far beyond what a float holds."""
    assert delay_ms(policy, attempt) == min(policy.base_ms * 2 ** (attempt - 1), policy.cap_ms)


@given(st.integers(1, 2**80), st.integers(1, 2**80), st.integers(1, 90))
def test_the_curve_is_exact_around_its_cap(base_ms: int, cap_ms: int, attempt: int) -> None:
    """Also where base and cap are far beyond 64 bits."""
    assert delay_ms(Exponential(base_ms, cap_ms), attempt) == min(base_ms * 2 ** (attempt - 1), cap_ms)


@given(POLICIES, ATTEMPTS)
def test_every_delay_is_a_whole_number_of_milliseconds_within_the_policy(policy: Policy, attempt: int) -> None:
    """A delay is an int, not negative, and jitter never exceeds what it is drawn from."""
    delay = delay_ms(policy, attempt)
    assert type(delay) is int
    assert 0 <= delay <= delay_ms(policy, attempt, highest)


@given(FIXED | EXPONENTIAL, ATTEMPTS)
def test_the_curve_never_falls_and_needs_no_randomness(policy: Policy, attempt: int) -> None:
    """A later attempt waits at least as long, and only jitter draws."""
    assert delay_ms(policy, attempt, never) <= delay_ms(policy, attempt + 1, never)


def test_jitter_draws_uniformly_and_reaches_both_ends() -> None:
    """Full jitter: 0 and the inner delay both come up, and no value is preferred."""
    counts = Counter(delay_ms(Jitter(Fixed(4)), 1) for _ in range(5000))
    assert set(counts) == {0, 1, 2, 3, 4}
    assert min(counts.values()) > 700


def test_jitter_takes_its_randomness_from_outside() -> None:
    """The draw is asked once, with the inner delay as its inclusive bound, and its answer is the delay."""
    asked: list[int] = []

    def draw(bound: int) -> int:
        asked.append(bound)
        return 123

    assert delay_ms(Jitter(Exponential(100, 10_000)), 3, draw) == 123
    assert asked == [400]


def test_jitter_of_nothing_is_nothing() -> None:
    """A bound of 0 needs no draw (the seeds answer 0 without one)."""
    assert delay_ms(Jitter(Fixed(0)), 1, never) == 0


def test_jitter_of_jitter_draws_within_the_draw() -> None:
    """Policies nest: the outer bound is what the inner one drew."""
    assert delay_ms(Jitter(Jitter(Fixed(100))), 1, lambda bound: bound // 2) == 25


@pytest.mark.parametrize("draw", [lambda _: -1, lambda bound: bound + 1])
def test_a_draw_outside_its_bound_is_refused(draw: Callable[[int], int]) -> None:
    """A broken source of randomness does not become a delay."""
    with pytest.raises(InvalidArgument, match=r"^draw (-1|6): expected 0\.\.5$"):
        delay_ms(Jitter(Fixed(5)), 1, draw)


def test_a_million_attempts_are_exact_and_quick() -> None:
    """At attempt 10^6, and at 10^1000, the answer is the cap, at once: no number of a million bits is built."""
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    for _ in range(1000):
        assert delay_ms(Exponential(100, 10_000), 10**6) == 10_000
    assert delay_ms(Exponential(1, 2**63 - 1), 10**1000) == 2**63 - 1
    assert delay_ms(Fixed(7), 10**1000) == 7
    assert delay_ms(Jitter(Exponential(100, 10_000)), 10**1000, highest) == 10_000
    assert clock.monotonic_ms() - started_ms < 5_000


@pytest.mark.parametrize("attempt", [0, -1, -(1 << 50_000), 1.0, "1", None, True], ids=range(7))
@pytest.mark.parametrize("policy", [Fixed(1), Exponential(1, 1), Jitter(Fixed(0))], ids=repr)
def test_an_attempt_below_one_is_refused(policy: Policy, attempt: Any) -> None:
    """Attempts count from 1, as in the seeds, for every policy."""
    with pytest.raises(InvalidArgument, match=r"^attempt .{1,80}: expected an integer of 1 or more$"):
        delay_ms(policy, attempt)


@pytest.mark.parametrize("ms", [-1, 1.5, "1", None, True])
def test_a_bad_fixed_delay_is_refused(ms: Any) -> None:
    """A fixed delay is an integer of 0 or more, refused when the policy is made, not when a job fails."""
    with pytest.raises(InvalidArgument, match=r"^Fixed ms .*: expected an integer of 0 or more$"):
        Fixed(ms)


@pytest.mark.parametrize("value", [0, -1, 1.5, "1", None, False])
def test_a_bad_curve_is_refused(value: Any) -> None:
    """Base and cap are integers of 1 or more."""
    with pytest.raises(InvalidArgument, match=r"^Exponential base_ms .*: expected an integer of 1 or more$"):
        Exponential(value, 10)
    with pytest.raises(InvalidArgument, match=r"^Exponential cap_ms .*: expected an integer of 1 or more$"):
        Exponential(10, value)


@pytest.mark.parametrize("inner", [1000, None, Fixed, "fixed"])
def test_jitter_of_something_else_is_refused(inner: Any) -> None:
    """Jitter is of a policy, and a delay is of one: nothing else is taken for it in silence."""
    with pytest.raises(InvalidArgument, match=r"^Jitter inner .*: expected Fixed, Exponential or Jitter$"):
        Jitter(inner)
    with pytest.raises(InvalidArgument, match=r"^policy .*: expected Fixed, Exponential or Jitter$"):
        delay_ms(inner, 1)


def test_policies_are_values() -> None:
    """A policy can be compared, hashed and shared, and does not change."""
    assert Jitter(Exponential(1, 2)) == Jitter(Exponential(1, 2))
    assert len({Fixed(1), Fixed(1), Fixed(2)}) == 2
    policy: Any = Fixed(1)
    with pytest.raises(FrozenInstanceError):
        policy.ms = 2
