"""Metrics: the read plane. How many jobs stand where, where one stands, and what is late.

Source: issue "Every control" (the read plane), the seed "Lifecycle controls". Only the state of one
job is a snapshot: a queue moves while it is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from echomq_worker import rows
from echomq_worker.connector import Wire
from echomq_worker.guards import integer
from echomq_worker.identity import is_branded, minted_at_ms
from echomq_worker.jobs import Jobs
from echomq_worker.keyspace import Keys
from echomq_worker.repeat import Repeat, RepeatRecord
from echomq_worker.rows import Counts, JobView, Progress, State, Totals, checked
from echomq_worker.scan import keys_like
from echomq_worker.script import evaluate

JobState = Literal["pending", "active", "scheduled", "dead", "awaiting_children", "absent", "unknown"]
"""`absent`: no row and in no set. `unknown`: a row that is in no set and waits for no children."""

_QUEUE = re.compile(rb"emq:\{(?!emq\})([A-Za-z0-9._-]{1,128})\}:.")
_STATES: dict[str, JobState] = {
    "active": "active",
    "pending": "pending",
    "lane": "pending",
    "schedule": "scheduled",
    "dead": "dead",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """A queue's ceilings, None where there is none: jobs in hand at a time, and claims per window in ms."""

    concurrency: int | None
    rate: int | None
    window_ms: int | None


@dataclass(frozen=True, slots=True)
class Stats:
    """One look at a queue.

    `oldest_pending_age_ms`: since the id of the oldest pending job was minted (None: none is pending).
    `expired_leases`: jobs that no worker keeps any more and none has taken back yet. `next_due_ms`: the earliest run-at
    of a scheduled job in ms since 1970, on the server's clock (None: none is scheduled).
    """

    counts: Counts
    totals: Totals
    limits: Limits
    oldest_pending_age_ms: int | None
    expired_leases: int
    next_due_ms: int | None


@dataclass(frozen=True, slots=True)
class LaneView:
    """One lane: jobs that wait, jobs in hand, the ceiling of those (None: none), its share per turn, and whether it is
    paused, or on the ring: that is, served.
    """

    group: str
    depth: int
    active: int
    limit: int | None
    weight: int
    paused: bool
    on_ring: bool


class Metrics:
    """Reading a queue over any wire. Every verb raises InvalidQueueName, and what `Connector.call` raises."""

    __slots__ = ("_wire",)

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def stats(self, queue: str) -> Stats:
        """Everything that this page counts, in a few round trips."""
        keys = Keys(queue)
        counts = await rows.counts(self._wire, keys)
        meta = await self._wire.call("HMGET", keys.meta, "concurrency", "max", "window_ms")
        return Stats(
            counts,
            await rows.totals(self._wire, keys),
            Limits(*(_number(value) for value in meta)),
            await self._oldest(keys, list(counts.lanes)),
            await self.expired_leases(queue),
            await self.next_due_ms(queue),
        )

    async def counts(self, queue: str) -> Counts:
        """How many jobs stand where."""
        return await rows.counts(self._wire, Keys(queue))

    async def metrics(self, queue: str) -> Totals:
        """How many jobs the queue has completed and buried since it began."""
        return await rows.totals(self._wire, Keys(queue))

    async def depths(self, queue: str) -> dict[str, int]:
        """How many jobs wait in each lane that has any."""
        return (await self.counts(queue)).lanes

    async def lanes(self, queue: str) -> list[LaneView]:
        """Every lane that has members or a counter, a limit, a weight or a pause, in the order of their names."""
        keys = Keys(queue)
        named = await rows.groups(self._wire, keys)
        if not named:
            return []
        hashes = (keys.gactive, keys.glimit, keys.gweight)
        active, limits, weights, paused, ring, *depths = checked(
            await self._wire.pipeline(
                [
                    *(("HMGET", key, *named) for key in hashes),
                    ("SMISMEMBER", keys.paused, *named),
                    ("LRANGE", keys.ring, 0, -1),
                    *(("ZCARD", f"{keys.base}g:{group}:pending") for group in named),
                ]
            )
        )
        served = {group.decode("utf-8", "replace") for group in ring}
        return [
            LaneView(group, depth, _number(busy) or 0, _number(limit), _number(weight) or 1, bool(off), group in served)
            for group, depth, busy, limit, weight, off in zip(
                named, depths, active, limits, weights, paused, strict=True
            )
        ]

    async def get_job(self, queue: str, id: str) -> JobView | None:
        """One job's row, or None when there is none. Raises InvalidId."""
        return await rows.get(self._wire, Keys(queue), id)

    async def get_job_state(self, queue: str, id: str) -> JobState:
        """By which set holds the id, in one look. Raises InvalidId."""
        keys = Keys(queue)
        place, state, complaint = await evaluate(self._wire, "where", (keys.job(id),), (keys.base, id, ""))
        if place:
            return _STATES[place.decode()]
        if state == b"awaiting_children":
            return "awaiting_children"
        return "unknown" if complaint == b"row_in_no_set" else "absent"

    async def oldest_pending_age_ms(self, queue: str) -> int | None:
        """How long ago the id of the oldest pending job, flat or of a lane, was minted; None where none is pending.

        A job that was scheduled or retried meanwhile counts from its mint all the same.
        """
        keys = Keys(queue)
        return await self._oldest(keys, await rows.groups(self._wire, keys))

    async def expired_leases(self, queue: str) -> int:
        """Jobs whose lease is over and that nobody has put back yet: above 0 for a beat at most where a worker runs."""
        keys = Keys(queue)
        return int(await self._wire.call("ZCOUNT", keys.active, "-inf", await rows.now_ms(self._wire, keys)))

    async def next_due_ms(self, queue: str) -> int | None:
        """The earliest run-at of a scheduled job, in ms since 1970; it may be past. None where none is scheduled."""
        head = await self._wire.call("ZRANGE", Keys(queue).schedule, 0, 0, "WITHSCORES")
        return int(float(head[1])) if head and abs(float(head[1])) != float("inf") else None

    async def browse(
        self, queue: str, state: State = "pending", *, group: str | None = None, limit: int = 50, offset: int = 0
    ) -> list[JobView]:
        """A page of one set, or of a lane: see `Jobs.browse`."""
        return await Jobs(self._wire).browse(queue, state, group=group, limit=limit, offset=offset)

    async def repeats(self, queue: str, *, limit: int = 50, offset: int = 0) -> list[RepeatRecord]:
        """A page of the queue's registrations, the earliest next run first."""
        limit, offset = integer("limit", limit, at_least=1), integer("offset", offset, at_least=0)
        return (await Repeat(self._wire).list(queue))[offset : offset + limit]

    async def queues(self, *, progress: Progress | None = None) -> list[str]:
        """The names of all queues that have a key on this server; looks at every key once, in bounded steps."""
        found: set[str] = set()
        looked, total = 0, int(await self._wire.call("DBSIZE"))
        async for page in keys_like(self._wire, "emq:{*}:*"):
            found.update(match[1].decode() for key in page if (match := _QUEUE.match(key)))
            looked += len(page)
            if progress is not None:
                progress(looked, max(total, looked))
        return sorted(found)

    async def _oldest(self, keys: Keys, lanes: list[str]) -> int | None:
        sets = [keys.pending, *(f"{keys.base}g:{group}:pending" for group in lanes)]
        heads = checked(await self._wire.pipeline([("ZRANGE", key, 0, 0) for key in sets]))
        minted = [
            minted_at_ms(id) for head in heads for raw in head if is_branded(id := raw.decode("utf-8", "replace"))
        ]
        return max(0, await rows.now_ms(self._wire, keys) - min(minted)) if minted else None


def _number(value: Any) -> int | None:
    """What a script would make of a field of `meta`: no number is no limit."""
    try:
        return None if value is None else int(float(value))
    except (ValueError, OverflowError):
        return None
