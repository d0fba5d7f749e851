"""Stalled: the counting sweep, for whoever wants a job that loses its lease to be dead after so many times.

Source: protocol section 4 (stalled check), section 8 (a verb and a choice, not the default recovery). It competes with
reap: run one of them on a queue.
"""

from __future__ import annotations

from typing import NamedTuple

from echomq_worker.connector import Wire
from echomq_worker.guards import integer
from echomq_worker.keyspace import Keys
from echomq_worker.script import evaluate


class Swept(NamedTuple):
    """The ids of one pass: put back where they can be claimed, and buried with `last_error` = `stalled`."""

    recovered: list[str]
    dead: list[str]


class Stalled:
    """The sweep over any wire."""

    __slots__ = ("_wire",)

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def check(self, queue: str, max_stalled: int = 1, limit: int = 100) -> Swept:
        """Look at up to `limit` leases that ran out; a job is dead at its `max_stalled`th time, else it goes back."""
        keys = Keys(queue)
        values = (
            keys.base,
            integer("max_stalled", max_stalled, at_least=1),
            integer("limit", limit, at_least=1),
        )
        names = (keys.active, keys.pending, keys.dead)
        recovered, dead = await evaluate(self._wire, "stalled_check", names, values)
        return Swept([id.decode() for id in recovered], [id.decode() for id in dead])
