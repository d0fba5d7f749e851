"""Lanes: admission to the lane of a group, and the plain claim that serves the ring.

Source: protocol section 4 (lanes: enqueue; gclaim) and section 5 (a lane exists by having members).
"""

from __future__ import annotations

from echomq_worker import identity
from echomq_worker.codec import encode
from echomq_worker.connector import Wire
from echomq_worker.guards import integer
from echomq_worker.identity import Mint, default_mint
from echomq_worker.keyspace import Keys
from echomq_worker.rows import Claimed, Receipt
from echomq_worker.script import evaluate


class Lanes:
    """The verbs of lanes over any wire. A group is a branded id of any namespace; `group_for` makes one of any text."""

    __slots__ = ("_mint", "_wire")

    def __init__(self, wire: Wire, *, mint: Mint | None = None) -> None:
        self._wire = wire
        self._mint = mint or default_mint()

    @staticmethod
    def group_for(text: str) -> str:
        """A stable branded id for a lane named by any text; the same in every process and release."""
        return identity.group_for(text)

    async def enqueue(self, queue: str, group: str, payload: object, *, id: str | None = None) -> Receipt:
        """Admit a job to the group's lane. Raises InvalidId for a malformed group or id, and KindRefused."""
        keys, id = Keys(queue), self._mint.next() if id is None else id
        names = (
            *(keys.job(id), keys.lane(group), keys.ring, keys.paused),
            *(keys.glimit, keys.gactive, keys.wake),
        )
        return Receipt(id, await evaluate(self._wire, "lane_enqueue", names, (id, encode(payload), group)) == 1)

    async def claim(self, queue: str, lease_ms: int) -> Claimed | None:
        """Take the head of the next lane on the ring under a lease of `lease_ms` (1 or more); None when none can serve.

        The plain verb: it serves no flat job, knows no pause of the queue and no ceiling, and counts no crash.
        """
        keys = Keys(queue)
        values = (keys.base, integer("lease_ms", lease_ms, at_least=1))
        reply = await evaluate(self._wire, "lane_claim", (keys.ring, keys.active), values)
        if not reply:
            return None
        id, payload, attempts, group = reply
        return Claimed(id.decode(), payload, int(attempts), group.decode())

    async def depth(self, queue: str, group: str) -> int:
        """How many jobs wait in the group's lane."""
        return int(await self._wire.call("ZCARD", Keys(queue).lane(group)))
