"""The plain verbs as any host sends them, over the package's own scripts and connector; and the state of one queue.

Source: protocol section 4 (keys and arguments of each verb). Tests of scripts call these, so that keys and arguments
are written down once; a refusal raises as its class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis.asyncio import Redis

from echomq_worker.connector import Wire
from echomq_worker.keyspace import FENCE_KEY, Keys
from echomq_worker.script import evaluate
from tests.support.keyspace import keyspace_of

QUEUE = "q"
GROUP = "GRP00000000001"
OTHER_GROUP = "GRP00000000002"
FAR_MS = 4_000_000_000_000
"""A run-at or deadline that no test lives to see (2096)."""

State = dict[str, Any]


def job(number: int, namespace: str = "JOB") -> str:
    """A branded id; of two numbers the greater one gives the later id, in byte order and so in mint order."""
    return f"{namespace}{number:011d}"


def row(state: str = "pending", attempts: int = 0, payload: str | None = "x", **fields: str | int) -> dict[str, str]:
    """A row as the keyspace shows it; `payload=None` leaves it out."""
    known = {"state": state, "attempts": str(attempts)} | ({} if payload is None else {"payload": payload})
    return known | {name: str(value) for name, value in fields.items()}


class Within:
    """Equal to any number of low..high: a time that was read between two readings of the server's clock."""

    def __init__(self, low: float, high: float) -> None:
        self.low = low
        self.high = high

    __hash__ = None  # type: ignore[assignment]  # equal to many numbers, so it can have no hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and self.low <= other <= self.high

    def __repr__(self) -> str:
        return f"Within({self.low:.0f}, {self.high:.0f})"


class Queue:
    """One queue on the server: its whole state, put there and read back under short names, and the server's clock."""

    def __init__(self, raw: Redis, queue: str = QUEUE) -> None:
        self.raw = raw
        self.keys = Keys(queue)

    async def state(self) -> State:
        """Every key of the server but the fence, names of this queue without their `emq:{q}:`."""
        found: State = dict(await keyspace_of(self.raw))
        found.pop(FENCE_KEY, None)
        return {name.removeprefix(self.keys.base): value for name, value in found.items()}

    async def put(self, state: Mapping[str, Any]) -> None:
        """Write keys under their short names: dict of numbers is a zset, dict of text a hash; list, set, text."""
        pipe = self.raw.pipeline(transaction=False)
        for name, value in state.items():
            key: Any = self.keys.base + name
            if isinstance(value, dict) and all(isinstance(item, int | float) for item in value.values()):
                pipe.zadd(key, value)
            elif isinstance(value, dict):
                pipe.hset(key, mapping=value)
            elif isinstance(value, list):
                pipe.rpush(key, *value)
            elif isinstance(value, set):
                pipe.sadd(key, *value)
            else:
                pipe.set(key, value)
        await pipe.execute()

    async def now_ms(self) -> int:
        """The server's clock."""
        seconds, micros = await self.raw.time()
        return int(seconds) * 1000 + int(micros) // 1000


class Plain:
    """The plain verbs on one queue. Replies are as the wire has them, text decoded."""

    def __init__(self, wire: Wire, queue: str = QUEUE) -> None:
        self._wire = wire
        self.keys = Keys(queue)

    async def run(self, name: str, keys: tuple[str, ...], *values: Any) -> Any:
        """Any script of the package."""
        return _text(await evaluate(self._wire, name, keys, values))

    def row_key(self, id: str) -> str:
        """The row's key, also of an id that the key builder would refuse."""
        return f"{self.keys.base}job:{id}"

    async def enqueue(self, id: str, payload: Any = b"x") -> Any:
        """1 admitted, 0 duplicate; KindRefused."""
        return await self.run("enqueue", (self.row_key(id), self.keys.pending), id, payload)

    async def schedule(self, id: str, payload: Any = b"x", *, mode: str = "in", value: Any = 0) -> Any:
        """1 admitted, 0 duplicate; KindRefused."""
        return await self.run("schedule", (self.row_key(id), self.keys.schedule), id, payload, mode, value)

    async def claim(self, lease_ms: int = 30_000) -> Any:
        """Nothing, or id, payload, attempts."""
        return await self.run("claim", (self.keys.pending, self.keys.active), f"{self.keys.base}job:", lease_ms)

    async def claim_batch(self, size: int, lease_ms: int = 30_000) -> Any:
        """A list of id, payload, attempts."""
        keys = (self.keys.pending, self.keys.active)
        return await self.run("claim_batch", keys, f"{self.keys.base}job:", lease_ms, size)

    async def complete(self, id: str, token: Any) -> Any:
        """1 completed, 0 gone; Stale."""
        return await self.run("complete", (self.keys.active, self.row_key(id)), id, token, self.keys.base)

    async def retry(
        self, id: str, token: Any, *, delay_ms: Any = 1_000, max_attempts: Any = 3, error: str = "boom"
    ) -> Any:
        """`scheduled` or `dead`; Stale, Gone."""
        keys = (self.keys.active, self.keys.schedule, self.keys.dead, self.row_key(id))
        return await self.run("retry", keys, id, token, delay_ms, max_attempts, error, self.keys.base)

    async def delay(self, id: str, token: Any, *, mode: str = "in", value: Any = 1_000) -> Any:
        """1 delayed; Stale, Gone, KindRefused."""
        keys = (self.row_key(id), self.keys.active, self.keys.schedule)
        return await self.run("delay", keys, id, token, mode, value)

    async def promote(self, batch: int = 100) -> Any:
        """How many due ids were selected."""
        return await self.run("promote", (self.keys.schedule, self.keys.pending), self.keys.base, batch)

    async def reap(self) -> Any:
        """How many expired leases were selected."""
        return await self.run("reap", (self.keys.active, self.keys.pending), self.keys.base)

    async def stalled_check(self, max_stalled: int = 1, limit: int = 100) -> Any:
        """Recovered ids, dead ids."""
        keys = (self.keys.active, self.keys.pending, self.keys.dead)
        return await self.run("stalled_check", keys, self.keys.base, max_stalled, limit)

    async def extend_lock(self, id: str, token: Any, lease_ms: int = 30_000) -> Any:
        """1 extended, 0 not active, -1 gone; Stale."""
        return await self.run("extend_lock", (self.keys.active, self.row_key(id)), id, token, lease_ms)

    async def extend_locks(self, *pairs: Any, lease_ms: int = 30_000) -> Any:
        """The ids that could not be extended; `pairs` are id, token, id, token …"""
        return await self.run("extend_locks", (self.keys.active,), self.keys.base, lease_ms, *pairs)

    async def lane_enqueue(self, id: str, group: str = GROUP, payload: Any = b"x") -> Any:
        """1 admitted, 0 duplicate; KindRefused."""
        lane = f"{self.keys.base}g:{group}:pending"
        keys = (self.row_key(id), lane, self.keys.ring, self.keys.paused, self.keys.glimit, self.keys.gactive)
        return await self.run("lane_enqueue", (*keys, self.keys.wake), id, payload, group)

    async def lane_claim(self, lease_ms: int = 30_000) -> Any:
        """Nothing, or id, payload, attempts, group."""
        return await self.run("lane_claim", (self.keys.ring, self.keys.active), self.keys.base, lease_ms)

    async def enqueue_many(self, *pairs: Any) -> Any:
        """A verdict per pair; `pairs` are id, payload, id, payload …"""
        return await self.run("enqueue_many", (self.keys.pending,), self.keys.base, *pairs)

    async def admit_many(self, *values: Any) -> Any:
        """A verdict per job; five values each: id, payload, group, mode, value; without dedup key and expiry."""
        jobs = [values[at : at + 5] for at in range(0, len(values), 5)]
        return await self.admit_all(*((*one, "", "", "") for one in jobs))

    async def admit_all(self, *jobs: Sequence[Any]) -> Any:
        """A verdict per job; eight values each: id, payload, group, mode, value, dedup key, its ttl, expires."""
        values = [value for one in jobs for value in one]
        return await self.run("admit_many", (self.keys.pending, self.keys.schedule), self.keys.base, *values)

    async def repeat_register(self, name: str, every_ms: Any, template: Any, first_at: Any, *flags: str) -> Any:
        """1 registered, 0 exists, 2 updated."""
        keys = (self.keys.repeat, self.keys.repeat_record(name))
        return await self.run("repeat_register", keys, name, every_ms, template, first_at, *flags)

    async def cron_register(self, name: str, cron: str, tz: str, template: Any, first_at: Any, *flags: str) -> Any:
        """1 registered, 0 exists, 2 updated."""
        keys = (self.keys.cron, self.keys.repeat_record(name), self.keys.repeat)
        return await self.run("cron_register", keys, name, cron, tz, template, first_at, *flags)

    async def repeat_cancel(self, name: str) -> Any:
        """1 cancelled, 0 there was none."""
        return await self.run("repeat_cancel", (self.keys.repeat, self.keys.repeat_record(name)), name)

    async def repeat_advance(self, name: str, next_at: Any) -> Any:
        """1 advanced, 0 absent."""
        return await self.run("repeat_advance", (self.keys.repeat, self.keys.repeat_record(name)), name, next_at)


def _text(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "surrogateescape")
    if isinstance(reply, list):
        return [_text(item) for item in reply]
    return reply
