"""Flows: a parent that waits for its children, in one queue or across queues, and the delivery of what they report.

Source: protocol section 6. A parent stands in `awaiting_children` outside every set. A child in the same queue
reports in the script that ends it; a child in another queue leaves an entry in its queue's outbox, which the Pump
delivers on the parent's slot and only then removes: a crash in between delivers again, harmlessly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from echomq_worker import rows
from echomq_worker.codec import encode
from echomq_worker.connector import Wire
from echomq_worker.errors import EchoMQError, InvalidArgument, InvalidId, InvalidQueueName
from echomq_worker.identity import Mint, check_id, default_mint
from echomq_worker.keyspace import Keys
from echomq_worker.script import Call, evaluate_many

LEVELS = 8
OUTBOX_BATCH = 100

Policy = Literal["fp", "id"]
"""What a child's death means to its parent: `fp` fails the parent with it, `id` ignores it and counts it as done."""

_NUL = b"\0"


@dataclass(frozen=True, slots=True)
class Node:
    """One job of a flow. With `children` it waits for them; `policy` is what its own death means to its parent."""

    queue: str
    payload: object
    children: Sequence[Node] = ()
    id: str | None = None
    group: str | None = None
    policy: Policy = "fp"


@dataclass(frozen=True, slots=True)
class Added:
    """A node that was added, with its id; `children` in the order of the node's."""

    queue: str
    id: str
    children: tuple[Added, ...] = ()


@dataclass(frozen=True, slots=True)
class Dependencies:
    """How a parent's children stand: `out` have not counted yet; ids of those done, dead, and dead but ignored."""

    out: int
    processed: list[str]
    failed: list[str]
    ignored: list[str]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One entry of an outbox. `death` is None for a completion, else the policy."""

    parent_queue: str
    parent: str
    child: str
    text: bytes
    death: Policy | None = None


@dataclass(slots=True)
class _Placed:
    """A node on its way to the server."""

    node: Node
    id: str
    level: int
    parent: _Placed | None
    payload: bytes
    children: list[_Placed] = field(default_factory=list)
    skipped: bool = False


class Flows:
    """Adding flows, and reading what children have reported. Raises what `Connector.call` raises."""

    __slots__ = ("_mint", "_wire")

    def __init__(self, wire: Wire, *, mint: Mint | None = None) -> None:
        self._wire = wire
        self._mint = mint or default_mint()

    async def add(self, root: Node) -> Added:
        """Add a tree of at most 8 levels; the root has children. See `add_bulk`."""
        return (await self.add_bulk([root]))[0]

    async def add_bulk(self, roots: Sequence[Node]) -> list[Added]:
        """Add several trees, a round trip or two per level for all of them.

        Parents are held before their children are admitted. With ids of the caller's own it is idempotent: a producer
        that died half-way simply adds again, what stands is left and a child that has reported is not run again. Raises
        InvalidArgument (no children, too deep, an id twice), InvalidId, InvalidQueueName before anything is sent;
        KindRefused, and StateRefused for a row that names another parent.
        """
        trees = [self._place(root) for root in roots]
        everything = [placed for tree in trees for placed in _walk(tree)]
        ids = [(placed.node.queue, placed.id) for placed in everything]
        if len(set(ids)) < len(ids):
            raise InvalidArgument("flow: an id stands twice in it, expected each once")
        for level in range(max((placed.level for placed in everything), default=0) + 1):
            await self._add_level([placed for placed in everything if placed.level == level])
        return [_added(tree) for tree in trees]

    async def children_values(self, queue: str, parent: str) -> dict[str, object]:
        """What the parent's children have returned, by child id: JSON decoded, anything else as text."""
        flat = await self._wire.call("HGETALL", Keys(queue).processed_children(parent))
        return {id.decode(): _value(text) for id, text in zip(flat[::2], flat[1::2], strict=True)}

    async def dependencies(self, queue: str, parent: str) -> Dependencies:
        """How the parent's children stand; not a snapshot."""
        keys = Keys(queue)
        names = (keys.processed_children(parent), keys.failed_children(parent), keys.unsuccessful_children(parent))
        replies = await self._wire.pipeline([("GET", keys.dependencies(parent)), *(("HKEYS", name) for name in names)])
        out, *lists = rows.checked(replies)
        return Dependencies(max(0, int(out or 0)), *([id.decode() for id in ids] for ids in lists))

    async def ignored_failures(self, queue: str, parent: str) -> dict[str, str]:
        """Why the children that died under policy `id` died, by child id."""
        flat = await self._wire.call("HGETALL", Keys(queue).unsuccessful_children(parent))
        return {id.decode(): text.decode("utf-8", "replace") for id, text in zip(flat[::2], flat[1::2], strict=True)}

    def _place(self, node: Node, parent: _Placed | None = None) -> _Placed:
        level = 0 if parent is None else parent.level + 1
        if level >= LEVELS:
            raise InvalidArgument(f"flow: deeper than {LEVELS} levels")
        if parent is None and not node.children:
            raise InvalidArgument("flow: the root has no children, expected one or more")
        if node.policy not in {"fp", "id"}:
            raise InvalidArgument(f"flow: policy {ascii(node.policy)[:20]}: expected 'fp' or 'id'")
        Keys(node.queue)
        if node.group is not None:
            check_id(node.group)
        id = self._mint.next() if node.id is None else check_id(node.id)
        placed = _Placed(node, id, level, parent, encode(node.payload))
        placed.children = [self._place(child, placed) for child in node.children]
        return placed

    async def _add_level(self, level: Sequence[_Placed]) -> None:
        await self._skip_reported(level)
        fresh = [placed for placed in level if not placed.skipped]
        for start in range(0, len(fresh), 500):
            rows.checked(await evaluate_many(self._wire, [_call(placed) for placed in fresh[start : start + 500]]))

    async def _skip_reported(self, level: Sequence[_Placed]) -> None:
        """Mark the nodes that are not to run again: those that their parent has heard of, and all below them."""
        asked: list[tuple[_Placed, tuple[str, str, str]]] = []
        for placed in level:
            parent = placed.parent
            if parent is None:
                continue
            placed.skipped = parent.skipped
            # An id that was minted just now cannot have reported.
            if placed.node.id is not None and not parent.skipped:
                keys = Keys(parent.node.queue)
                asked.append((placed, ("HEXISTS", keys.processed_children(parent.id), placed.id)))
                asked.append((placed, ("HEXISTS", keys.failed_children(parent.id), placed.id)))
                asked.append((placed, ("HEXISTS", keys.unsuccessful_children(parent.id), placed.id)))
        if asked:
            replies = rows.checked(await self._wire.pipeline([command for _, command in asked]))
            for (placed, _), reply in zip(asked, replies, strict=True):
                placed.skipped = placed.skipped or bool(reply)


def parse_entry(entry: bytes) -> Delivery | None:
    """What an outbox entry says, or None for one that nobody can deliver (protocol section 6)."""
    try:
        if entry.startswith(b"\0fail\0"):
            _, _, queue, parent, child, policy, text = entry.split(_NUL, 6)
            if policy not in {b"fp", b"id"}:
                return None
            death: Policy | None = "id" if policy == b"id" else "fp"
        else:
            queue, parent, child, text = entry.split(_NUL, 3)
            death = None
        Keys(queue.decode())
        return Delivery(queue.decode(), check_id(parent.decode()), check_id(child.decode()), text, death)
    except (ValueError, InvalidId, InvalidQueueName):
        return None


async def deliver(wire: Wire, keys: Keys, entries: Sequence[bytes]) -> int:
    """Deliver entries of the outbox of `keys` to their parents, then remove exactly those; answers how many.

    Two Pumps may read the same ones: what is delivered twice counts once. A malformed entry is set aside in a list of
    its own. Raises WireError, ServerError with what was not delivered still in the outbox.
    """
    parsed = [(entry, parse_entry(entry)) for entry in entries]
    good = [(entry, delivery) for entry, delivery in parsed if delivery is not None]
    replies = await evaluate_many(wire, [_delivery_call(delivery) for _, delivery in good])
    done = [entry for (entry, _), reply in zip(good, replies, strict=True) if not isinstance(reply, EchoMQError)]
    bad = [entry for entry, delivery in parsed if delivery is None]
    removals: list[tuple[Any, ...]] = [("LREM", keys.outbox, 1, entry) for entry in done]
    for entry in bad:
        removals += [("RPUSH", f"{keys.outbox}:malformed", entry), ("LREM", keys.outbox, 1, entry)]
    if removals:
        rows.checked(await wire.pipeline(removals))
    rows.checked(replies)
    return len(done)


def _delivery_call(one: Delivery) -> Call:
    keys = Keys(one.parent_queue)
    dependencies, row = keys.dependencies(one.parent), keys.job(one.parent)
    if one.death is None:
        names: tuple[str, ...] = (dependencies, keys.processed_children(one.parent), row)
        return "flow_deliver", names, (one.child, one.text, one.parent, keys.base)
    names = (dependencies, keys.failed_children(one.parent), keys.unsuccessful_children(one.parent), row)
    return "flow_deliver_death", names, (one.child, one.text, one.death, keys.base, one.parent)


def _call(placed: _Placed) -> Call:
    node, parent = placed.node, placed.parent
    keys = Keys(node.queue)
    elsewhere = parent is not None and parent.node.queue != node.queue
    parent_queue = parent.node.queue if parent is not None and elsewhere else ""
    if not placed.children:
        group = node.group or ""
        values = (placed.id, placed.payload, parent.id if parent else "", parent_queue, node.policy, group)
        return "flow_child", (keys.job(placed.id), keys.pending), values
    fields: list[str] = []
    if parent is not None:
        fields += ["parent", parent.id, "parent_policy", node.policy]
        if parent_queue:
            fields += ["parent_queue", parent_queue]
    if node.group is not None:
        fields += ["group", node.group]
    values_held = (placed.id, placed.payload, len(placed.children), *fields)
    return "flow_hold", (keys.job(placed.id), keys.dependencies(placed.id)), values_held


def _walk(placed: _Placed) -> Iterator[_Placed]:
    yield placed
    for child in placed.children:
        yield from _walk(child)


def _added(placed: _Placed) -> Added:
    return Added(placed.node.queue, placed.id, tuple(_added(child) for child in placed.children))


def _value(text: bytes) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode("utf-8", "replace")
