"""Our own verbs as the worker sends them, over the package's own scripts and connector; the plain ones beside them.

Source: protocol section 4 (claim, settle, release, disown, keep), the headers of the scripts. Keys and arguments are
written down here once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from echomq_worker.connector import Wire
from tests.support.plain import GROUP, QUEUE, Plain, State, job, row

LEASE_MS = 30_000
_STRIDE = 6


@dataclass(frozen=True, slots=True)
class Taken:
    """One job of a claim's reply; `held` is what fences it from here on."""

    id: str
    payload: str | None
    token: int
    group: str
    failures: int
    crashes: int
    held: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim's reply: the number that the next claim carries, why it ended, jobs, ids that were buried, and which jobs
    are children of flows.
    """

    number: int
    why: str
    random: str
    jobs: list[Taken]
    buried: dict[str, str]
    kin: list[str]

    @property
    def ids(self) -> list[str]:
        """The ids of the jobs, in order."""
        return [job.id for job in self.jobs]


class Own(Plain):
    """Our verbs, and the plain ones, on one queue."""

    def __init__(self, wire: Wire, queue: str = QUEUE) -> None:
        super().__init__(wire, queue)
        self._read: dict[str, int] = {}

    async def claim_many(
        self,
        n: int = 10,
        *,
        read: int | None = None,
        random: str = "ab",
        consumer: str = "c",
        lease_ms: Any = LEASE_MS,
        max_crashes: int = 5,
        suspects: int = 1,
    ) -> Claim:
        """A claim for `n` free slots; `read` is the number of the last reply that was read, each is unless given."""
        keys = self.keys
        declared = (keys.pending, keys.active, keys.ring, keys.meta, keys.receipt(consumer))
        last = self._read.get(consumer, 0) if read is None else read
        reply = await self.run("claim_many", declared, keys.base, lease_ms, n, last, random, max_crashes, suspects)
        number, why, whose, flat, buried, kin = reply
        self._read[consumer] = number
        jobs = []
        for at in range(0, len(flat), _STRIDE):
            id, payload, token, group, failures, crashes = flat[at : at + _STRIDE]
            jobs.append(Taken(id, payload, int(token), group, int(failures), crashes, f"{int(token)}:{whose}"))
        return Claim(number, why, whose, jobs, dict(zip(buried[::2], buried[1::2], strict=True)), kin)

    async def settle(self, *verdicts: tuple[Any, ...]) -> list[str]:
        """An answer per verdict; see `complete`, `retry`, `delay` of this module."""
        keys = (self.keys.active, self.keys.pending, self.keys.schedule, self.keys.dead)
        answers: list[str] = await self.run("settle", keys, self.keys.base, *(word for one in verdicts for word in one))
        return answers

    async def release(self, *pairs: Any) -> Any:
        """An answer per pair; `pairs` are id, held, id, held …"""
        return await self.run("release", (self.keys.active, self.keys.pending), self.keys.base, *pairs)

    async def disown(self, *pairs: Any) -> Any:
        """An answer per pair."""
        return await self.run("disown", (self.keys.active,), self.keys.base, *pairs)

    async def keep(self, *pairs: Any, lease_ms: Any = LEASE_MS) -> Any:
        """Those that could not be extended: id, reason, id, reason …"""
        return await self.run("keep", (self.keys.active,), self.keys.base, lease_ms, *pairs)

    async def look(self, n: int = 10) -> Any:
        """How many jobs a claim could take now, at most n."""
        keys = self.keys
        return await self.run("look", (keys.pending, keys.active, keys.ring, keys.meta), keys.base, n)

    async def repeat_fire(self, now_ms: Any, *pairs: Any) -> Any:
        """An answer per pair, then the lowest next run; `pairs` are name, job id, name, job id …"""
        return await self.run("repeat_fire", (self.keys.repeat, self.keys.pending), self.keys.base, now_ms, *pairs)

    async def cron_fire(self, now_ms: Any, *words: Any) -> Any:
        """An answer per name, then the lowest next run; `words` are name, job id, due, next, cron, tz, name …"""
        return await self.run("cron_fire", (self.keys.cron, self.keys.pending), self.keys.base, now_ms, *words)

    async def recount(self, limit: int = 1_000) -> Any:
        """How many corrections, -1 above the limit."""
        return await self.run("recount", (self.keys.active,), self.keys.base, limit)


def complete(id: str, held: Any, group: str = "") -> tuple[Any, ...]:
    """The job is done."""
    return "c", id, held, group


def retry(
    id: str, held: Any, group: str = "", *, delay_ms: Any = 1_000, max_attempts: Any = 3, error: str = "boom"
) -> tuple[Any, ...]:
    """The handler failed."""
    return "r", id, held, group, delay_ms, max_attempts, error


def delay(id: str, held: Any, group: str = "", *, mode: str = "in", value: Any = 1_000) -> tuple[Any, ...]:
    """Back to the schedule, not a failure."""
    return "d", id, held, group, mode, value


def merged(*states: State) -> State:
    """One state of several: dicts and lists under the same key are joined."""
    whole: dict[str, Any] = {}
    for state in states:
        for name, value in state.items():
            known = whole.get(name)
            if isinstance(known, dict) and isinstance(value, dict):
                whole[name] = known | value
            elif isinstance(known, list) and isinstance(value, list):
                whole[name] = known + value
            else:
                whole[name] = value
    return whole


def flat(*numbers: int, **fields: Any) -> State:
    """Jobs in flat pending."""
    return {f"job:{job(n)}": row(**fields) for n in numbers} | {"pending": {job(n): 0 for n in numbers}}


def lane(*numbers: int, group: str = GROUP, on_ring: bool = True, **fields: Any) -> State:
    """Jobs in the lane of a group, which is on the ring."""
    rows: State = {f"job:{job(n)}": row(group=group, **fields) for n in numbers}
    members: State = {f"g:{group}:pending": {job(n): 0 for n in numbers}} if numbers else {}
    return rows | members | ({"ring": [group]} if on_ring else {})
