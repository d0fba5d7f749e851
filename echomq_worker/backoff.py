"""Backoff as a value: (policy, attempt) to a delay in milliseconds, without a clock and without sleeping.

Source: the seeds (`EchoMQ.Backoff`, its guards and its doctest values). The wire carries a literal number; a caller
that wants a curve computes it here. A job's retry is indexed by its failures + 1, a degraded loop's sleep by its
streak of beats.

>>> delay_ms(Exponential(100, 10_000), 1)
100
>>> delay_ms(Exponential(100, 10_000), 3)
400
>>> delay_ms(Exponential(100, 10_000), 20)
10000
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from echomq_worker.errors import InvalidArgument, shown


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same delay of `ms` milliseconds (0 or more) on every attempt. InvalidArgument outside that."""

    ms: int

    def __post_init__(self) -> None:
        _at_least(0, self.ms, "Fixed ms")


@dataclass(frozen=True, slots=True)
class Exponential:
    """`base_ms * 2^(attempt-1)`, at most `cap_ms`; both 1 or more. InvalidArgument outside that."""

    base_ms: int
    cap_ms: int

    def __post_init__(self) -> None:
        _at_least(1, self.base_ms, "Exponential base_ms")
        _at_least(1, self.cap_ms, "Exponential cap_ms")


@dataclass(frozen=True, slots=True)
class Jitter:
    """A uniform draw between 0 and the delay of the inner policy, both included: spreads a storm of retries."""

    inner: Policy

    def __post_init__(self) -> None:
        _check_policy(self.inner, "Jitter inner")


Policy: TypeAlias = Fixed | Exponential | Jitter


def delay_ms(policy: Policy, attempt: int, draw: Callable[[int], int] | None = None) -> int:
    """The policy's delay in whole milliseconds before the next attempt; exact, and quick, at any attempt of 1 or more.

    `draw(bound)` gives the uniform integer of 0..bound that Jitter needs; without it the system's randomness does. It
    is not asked when the bound is 0. InvalidArgument for what is no policy, for an attempt below 1, and for a draw
    outside its bound.
    """
    _check_policy(policy, "policy")
    _at_least(1, attempt, "attempt")
    match policy:
        case Fixed(ms):
            return ms
        case Exponential(base_ms, cap_ms):
            # Only a curve that may still be below its cap is computed: at attempt 10^6 it has a million bits.
            if base_ms.bit_length() + attempt - 1 > cap_ms.bit_length():
                return cap_ms
            return min(base_ms << (attempt - 1), cap_ms)
        case Jitter(inner):
            bound_ms = delay_ms(inner, attempt, draw)
            return _drawn(bound_ms, draw or _draw) if bound_ms > 0 else 0


def longest_ms(policy: Policy) -> int:
    """The longest delay that a policy ever gives."""
    match policy:
        case Fixed(ms):
            return ms
        case Exponential(_, cap_ms):
            return cap_ms
        case Jitter(inner):
            return longest_ms(inner)


def _drawn(bound: int, draw: Callable[[int], int]) -> int:
    drawn = draw(bound)
    if not 0 <= drawn <= bound:
        raise InvalidArgument(f"draw {shown(drawn)}: expected 0..{shown(bound)}")
    return drawn


def _draw(bound: int) -> int:
    return secrets.randbelow(bound + 1)


def _check_policy(value: object, what: str) -> None:
    if not isinstance(value, Fixed | Exponential | Jitter):
        raise InvalidArgument(f"{what} {shown(value)}: expected Fixed, Exponential or Jitter")


def _at_least(least: int, value: object, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidArgument(f"{what} {shown(value)}: expected an integer of {least} or more")
