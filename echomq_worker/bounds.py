"""Bounds: from where to where a number may go, the same for a setting, an option of a handler and an argument.

Source: protocol section 8 (the defaults), user-needs 93 (a bad value is one line that says what was expected).
"""

from __future__ import annotations

from dataclasses import dataclass

from echomq_worker.errors import ConfigError, shown

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """An integer from `least` to `most`, both included; `ms` where it counts milliseconds."""

    least: int
    most: int
    ms: bool = False

    def __contains__(self, value: object) -> bool:
        """Whether it is an integer, and within them. A bool is no integer here."""
        return isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most

    def __str__(self) -> str:
        """What is expected, in words."""
        return f"an integer from {self.least} to {self.most}" + (" (milliseconds)" if self.ms else "")


def checked(name: str, value: int, allowed: Bounds) -> int:
    """The value, where it is within the bounds; ConfigError naming it where not."""
    if value not in allowed:
        raise ConfigError(f"{name}: {shown(value)}, expected {allowed}")
    return value


CONCURRENCY = Bounds(1, 10_000)
PREFETCH = Bounds(0, 10_000)
CONSUMERS = Bounds(1, 10_000)
MAX_ATTEMPTS = Bounds(1, 1_000_000)
RETRY_DELAY_MS = Bounds(0, 365 * DAY_MS, ms=True)
LEASE_MS = Bounds(2, 7 * DAY_MS, ms=True)
# How long a handler may run.
RUN_MS = Bounds(1, 365 * DAY_MS, ms=True)
# The least that a batch waits for; one claim takes no more.
BATCH = Bounds(1, 1_000)
# How long a batch waits for it.
WINDOW_MS = Bounds(0, DAY_MS, ms=True)
# For a connection to be made, for an answer to come.
ANSWER_MS = Bounds(1, DAY_MS, ms=True)
POOL_SIZE = Bounds(1, 1_000)
