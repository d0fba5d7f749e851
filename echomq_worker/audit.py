"""Audit: what in a queue does not agree with the rest, and a repair of it as a step of its own.

Source: issue "Every control" (the audit), protocol section 4 (what a foreign worker leaves behind). It looks at every
key of the queue in bounded steps while the queue is served; whatever looks wrong then is looked at once more in one
script, so that a job which has only moved meanwhile is no finding.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from echomq_worker import outbox
from echomq_worker.connector import Wire
from echomq_worker.keyspace import Keys
from echomq_worker.rows import Progress, checked
from echomq_worker.scan import keys_like, members_of
from echomq_worker.script import Call, evaluate, evaluate_many

T = TypeVar("T")

Kind = Literal[
    "row_in_no_set",
    "id_without_row",
    "two_sets",
    "subkeys_without_row",
    "nothing_out",
    "death_not_reported",
    "dedup_without_row",
    "gactive",
    "ring",
    "lanes_not_checked",
    "malformed_entry",
]
"""What is wrong.

`row_in_no_set`: a job that nobody will ever claim. `id_without_row`: a member of a set whose row is gone. `two_sets`:
an id in two sets. `subkeys_without_row`: what hung on a row that is gone. `nothing_out`: a parent that waits, with no
child out. `death_not_reported`: a dead child whose parent waits for it. `dedup_without_row`: a key that holds an id
without a row. `gactive`, `ring`: a lane's counter or ring entry. `lanes_not_checked`: more jobs in hand than one look
may count. `malformed_entry`: an entry of the flow outbox that nobody can deliver.
"""

LANES_LIMIT = 10_000
"""Jobs in hand, counters and ring entries up to which lanes are checked: some 30 ms of the server."""

_PAGE = 500
_LANES_A_CALL = 1_000
_ROW = re.compile(rb"job:([^:]+)(:.+)?", re.DOTALL)
_LANE = re.compile(rb"g:([^:]+):pending", re.DOTALL)
_MENDED = frozenset(
    {"row_in_no_set", "id_without_row", "two_sets", "subkeys_without_row", "nothing_out", "dedup_without_row"}
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `name` is the id, the group, or the dedup key; `detail` says more, for a person.

    The rest is for the repair: the lane in which an id was seen, the id that a dedup key holds, an entry as it is.
    """

    kind: Kind
    name: str
    detail: str = ""
    lane: str = ""
    id: str = ""
    entry: bytes = b""


@dataclass(slots=True)
class _Seen:
    """What the scan has found: where each id is (a bit for the row, each set, a lane, what hangs on it), the lane of
    those that are in one, the lanes, and the dedup keys.
    """

    places: dict[bytes, int] = field(default_factory=dict)
    in_lane: dict[bytes, bytes] = field(default_factory=dict)
    lanes: set[bytes] = field(default_factory=set)
    dedup: list[bytes] = field(default_factory=list)

    def at(self, id: bytes, place: int) -> None:
        """The id is there too."""
        self.places[id] = self.places.get(id, 0) | place


_IS_ROW, _IS_LANE, _HANGS_ON = 1, 32, 64
_WELL = {_IS_ROW | place | behind for place in (2, 4, 8, 16, _IS_LANE) for behind in (0, _HANGS_ON)}


class Audit:
    """The audit of queues over any wire. Raises InvalidQueueName, and what `Connector.call` raises."""

    __slots__ = ("_wire",)

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def audit(self, queue: str, *, progress: Progress | None = None) -> list[Finding]:
        """Everything that is wrong with a queue; [] when all agrees. Nothing is written."""
        keys = Keys(queue)
        seen = await self._scan(keys, progress)
        return [
            *await self._jobs(keys, seen),
            *await self._deaths(keys),
            *await self._dedup_keys(keys, seen),
            *await self._lanes(keys, seen),
            *await self._malformed(keys),
        ]

    async def repair(
        self, queue: str, findings: Sequence[Finding], *, progress: Progress | None = None
    ) -> list[Finding]:
        """Mend what `audit` has found, each thing only where it is still wrong; answers what was mended.

        A job in no set runs again or is dead, as its row says; of two sets the right one stays; a parent that waits for
        nobody runs; a death that was not reported is; counters and the ring are made from the sets; what has no row
        goes; a malformed entry is set aside in `flow:outbox:malformed`.
        """
        keys = Keys(queue)
        single = [one for one in findings if one.kind in _MENDED]
        mended: list[Finding] = []
        for page in _paged(single, _PAGE):
            replies = checked(await evaluate_many(self._wire, [_mending(keys, one) for one in page]))
            mended += [one for one, said in zip(page, replies, strict=True) if said]
            if progress is not None:
                progress(len(mended), len(findings))
        lanes = [one for one in findings if one.kind in {"gactive", "ring"}]
        for page in _paged(lanes, _LANES_A_CALL):
            if await self._recount(keys, "", [_raw(one.name) for one in page]) != -1:
                mended += page
        entries = [one for one in findings if one.entry]
        for page in _paged(entries, outbox.BATCH):
            await outbox.deliver(self._wire, keys, [one.entry for one in page])
            mended += page
        return mended

    async def _scan(self, keys: Keys, progress: Progress | None) -> _Seen:
        seen, looked = _Seen(), 0
        async for page in keys_like(self._wire, f"{keys.base}*"):
            for key in page:
                _file(seen, key[len(keys.base) :])
            looked += len(page)
            if progress is not None:
                progress(looked, looked)
        for bit, name in enumerate(("active", "pending", "schedule", "dead"), 1):
            async for members in members_of(self._wire, f"{keys.base}{name}"):
                for id in members:
                    seen.at(id, 1 << bit)
        for lane in seen.lanes:
            async for members in members_of(self._wire, _key(keys, b"g:%b:pending", lane)):
                for id in members:
                    seen.at(id, _IS_LANE)
                    seen.in_lane[id] = lane
        return seen

    async def _jobs(self, keys: Keys, seen: _Seen) -> list[Finding]:
        found: list[Finding] = []
        suspects = [id for id, place in seen.places.items() if place not in _WELL]
        for page in _paged(suspects, _PAGE):
            calls = [("where", (_key(keys, b"job:%b", id),), (keys.base, id, seen.in_lane.get(id, b""))) for id in page]
            for id, reply in zip(page, checked(await evaluate_many(self._wire, calls)), strict=True):
                place, state, complaint = map(_text, reply)
                if complaint:
                    detail = f"row: {state or 'none'}, set: {place or 'none'}"
                    found.append(Finding(_kind(complaint), _text(id), detail, lane=_text(seen.in_lane.get(id, b""))))
        return found

    async def _deaths(self, keys: Keys) -> list[Finding]:
        """Dead children whose parent still waits, and has neither heard of them nor will."""
        children: list[tuple[bytes, list[bytes]]] = []
        async for members in members_of(self._wire, keys.dead):
            names = ("parent", "parent_queue", "parent_policy", "last_error")
            rows = checked(await self._wire.pipeline([("HMGET", _key(keys, b"job:%b", id), *names) for id in members]))
            children += [(id, row) for id, row in zip(members, rows, strict=True) if row[0]]
        underway = {entry.child for entry in await self._entries(keys) if isinstance(entry, outbox.Delivery)}
        entries = [_death(keys, id, row) for id, row in children if _text(id) not in underway]
        told = [(entry, death) for entry in entries if (death := outbox.parse_entry(entry)) is not None]
        found: list[Finding] = []
        for page in _paged(told, _PAGE):
            asked = [command for _, death in page for command in _heard(death)]
            replies = checked(await self._wire.pipeline(asked))
            for (entry, death), (state, *heard) in zip(page, _paged(replies, 4), strict=True):
                if state == b"awaiting_children" and not any(heard):
                    found.append(Finding("death_not_reported", death.child, f"parent: {death.parent}", entry=entry))
        return found

    async def _dedup_keys(self, keys: Keys, seen: _Seen) -> list[Finding]:
        found: list[Finding] = []
        for page in _paged(seen.dedup, _PAGE):
            ids = checked(await self._wire.pipeline([("GET", _key(keys, b"de:%b", name)) for name in page]))
            held = [(name, id) for name, id in zip(page, ids, strict=True) if id is not None]
            rows = checked(await self._wire.pipeline([("EXISTS", _key(keys, b"job:%b", id)) for _, id in held]))
            found += [
                Finding("dedup_without_row", _text(name), f"id: {_text(id)}", id=_text(id))
                for (name, id), row in zip(held, rows, strict=True)
                if not row
            ]
        return found

    async def _lanes(self, keys: Keys, seen: _Seen) -> list[Finding]:
        found: dict[tuple[str, str], Finding] = {}
        # Once without any: what the counters and the ring name is looked at in each call.
        for page in _paged(sorted(seen.lanes), _LANES_A_CALL) or [[]]:
            reply = await self._recount(keys, "look", page)
            if reply == -1:
                return [Finding("lanes_not_checked", keys.queue, f"more than {LANES_LIMIT} in hand or on the ring")]
            words = iter(map(_text, reply))
            for group, key, stored, right in zip(words, words, words, words, strict=True):
                found[group, key] = Finding(_kind(key), group, f"{key} has {stored}, expected {right}")
        return list(found.values())

    async def _malformed(self, keys: Keys) -> list[Finding]:
        return [
            Finding("malformed_entry", str(number), f"{len(entry)} bytes", entry=entry)
            for number, entry in enumerate(await self._entries(keys))
            if isinstance(entry, bytes)
        ]

    async def _entries(self, keys: Keys) -> list[bytes | outbox.Delivery]:
        """The outbox: what each entry says, or the entry itself where nobody can read it."""
        entries: list[bytes] = []
        while page := await self._wire.call("LRANGE", keys.outbox, len(entries), len(entries) + _PAGE - 1):
            entries += page
        return [outbox.parse_entry(entry) or entry for entry in entries]

    async def _recount(self, keys: Keys, look: str, lanes: Sequence[bytes]) -> Any:
        return await evaluate(self._wire, "recount", (keys.active,), (keys.base, LANES_LIMIT, look, *lanes))


def _file(seen: _Seen, name: bytes) -> None:
    """Sort a key, its queue taken off, into what was seen."""
    if match := _ROW.fullmatch(name):
        seen.at(match[1], _HANGS_ON if match[2] else _IS_ROW)
    elif match := _LANE.fullmatch(name):
        seen.lanes.add(match[1])
    elif name.startswith(b"de:"):
        seen.dedup.append(name[3:])


def _mending(keys: Keys, one: Finding) -> Call:
    """The script call that mends one id, or a dedup key."""
    id = _raw(one.id or one.name)
    key = _raw(one.name) if one.kind == "dedup_without_row" else b""
    return "mend", (_key(keys, b"job:%b", id),), (keys.base, id, _raw(one.lane), key)


def _death(keys: Keys, id: bytes, row: Sequence[bytes | None]) -> bytes:
    """The outbox entry that reports a dead child (protocol section 6)."""
    parent, queue, policy, error = row
    return b"\0".join(
        [
            b"",
            b"fail",
            queue or keys.queue.encode(),
            parent or b"",
            id,
            b"id" if policy == b"id" else b"fp",
            error or b"",
        ]
    )


def _heard(death: outbox.Delivery) -> list[tuple[str, ...]]:
    """What to ask of a parent: its state, and in which of its hashes the child is."""
    keys = Keys(death.parent_queue)
    hashes = (keys.processed_children, keys.failed_children, keys.unsuccessful_children)
    return [
        ("HGET", keys.job(death.parent), "state"),
        *(("HEXISTS", name(death.parent), death.child) for name in hashes),
    ]


def _key(keys: Keys, form: bytes, name: bytes) -> bytes:
    """A key of the queue, also for a name that the key builder would refuse."""
    return keys.base.encode() + form % name


def _kind(word: str) -> Kind:
    """A script's word for what is wrong."""
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    return kinds[word]


def _paged(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[first : first + size] for first in range(0, len(items), size)]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
