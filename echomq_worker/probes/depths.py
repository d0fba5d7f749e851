"""Depths: how many jobs stand where on the server, read when somebody asks for metrics, and not more often than it
may cost.

Source: issue "Made for the people who run it" (pending, scheduled, active, dead, expired leases per queue and lane;
oldest pending age); decision 0030. One reading at a time; the next one comes after a second at the earliest, and after
ten times what the last one took, so that it never costs more than a tenth of a worker, however many lanes there are;
after twice what it took where there was no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echomq_worker.clock import Clock
from echomq_worker.codec import count_of
from echomq_worker.connector import Wire
from echomq_worker.errors import EchoMQError, WireError
from echomq_worker.identity import minted_near_ms
from echomq_worker.keyspace import Keys
from echomq_worker.logs import clean, get_logger
from echomq_worker.probes import instruments as i
from echomq_worker.probes.snapshot import Snapshot
from echomq_worker.rows import checked

LARGEST_LANES = 20
_FRESH_MS = 1_000
_SHARE = 10
# A reading without an answer cost waiting, not work; and the end of an outage should show soon.
_SHARE_SILENT = 2
# Prometheus gives up after ten seconds unless it is told otherwise.
_LIMIT_S = 5.0
_CHUNK = 250
# Queues that are asked for in one write.
_AT_ONCE = 10
_LABEL_CHARACTERS = 80


class Depths:
    """The queues of one worker, read over its own connection."""

    __slots__ = ("_clock", "_limit_s", "_queues", "_read", "_reading", "_told", "_until_ms", "_wire")

    def __init__(self, wire: Wire, queues: Sequence[str], *, clock: Clock, limit_s: float = _LIMIT_S) -> None:
        self._wire = wire
        self._queues = tuple(queues)
        self._clock = clock
        self._limit_s = limit_s
        self._reading: asyncio.Task[Snapshot] | None = None
        self._read = Snapshot()
        self._told = False
        self._until_ms = float("-inf")

    async def read(self) -> Snapshot:
        """What stands where. Where the server does not answer in time it is only that: no number is better than an
        old one.
        """
        if self._clock.monotonic_ms() < self._until_ms:
            return self._read
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._look(), name="depths")
        # A caller may be cancelled; others may still wait for the same reading.
        await asyncio.wait({reading := self._reading})
        return Snapshot() if reading.cancelled() else reading.result()

    def close(self) -> None:
        """End a reading that is on its way."""
        if self._reading is not None:
            self._reading.cancel()

    async def _look(self) -> Snapshot:
        begun_ms = self._clock.monotonic_ms()
        made, read = Snapshot(), 0
        try:
            async with asyncio.timeout(self._limit_s):
                for at in range(0, len(self._queues), _AT_ONCE):
                    some = self._queues[at : at + _AT_ONCE]
                    read += sum(await asyncio.gather(*(self._queue(queue, made) for queue in some)))
        except TimeoutError:
            made, read = Snapshot(), 0
        made.put(i.SERVER.name, int(read > 0))
        now_ms = self._clock.monotonic_ms()
        share = _SHARE if read else _SHARE_SILENT
        self._read, self._until_ms = made, now_ms + max(_FRESH_MS, share * (now_ms - begun_ms))
        return made

    async def _queue(self, queue: str, into: Snapshot) -> bool:
        """One queue; what cannot be read of it costs no other one its numbers."""
        try:
            await _write(self._wire, queue, into)
        except (EchoMQError, ValueError) as error:
            # Outages are logged elsewhere. This is for what stays: a right that the worker's user lacks, a key of
            # another type.
            if not isinstance(error, WireError) and not self._told:
                self._told = True
                hint = "of a user without rights: see echomq-worker acl worker --also metrics"
                get_logger(__name__).warning("queue cannot be read", queue=queue, error=str(error), hint=hint)
            return False
        return True


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane: jobs that wait, jobs in hand."""

    group: str
    depth: int
    active: int


async def _write(wire: Wire, queue: str, into: Snapshot) -> None:
    """Two round trips, one more for every 250 lanes. `Metrics` tells the same in more, to who asks for one thing."""
    keys = Keys(queue)
    sets = {"pending": keys.pending, "active": keys.active, "scheduled": keys.schedule, "dead": keys.dead}
    commands = [
        *(("ZCARD", key) for key in (*sets.values(), keys.repeat)),
        ("HEXISTS", keys.meta, "paused"),
        *(("HGET", key, "count") for key in (keys.completed, keys.failed)),
        ("ZRANGE", keys.pending, 0, 0),
        ("TIME",),
        ("LRANGE", keys.ring, 0, -1),
        ("SMEMBERS", keys.paused),
        ("HKEYS", keys.glimit),
        ("HGETALL", keys.gactive),
    ]
    found = checked(await wire.pipeline(commands))
    *counts, repeats, paused, completed, died, head, (seconds, micros), ring, off, limited, busy = found
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    active = {group: count_of(count) for group, count in _pairs(busy)}
    lanes, heads = await _lanes(wire, keys, sorted({*ring, *off, *limited, *active}), active)
    done, dead = count_of(completed), count_of(died)
    expired = int(await wire.call("ZCOUNT", keys.active, "-inf", now_ms))
    for state, count in zip(sets, counts, strict=True):
        into.put(i.QUEUE_JOBS.name, count, queue, state)
    into.put(i.QUEUE_READY.name, counts[0] + sum(lane.depth for lane in lanes), queue)
    into.put(i.OLDEST.name, _age_s([*head, *heads], now_ms), queue)
    into.put(i.EXPIRED.name, expired, queue)
    into.put(i.PAUSED.name, int(paused), queue)
    into.put(i.REPEATS.name, repeats, queue)
    into.put(i.COMPLETED.name, done, queue)
    into.put(i.DIED.name, dead, queue)
    write_lanes(queue, lanes, into)


async def _lanes(
    wire: Wire, keys: Keys, groups: Sequence[bytes], active: Mapping[bytes, int]
) -> tuple[list[Lane], list[bytes]]:
    """Lanes with jobs, and the oldest job of each. In pieces, so that ever so many do not hold up the event loop."""
    lanes: list[Lane] = []
    heads: list[bytes] = []
    for at in range(0, len(groups), _CHUNK):
        some = [(group, group.decode("utf-8", "replace")) for group in groups[at : at + _CHUNK]]
        names = [f"{keys.base}g:{name}:pending" for _, name in some]
        found = checked(await wire.pipeline([one for key in names for one in (("ZCARD", key), ("ZRANGE", key, 0, 0))]))
        for (group, name), depth, head in zip(some, found[::2], found[1::2], strict=True):
            if depth or active.get(group, 0) > 0:
                lanes.append(Lane(name, depth, active.get(group, 0)))
            heads += head
    return lanes, heads


def _pairs(reply: Any) -> list[tuple[bytes, bytes]]:
    """A hash as the one or the other protocol has it."""
    return list(reply.items()) if isinstance(reply, dict) else list(zip(reply[::2], reply[1::2], strict=True))


def _age_s(heads: Sequence[bytes], now_ms: int) -> float:
    minted = [at for head in heads if (at := minted_near_ms(head.decode("utf-8", "replace"))) is not None]
    return max(0, now_ms - min(minted)) / 1000 if minted else 0.0


def write_lanes(queue: str, lanes: Sequence[Lane], into: Snapshot) -> None:
    """The largest lanes by name, the others as one: how many series there are is not for producers to say."""
    into.put(i.LANES.name, len(lanes), queue)
    largest = sorted(lanes, key=lambda lane: (-lane.depth - lane.active, lane.group))
    for number, lane in enumerate(largest):
        name = clean(lane.group, limit=_LABEL_CHARACTERS) if number < LARGEST_LANES else i.OTHER_LANES
        into.put(i.LANE_JOBS.name, lane.depth, queue, name, "pending")
        into.put(i.LANE_JOBS.name, lane.active, queue, name, "active")
