"""Admin: the verbs over a whole queue: pause, resume, drain, obliterate, ceilings, and the dead jobs of `dead`.

Source: the seed "Lifecycle controls" (the operator plane), protocol section 4 (queue pause and resume, drain,
obliterate) and section 1 (`meta`: concurrency, max, window_ms).
"""

from __future__ import annotations

import re
from typing import Any

from echomq_worker import outbox, rows
from echomq_worker.connector import Wire
from echomq_worker.dead import DeadJobs
from echomq_worker.guards import integer
from echomq_worker.keyspace import Keys
from echomq_worker.rows import Progress, checked
from echomq_worker.scan import keys_like
from echomq_worker.script import evaluate

BUDGET = 50
"""Ids and names that one call of obliterate takes: one or two milliseconds of the server, some twenty where each of
them is below eight levels of a flow."""

_DRAINED_AT_MOST = 200
_PASSES = 8
_ROW = re.compile(rb"job:([A-Z]{3}[0-9A-Za-z]{11})(?::\w+)?")
_LANE = re.compile(rb"g:(.+):pending", re.DOTALL)


class Admin(DeadJobs):
    """The verbs of a queue over any wire. Every verb raises InvalidQueueName, and what `Connector.call` raises."""

    __slots__ = ("_wire",)

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def pause(self, queue: str) -> None:
        """Claim nothing of the queue until it is resumed; what is in hand goes on, admission too."""
        await evaluate(self._wire, "queue_pause", (Keys(queue).meta,), ())

    async def resume(self, queue: str) -> None:
        """Serve the queue again."""
        await evaluate(self._wire, "queue_resume", (Keys(queue).meta,), ())

    async def drain(self, queue: str, *, schedule: bool = False, progress: Progress | None = None) -> int:
        """Delete every waiting job, flat and of lanes, and with `schedule` the scheduled ones; answers how many.

        What is in hand, the dead and the repeats stay. A child of a flow counts as dead.
        """
        keys = Keys(queue)
        flat = (keys.base, keys.pending, *((keys.schedule,) if schedule else ()))
        counts = await rows.counts(self._wire, keys)
        expected = counts.ready + (counts.scheduled if schedule else 0)
        total = 0
        # Deaths may release parents, a level at a time.
        for _ in range(_PASSES):
            before = total
            lanes = [
                ("lane_drain", (keys.base, f"{keys.base}g:{group}:pending", keys.ring), (group,))
                for group in await rows.groups(self._wire, keys)
            ]
            for name, names, values in [("drain", flat, ()), *lanes]:
                while count := int(await evaluate(self._wire, name, names, values)):
                    total += count
                    if progress is not None:
                        progress(total, max(expected, total))
                    if count < _DRAINED_AT_MOST:
                        break
            if total == before:
                break
        return total

    async def obliterate(self, queue: str, *, force: bool = False, progress: Progress | None = None) -> None:
        """Delete a paused queue whole, repeats, metrics and limits too, in bounded calls; no key of it is left.

        Raises StateRefused where the queue is not paused, or where jobs are in hand and it is not forced. A child of a
        flow counts as dead, and reports to parents in other queues are delivered before the end. Broken off, it can be
        begun again: the pause goes last.
        """
        keys = Keys(queue)
        counts = await rows.counts(self._wire, keys)
        total = counts.ready + counts.active + counts.scheduled + counts.dead
        erasing = _Erasing(self._wire, keys, "force" if force else "", total, progress)
        await erasing.run("keep")
        async for page in keys_like(self._wire, f"{keys.base}*"):
            await erasing.sweep(page)
        await self._deliver(keys)
        await erasing.run("")
        await self._deliver(keys)
        if progress is not None:
            progress(total, total)

    async def set_concurrency(self, queue: str, n: int | None) -> None:
        """At most `n` (1 or more) jobs of the queue in hand at a time, over all workers; None takes the limit away."""
        keys = Keys(queue)
        if n is None:
            await self._wire.call("HDEL", keys.meta, "concurrency")
        else:
            await self._wire.call("HSET", keys.meta, "concurrency", integer("concurrency", n, at_least=1))

    async def set_rate(self, queue: str, limit: int | None, window_ms: int | None = None) -> None:
        """Claim at most `limit` (1 or more) jobs of the queue in each window of `window_ms`; None takes the limit away.

        A window that is running ends.
        """
        keys = Keys(queue)
        if limit is None:
            written: tuple[Any, ...] = ("HDEL", keys.meta, "max", "window_ms")
        else:
            most, window = integer("limit", limit, at_least=1), integer("window_ms", window_ms, at_least=1)
            written = ("HSET", keys.meta, "max", most, "window_ms", window)
        checked(await self._wire.pipeline([written, ("DEL", keys.limiter)]))

    async def _deliver(self, keys: Keys) -> None:
        while entries := await self._wire.call("LRANGE", keys.outbox, 0, outbox.BATCH - 1):
            await outbox.deliver(self._wire, keys, entries)


class _Erasing:
    """One obliteration: the script's calls, and what only a scan of the keys can find."""

    __slots__ = ("_done", "_force", "_keys", "_known", "_progress", "_total", "_wire")

    def __init__(self, wire: Wire, keys: Keys, force: str, total: int, progress: Progress | None) -> None:
        self._wire = wire
        self._keys = keys
        self._force = force
        self._total = total
        self._progress = progress
        self._done = 0
        single = {getattr(keys, name) for name in Keys.__slots__ if name not in {"queue", "base"}}
        self._known = {name.removeprefix(keys.base).encode() for name in single}

    async def run(self, keep: str) -> None:
        """Call until nothing is left that a set names; `keep` is the script's."""
        while await self._call(keep):
            self._done += BUDGET
            self._tell()

    async def sweep(self, page: list[bytes]) -> None:
        """Take a page of the keys that are left: rows by the script; a lane is named by pausing it; the rest goes."""
        ids: set[bytes] = set()
        lanes: set[bytes] = set()
        strays: list[bytes] = []
        for key in page:
            name = key.removeprefix(self._keys.base.encode())
            if match := _ROW.fullmatch(name):
                ids.add(match[1])
            elif match := _LANE.fullmatch(name):
                lanes.add(match[1])
            elif name not in self._known:
                strays.append(key)
        ordered = sorted(ids)
        for first in range(0, len(ordered), BUDGET):
            await self._call("keep", *ordered[first : first + BUDGET])
        commands: list[tuple[Any, ...]] = [("SADD", self._keys.paused, *lanes)] if lanes else []
        if strays:
            commands.append(("UNLINK", *strays))
        if commands:
            checked(await self._wire.pipeline(commands))

    async def _call(self, keep: str, *ids: bytes) -> bool:
        names = (self._keys.meta, self._keys.base)
        return bool(await evaluate(self._wire, "obliterate", names, (self._force, BUDGET, keep, *ids)) == 1)

    def _tell(self) -> None:
        if self._progress is not None:
            done = min(self._done, self._total)
            self._progress(done, self._total)
