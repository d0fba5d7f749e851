"""Which queues there are, and what kinds of workers serve them. Values.

Every queue is served by at least two workers where there are three or more, so that what one has lost another finds.
"""

from __future__ import annotations

from dataclasses import dataclass

PLAIN, POOL, SYNC, BATCH, LANES, FLOW, PARTS, TICKS = (
    "plain",
    "pool",
    "sync",
    "batch",
    "lanes",
    "flow",
    "parts",
    "ticks",
)
QUEUES = (PLAIN, POOL, SYNC, BATCH, LANES, FLOW, PARTS, TICKS)
"""A standalone consumer; consumers=3; a plain function; a batch handler; groups with limits; parents, and children in
their queue; children in another queue; repeats.
"""

LIMITS = {"lane-a": 2, "lane-b": 4, "lane-c": None, "lane-d": None}
"""The lanes of the queue `lanes` and how many of their jobs may be in flight."""


@dataclass(frozen=True, slots=True)
class Role:
    """What a worker serves and how. `stepped`: its host clock is set forward and back; such a worker has no Pump,
    since repeats are priced on the host clock by definition.
    """

    name: str
    queues: tuple[str, ...] = QUEUES
    processes: int = 1
    pump: bool = True
    stepped: bool = False
    concurrency: int = 12


_ROLES = (
    Role("all"),
    Role("stepped", pump=False, stepped=True),
    Role("pair", processes=2, concurrency=8),
    Role("functions", (SYNC, FLOW, PARTS, TICKS)),
    Role("pools", (PLAIN, POOL, BATCH, LANES), concurrency=20),
    Role("narrow", pump=False, stepped=True, concurrency=4),
)


def role_of(number: int) -> Role:
    """The role of the worker with this number, counted from 0."""
    return _ROLES[number % len(_ROLES)]
