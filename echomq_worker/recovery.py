"""Recovery and promote: expired leases and due jobs go back to where they can be claimed.

Source: design section 3 (Consumer, Metronome), protocol section 4 ("promote, reap, stalled check": each pass is
bounded, and repeated until it comes back short, within a time budget), "Next to a foreign worker" (the recount of
lanes). Expired leases are reaped; by choice the counting sweep takes the place of that (`max_stalled`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from echomq_worker.clock import Clock
from echomq_worker.connector import Wire
from echomq_worker.keyspace import Keys
from echomq_worker.rows import checked
from echomq_worker.script import Call, evaluate_many

REAP_BATCH = 100
RECOUNT_BEATS = 10
RECOUNT_LIMIT = 5_000


@dataclass(frozen=True, slots=True)
class Swept:
    """What one beat brought back: expired leases (or buried, by the sweep), due jobs, corrected lane counters."""

    recovered: int = 0
    promoted: int = 0
    corrected: int = 0


class Recovery:
    """Reap and promote of one queue. `before`, `calls` and `sweep` let a beat send the first pass with its claim.

    With `max_stalled` the counting sweep runs instead of reap, and `on_stalled(back, dead)` hears the ids of each pass.
    """

    __slots__ = (
        "_beats",
        "_budget_ms",
        "_clock",
        "_keys",
        "_max_stalled",
        "_on_stalled",
        "_promote_batch",
        "_recounts",
        "_wire",
        "before",
    )

    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        *,
        clock: Clock,
        promote_batch: int,
        budget_ms: float,
        before: Callable[[], Awaitable[None]],
        max_stalled: int | None = None,
        recounts: bool = True,
        on_stalled: Callable[[list[str], list[str]], None] = lambda _back, _dead: None,
    ) -> None:
        """`before` is awaited ahead of each beat: what we hold ourselves and are late with is extended there. Without
        `recounts` the counters of lanes are let be.
        """
        self.before = before
        self._wire = wire
        self._keys = keys
        self._clock = clock
        self._promote_batch = promote_batch
        self._budget_ms = budget_ms
        self._max_stalled = max_stalled
        self._recounts = recounts
        self._on_stalled = on_stalled
        self._beats = 0

    def calls(self) -> list[Call]:
        """The first pass of a beat: reap, promote, and every tenth beat the recount."""
        keys = self._keys
        calls = self._pass()
        if self._recounts and self._beats % RECOUNT_BEATS == 0:
            calls.append(("recount", (keys.active,), (keys.base, RECOUNT_LIMIT)))
        self._beats += 1
        return calls

    def _pass(self) -> list[Call]:
        keys = self._keys
        expired: Call = ("reap", (keys.active, keys.pending), (keys.base,))
        if self._max_stalled is not None:
            values = (keys.base, self._max_stalled, REAP_BATCH)
            expired = ("stalled_check", (keys.active, keys.pending, keys.dead), values)
        return [expired, ("promote", (keys.schedule, keys.pending), (keys.base, self._promote_batch))]

    async def sweep(self, first: list[Any]) -> Swept:
        """Go on from the replies of `calls` until both come back short or the time budget is spent.

        Raises what the wire raises; a script's error in a reply is raised too.
        """
        swept = self._read(first)
        recovered, promoted = swept.recovered, swept.promoted
        until = self._clock.monotonic_ms() + self._budget_ms
        while (recovered >= REAP_BATCH or promoted >= self._promote_batch) and self._clock.monotonic_ms() < until:
            again = self._read(await evaluate_many(self._wire, self._pass()))
            recovered, promoted = again.recovered, again.promoted
            swept = Swept(swept.recovered + recovered, swept.promoted + promoted, swept.corrected)
        return swept

    async def beat(self) -> Swept:
        """One whole sweep of its own."""
        await self.before()
        return await self.sweep(await evaluate_many(self._wire, self.calls()))

    def _read(self, replies: list[Any]) -> Swept:
        recovered, promoted, *corrected = checked(replies)
        if isinstance(recovered, list):
            back, dead = ([id.decode() for id in ids] for ids in recovered)
            recovered = len(back) + len(dead)
            if recovered:
                self._on_stalled(back, dead)
        return Swept(recovered, promoted, max([0, *corrected]))
