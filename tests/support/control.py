"""The operator's verbs as any host sends them, over the package's own scripts and connector.

Source: protocol section 4 (keys and arguments), the headers of the scripts. Keys and arguments are written down here
once.
"""

from __future__ import annotations

from typing import Any

from tests.support.own import Own
from tests.support.plain import GROUP, OTHER_GROUP, State, job, row

PARENT = job(90)
CHILD = job(1)
REPEATS: State = {
    "repeat": {"daily": 5},
    "repeat:daily": {"every_ms": "1000", "template": "report"},
    "cron": {"nightly": 6, "weekly": 7},
    "repeat:nightly": {"cron": "0 3 * * *", "tz": "UTC", "template": "report"},
    "repeat:weekly": {"cron": "0 3 * * 0", "tz": "UTC", "template": "report"},
}


class Control(Own):
    """Verbs over a queue, a lane or one job, beside those of workers."""

    def lane_key(self, group: str) -> str:
        """The lane of a group, also of one that the key builder would refuse."""
        return f"{self.keys.base}g:{group}:pending"

    async def queue_pause(self) -> Any:
        """1."""
        return await self.run("queue_pause", (self.keys.meta,))

    async def queue_resume(self) -> Any:
        """1."""
        return await self.run("queue_resume", (self.keys.meta,))

    async def drain(self, *, schedule: bool = False) -> Any:
        """How many were taken out."""
        more = (self.keys.schedule,) if schedule else ()
        return await self.run("drain", (self.keys.base, self.keys.pending, *more))

    async def obliterate(self, *more: Any, force: bool = False, budget: Any = 100) -> Any:
        """0 done, 1 more; StateRefused. `more`: keep, then ids."""
        return await self.run("obliterate", (self.keys.meta, self.keys.base), "force" if force else "", budget, *more)

    async def remove_job(self, id: str, *how: str, dedup: str = "") -> Any:
        """1 removed, -1 gone; Locked, StateRefused."""
        keys = self.keys
        names = (self.row_key(id), keys.pending, keys.active, keys.schedule, keys.dead, f"{keys.base}de:{dedup}")
        return await self.run("remove_job", names, id, dedup, *how)

    async def reprocess(self, id: str, *how: str) -> Any:
        """1, -1 gone; StateRefused."""
        return await self.run("reprocess", (self.row_key(id), self.keys.dead, self.keys.pending), id, *how)

    async def update_data(self, id: str, payload: Any) -> Any:
        """1, -1 gone."""
        return await self.run("update_data", (self.row_key(id),), payload)

    async def lane_pause(self, group: str = GROUP) -> Any:
        """1."""
        return await self.run("lane_pause", (self.keys.paused, self.keys.ring), group)

    async def lane_resume(self, group: str = GROUP) -> Any:
        """1."""
        keys = self.keys
        names = (keys.paused, keys.ring, keys.glimit, keys.gactive, keys.wake)
        return await self.run("lane_resume", names, keys.base, group)

    async def lane_limit(self, n: Any, group: str = GROUP) -> Any:
        """1."""
        keys = self.keys
        names = (keys.glimit, keys.gactive, keys.ring, keys.paused, keys.wake)
        return await self.run("lane_limit", names, keys.base, group, n)

    async def lane_weight(self, w: Any, group: str = GROUP) -> Any:
        """1."""
        return await self.run("lane_weight", (self.keys.gweight,), group, w)

    async def lane_reassign(self, id: str, group: str = OTHER_GROUP) -> Any:
        """1 reassigned, 0 there already, -1 not found, -2 not pending."""
        keys = self.keys
        lane = (keys.ring, keys.paused, keys.glimit, keys.gactive, keys.wake)
        names = (self.row_key(id), self.lane_key(group), *lane)
        return await self.run("lane_reassign", names, id, group, keys.base)

    async def lane_drain(self, group: str = GROUP) -> Any:
        """How many were taken out."""
        return await self.run("lane_drain", (self.keys.base, self.lane_key(group), self.keys.ring), group)

    async def lane_reap(self, group: str = GROUP, limit: Any = 100) -> Any:
        """How many expired leases of the lane were looked at."""
        return await self.run("lane_reap", (self.keys.active, self.keys.base), group, limit)

    async def lane_claim_weighted(self, lease_ms: Any = 30_000) -> Any:
        """A list of id, payload, attempts, group."""
        return await self.run("lane_claim_weighted", (self.keys.ring, self.keys.active), self.keys.base, lease_ms)

    async def where(self, id: str, group: str = "") -> Any:
        """Set, state, complaint."""
        return await self.run("where", (self.row_key(id),), self.keys.base, id, group)

    async def mend(self, id: str, group: str = "", dedup: str = "") -> Any:
        """The complaint that was mended, or ''."""
        return await self.run("mend", (self.row_key(id),), self.keys.base, id, group, dedup)

    async def look_at_lanes(self, *groups: str) -> list[tuple[str, ...]]:
        """What recount would correct: group, key, what it has, what is right."""
        reply = await self.run("recount", (self.keys.active,), self.keys.base, 1_000, "look", *groups)
        return sorted(tuple(reply[first : first + 4]) for first in range(0, len(reply), 4))


def child(policy: str = "fp", *, state: str = "pending", queue: str = "", **fields: Any) -> dict[str, str]:
    """The row of a flow's child, of PARENT; `queue` is the parent's where it is another."""
    elsewhere = {"parent_queue": queue} if queue else {}
    return row(state, parent=PARENT, parent_policy=policy, **fields) | elsewhere


def waiting(out: int = 1, **fields: Any) -> State:
    """PARENT, which waits for so many children."""
    return {
        f"job:{PARENT}": row("awaiting_children", **fields),
        f"job:{PARENT}:dependencies": str(out),
    }
