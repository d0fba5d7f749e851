"""Lanes: the pending set of one group each, and the operator's verbs over them.

Source: protocol section 4 (lanes: enqueue, gclaim, gwclaim, pause, resume, limit, weight, reassign, drain,
reap_group) and section 5 (a lane exists by having members). A group is a branded id of any namespace; `group_for`
makes one of any text.
"""

from __future__ import annotations

from typing import Any, Literal

from echomq_worker import identity
from echomq_worker.admission import New, admit_one, is_more
from echomq_worker.codec import encode
from echomq_worker.connector import Wire
from echomq_worker.guards import integer
from echomq_worker.identity import Mint, check_group, default_mint
from echomq_worker.keyspace import Keys
from echomq_worker.rows import Claimed, Progress, Receipt, checked
from echomq_worker.script import evaluate

Reassigned = Literal["reassigned", "noop", "not_found", "not_pending"]

_REASSIGNED: dict[int, Reassigned] = {1: "reassigned", 0: "noop", -1: "not_found", -2: "not_pending"}
_REAP_LIMIT = 100
_DRAINED_A_CALL = 200


class Lanes:
    """The verbs of lanes over any wire. Every verb raises InvalidQueueName, InvalidId for a group that is no branded
    id, and what `Connector.call` raises.
    """

    __slots__ = ("_mint", "_wire")

    def __init__(self, wire: Wire, *, mint: Mint | None = None) -> None:
        self._wire = wire
        self._mint = mint or default_mint()

    @staticmethod
    def group_for(text: str) -> str:
        """A stable branded id for a lane named by any text; the same in every process and release."""
        return identity.group_for(text)

    async def enqueue(
        self,
        queue: str,
        group: str,
        payload: object,
        *,
        id: str | None = None,
        dedup: str | None = None,
        dedup_ttl_ms: int | None = None,
        expires_in_ms: int | None = None,
        expires_at_ms: int | None = None,
    ) -> Receipt:
        """Admit a job to the group's lane. Raises InvalidId for a malformed group or id, and KindRefused.

        Dedup key and expiry are those of `New`: the key is one of the whole queue, not of the lane.
        """
        new = New(payload, id, check_group(group), None, None, dedup, dedup_ttl_ms, expires_in_ms, expires_at_ms)
        if is_more(new):
            return await admit_one(self._wire, queue, new, self._mint)
        keys, id = Keys(queue), self._mint.next() if id is None else id
        names = (keys.job(id), keys.lane(group), keys.ring, keys.paused, keys.glimit, keys.gactive, keys.wake)
        return Receipt(id, await evaluate(self._wire, "lane_enqueue", names, (id, encode(payload), group)) == 1)

    async def claim(self, queue: str, lease_ms: int) -> Claimed | None:
        """Take the head of the next lane on the ring under a lease of `lease_ms` (1 or more); None when none can serve.

        The plain verb: it serves no flat job, knows no pause of the queue and no ceiling, and counts no crash.
        """
        keys = Keys(queue)
        values = (keys.base, integer("lease_ms", lease_ms, at_least=1))
        reply = await evaluate(self._wire, "lane_claim", (keys.ring, keys.active), values)
        return _claimed(reply) if reply else None

    async def claim_weighted(self, queue: str, lease_ms: int) -> list[Claimed]:
        """Take as many heads of the next lane as its weight says, under one lease; [] when none can serve."""
        keys = Keys(queue)
        values = (keys.base, integer("lease_ms", lease_ms, at_least=1))
        reply = await evaluate(self._wire, "lane_claim_weighted", (keys.ring, keys.active), values)
        return [_claimed(one) for one in reply]

    async def pause(self, queue: str, group: str) -> None:
        """Serve the lane no more; its jobs wait, what is in hand goes on."""
        keys = Keys(queue)
        check_group(group)
        await evaluate(self._wire, "lane_pause", (keys.paused, keys.ring), (group,))

    async def resume(self, queue: str, group: str) -> None:
        """Serve the lane again."""
        keys = Keys(queue)
        check_group(group)
        names = (keys.paused, keys.ring, keys.glimit, keys.gactive, keys.wake)
        await evaluate(self._wire, "lane_resume", names, (keys.base, group))

    async def limit(self, queue: str, group: str, n: int | None) -> None:
        """At most `n` (0 or more) jobs of the lane in hand at a time, over all workers; None takes the limit away."""
        keys = Keys(queue)
        check_group(group)
        value = "" if n is None else str(integer("limit", n, at_least=0))
        names = (keys.glimit, keys.gactive, keys.ring, keys.paused, keys.wake)
        await evaluate(self._wire, "lane_limit", names, (keys.base, group, value))

    async def weight(self, queue: str, group: str, weight: int) -> None:
        """Serve `weight` (1 or more) jobs of the lane in its turn; 1 is what a lane has without."""
        keys = Keys(queue)
        check_group(group)
        await evaluate(self._wire, "lane_weight", (keys.gweight,), (group, integer("weight", weight, at_least=1)))

    async def reassign(self, queue: str, id: str, group: str) -> Reassigned:
        """Move a pending job, grouped or flat, to the lane of `group`, at its place in mint order."""
        keys = Keys(queue)
        names = (keys.job(id), keys.lane(group), keys.ring, keys.paused, keys.glimit, keys.gactive, keys.wake)
        return _REASSIGNED[await evaluate(self._wire, "lane_reassign", names, (id, group, keys.base))]

    async def drain(self, queue: str, group: str, *, progress: Progress | None = None) -> int:
        """Delete every waiting job of the lane; answers how many. What is in hand goes on; flow children count as
        dead.
        """
        keys = Keys(queue)
        names, total, count = (keys.base, keys.lane(group), keys.ring), 0, _DRAINED_A_CALL
        depth = 0 if progress is None else await self.depth(queue, group)
        while count == _DRAINED_A_CALL:
            count = int(await evaluate(self._wire, "lane_drain", names, (group,)))
            total += count
            if progress is not None:
                progress(total, max(depth, total))
        return total

    async def reap_group(self, queue: str, group: str, limit: int = _REAP_LIMIT) -> int:
        """Put expired leases of this lane, at most `limit`, back to it; answers how many."""
        keys = Keys(queue)
        check_group(group)
        values = (group, integer("limit", limit, at_least=1))
        return int(await evaluate(self._wire, "lane_reap", (keys.active, keys.base), values))

    async def depth(self, queue: str, group: str) -> int:
        """How many jobs wait in the group's lane."""
        return int(await self._wire.call("ZCARD", Keys(queue).lane(group)))

    async def depths(self, queue: str, groups: list[str]) -> dict[str, int]:
        """How many jobs wait in each lane, in one round trip."""
        keys = Keys(queue)
        replies = checked(await self._wire.pipeline([("ZCARD", keys.lane(group)) for group in groups]))
        return dict(zip(groups, replies, strict=True))


def _claimed(reply: list[Any]) -> Claimed:
    id, payload, attempts, group = reply
    return Claimed(id.decode(), payload, int(attempts), group.decode())
