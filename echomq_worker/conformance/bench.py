"""The bench: what one scenario works with. Queues of its own with a random name, their whole state as plain values, and
the list of all that it may have written, so that it can be purged.

Source: protocol section 1 (the key table). Nothing is scanned and nothing flushed: the server may be somebody's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from echomq_worker.clock import Clock, SystemClock
from echomq_worker.conformance.checks import Between
from echomq_worker.connector import Connector, Wire, connect
from echomq_worker.degraded import Degraded, Outage
from echomq_worker.identity import JOB, Mint
from echomq_worker.jobs import Jobs
from echomq_worker.keyspace import Keys
from echomq_worker.lanes import Lanes
from echomq_worker.logs import get_logger
from echomq_worker.pool import Pool, connect_pool
from echomq_worker.pump import Pump
from echomq_worker.rows import checked, now_ms
from echomq_worker.twins import SCRIPTS, Spoken

GROUP = "GRP0conforma01"
OTHER_GROUP = "GRP0conforma02"
LEASE_MS = 30_000

_BEAT_MS = 1_000
_CHUNK = 500
_PASSING = ("ready", "wake", "kept")
_READERS: dict[bytes, tuple[str, tuple[str, ...]]] = {
    b"string": ("GET", ()),
    b"hash": ("HGETALL", ()),
    b"zset": ("ZRANGE", ("0", "-1", "WITHSCORES")),
    b"list": ("LRANGE", ("0", "-1")),
    b"set": ("SMEMBERS", ()),
}

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """The server, and how to speak to it."""

    url: str
    wire_version: str = "echomq:3.0.0"
    connect_timeout_ms: int = 5_000
    command_timeout_ms: int = 5_000
    wire: Literal["4", "6", "auto"] = "4"


class SetClock(SystemClock):
    """A host's clock that stands at the moment that it was set to, or goes on by a step with each look."""

    __slots__ = ("_step_ms", "at_ms")

    def __init__(self, at_ms: int, *, step_ms: int = 0) -> None:
        self.at_ms = at_ms
        self._step_ms = step_ms

    def now_ms(self) -> int:
        """Ms since 1970."""
        self.at_ms += self._step_ms
        return self.at_ms


class RecordingMint(Mint):
    """Mints ids and keeps them."""

    __slots__ = ("minted",)

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.minted: list[str] = []

    def next(self, namespace: str = JOB) -> str:
        """A new id, greater than all before."""
        id = super().next(namespace)
        self.minted.append(id)
        return id


class Bench:
    """One scenario's place: `wire` for its verbs, queues that nobody else knows."""

    __slots__ = ("_desks", "mint", "tag", "target", "wire")

    def __init__(self, target: Target, wire: Wire, tag: str) -> None:
        self.target = target
        self.wire = wire
        self.tag = tag
        self.mint = RecordingMint()
        self._desks: dict[str, Desk] = {}

    @property
    def spoken(self) -> Spoken:
        """What the verbs of this scenario are sent as."""
        spoken: Spoken = getattr(self.wire, "spoken", Spoken(SCRIPTS))
        return spoken

    def queue(self, name: str = "a") -> Desk:
        """The queue of this scenario that goes by that name."""
        if name not in self._desks:
            self._desks[name] = Desk(self, f"{self.tag}.{name}")
        return self._desks[name]

    @asynccontextmanager
    async def connector(self, *, wire_version: str | None = None) -> AsyncIterator[Connector]:
        """Another connection to the same server."""
        target = self.target
        async with connect(
            target.url,
            wire_version=wire_version or target.wire_version,
            wire=target.wire,
            connect_timeout_ms=target.connect_timeout_ms,
            command_timeout_ms=target.command_timeout_ms,
            name=self.tag,
        ) as connector:
            yield connector

    @asynccontextmanager
    async def pool(self, size: int) -> AsyncIterator[Pool]:
        """A pool of connections to the same server."""
        target = self.target
        async with connect_pool(
            target.url,
            size=size,
            wire_version=target.wire_version,
            wire=target.wire,
            connect_timeout_ms=target.connect_timeout_ms,
            command_timeout_ms=target.command_timeout_ms,
            name=self.tag,
        ) as pool:
            yield pool

    async def purge(self) -> None:
        """Delete every key that a verb of the protocol can have written for this scenario."""
        for desk in self._desks.values():
            names = list(desk.names())
            for start in range(0, len(names), _CHUNK):
                await self.wire.call("UNLINK", *names[start : start + _CHUNK])


class Desk:
    """One queue of a scenario. Its state is told in short names, those of the key table without `emq:{q}:`."""

    __slots__ = ("_bench", "_extra", "_groups", "jobs", "keys", "lanes", "name", "wire")

    def __init__(self, bench: Bench, name: str) -> None:
        self._bench = bench
        self._groups = [GROUP, OTHER_GROUP]
        self._extra: set[str] = set()
        self.name = name
        self.wire = bench.wire
        self.keys = Keys(name)
        self.jobs = Jobs(bench.wire, mint=bench.mint)
        self.lanes = Lanes(bench.wire, mint=bench.mint)

    def id(self) -> str:
        """A new job id, later than all before."""
        return self._bench.mint.next()

    def group(self, text: str) -> str:
        """The lane of that text."""
        group = Lanes.group_for(text)
        self._groups.append(group)
        return group

    def pump(self, clock: Clock | None = None) -> Pump:
        """A Pump of this queue, on that host's clock; `beat` it."""
        clock = clock or SystemClock()
        degraded = Degraded("pump", outage=Outage(clock=clock, log=get_logger()), beat_ms=_BEAT_MS)
        mint = self._bench.mint
        return Pump(
            self.wire, self.keys, clock=clock, mint=mint, tick_ms=_BEAT_MS, promote_batch=100, degraded=degraded
        )

    def owns(self, *short_names: str) -> None:
        """Keys that no id and no lane stands for: a receipt, a dedup key, a record. They are read and purged too."""
        self._extra.update(short_names)

    async def add(self, payload: object = b"x") -> str:
        """Enqueue one flat job; its id."""
        return (await self.jobs.enqueue(self.name, payload)).id

    async def add_to_lane(self, group: str = GROUP, payload: object = b"x") -> str:
        """Enqueue one job of a lane; its id."""
        return (await self.lanes.enqueue(self.name, group, payload)).id

    async def lose_lease(self, *ids: str) -> None:
        """As if the leases had run out long ago."""
        await self.wire.call("ZADD", self.keys.active, "XX", *(word for id in ids for word in (1, id)))

    async def come_due(self, *ids: str) -> None:
        """As if the run-at of scheduled jobs had come."""
        await self.wire.call("ZADD", self.keys.schedule, "XX", *(word for id in ids for word in (1, id)))

    async def now_ms(self) -> int:
        """The server's clock."""
        return await now_ms(self.wire, self.keys)

    async def lease_since(self, before_ms: int, lease_ms: int = LEASE_MS) -> Between:
        """The deadline of a lease that was taken since then."""
        return Between(before_ms + lease_ms, await self.now_ms() + lease_ms)

    async def put(self, short_name: str, command: str, *words: str | bytes | float) -> Any:
        """Write a key as a foreign client might: `put("pending", "ZADD", 0, id)`."""
        return await self.wire.call(command, self.keys.base + short_name, *words)

    async def read(self, short_name: str) -> Any:
        """One key's value, as `state` has it; None where there is none."""
        return (await self._read([self.keys.base + short_name])).get(short_name)

    async def state(self, *, tokens: bool = False) -> State:
        """Every key of the queue: text, list, set, hash as dict, zset as {member: score}; payloads as text.

        Readiness tokens, receipts and what says that locks may stand only with `tokens`.
        """
        found = await self._read(list(self.names()))
        if tokens:
            return found
        return {name: value for name, value in found.items() if not (name in _PASSING or name.startswith("claimed:"))}

    def names(self) -> Iterator[str]:
        """The keys that this queue may have, all those of the key table."""
        keys = self.keys
        single = (name for name in Keys.__slots__ if name not in {"queue", "base"})
        yield from (getattr(keys, name) for name in single)
        yield from (keys.lane(group) for group in dict.fromkeys(self._groups))
        yield from (keys.base + name for name in self._extra)
        for id in self._bench.mint.minted:
            yield from (keys.job(id), keys.logs(id), keys.lock(id), keys.dependencies(id))
            yield from (keys.processed_children(id), keys.failed_children(id), keys.unsuccessful_children(id))

    async def _read(self, names: Sequence[str]) -> State:
        types = checked(await self.wire.pipeline([("TYPE", name) for name in names]))
        there = [(name, kind) for name, kind in zip(names, types, strict=True) if kind != b"none"]
        commands = [(_READERS[kind][0], name, *_READERS[kind][1]) for name, kind in there]
        values = checked(await self.wire.pipeline(commands)) if commands else []
        return {
            name.removeprefix(self.keys.base): _plain(kind, value)
            for (name, kind), value in zip(there, values, strict=True)
            if value is not None and value != []
        }


def row(state: str = "pending", attempts: int = 0, payload: str | None = "x", **fields: str | int) -> dict[str, str]:
    """A row as `Desk.state` shows it; `payload=None` leaves it out."""
    known = {"state": state, "attempts": str(attempts)} | ({} if payload is None else {"payload": payload})
    return known | {name: str(value) for name, value in fields.items()}


def without(state: Mapping[str, Any], *names: str) -> State:
    """The state with some keys left out."""
    return {name: value for name, value in state.items() if name not in names}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


_PLAIN: dict[bytes, Callable[[Any], Any]] = {
    b"string": _text,
    b"hash": lambda flat: {_text(key): _text(value) for key, value in zip(flat[::2], flat[1::2], strict=True)},
    b"zset": lambda flat: {_text(member): float(score) for member, score in zip(flat[::2], flat[1::2], strict=True)},
    b"list": lambda items: [_text(item) for item in items],
    b"set": lambda members: {_text(member) for member in members},
}


def _plain(kind: bytes, value: Any) -> Any:
    return _PLAIN[kind](value)
