"""Flows: a parent that waits for its children, in one queue or across queues.

Source: protocol section 6. A parent stands in `awaiting_children` outside every set. A child in the same queue reports
in the script that ends it; a child in another queue leaves an entry in its queue's outbox, which the Pump delivers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from echomq_worker import children
from echomq_worker.children import LEVELS, Branch, Dependencies
from echomq_worker.codec import encode
from echomq_worker.connector import Wire
from echomq_worker.errors import InvalidArgument, KindRefused, StateRefused
from echomq_worker.identity import JOB, Mint, check_group, check_id, default_mint
from echomq_worker.keyspace import Keys
from echomq_worker.outbox import BATCH as OUTBOX_BATCH
from echomq_worker.outbox import Delivery, Policy, deliver, parse_entry, telling
from echomq_worker.rows import Progress, checked
from echomq_worker.script import Call, evaluate_many

__all__ = [
    "LEVELS",
    "OUTBOX_BATCH",
    "Added",
    "Branch",
    "Delivery",
    "Dependencies",
    "Flows",
    "Node",
    "Policy",
    "check",
    "deliver",
    "parse_entry",
]

_CALLS_A_TRIP = 500
_COMMANDS_A_TRIP = 2_000

Command = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One job of a flow. With `children` it waits for them; `policy` is what its own death means to its parent: `fp`
    fails the parent, `id` is ignored and counts as done.
    """

    queue: str
    payload: object
    children: Sequence[Node] = ()
    id: str | None = None
    group: str | None = None
    policy: Policy = "fp"


@dataclass(frozen=True, slots=True)
class Added:
    """What became of a node. `admitted`: its row was made by this call; else it stood already, or has reported to its
    parent before. `children` are in the order of the node's.
    """

    queue: str
    id: str
    admitted: bool
    children: tuple[Added, ...] = ()


@dataclass(slots=True)
class _Placed:
    """A node on its way. `kin`: its children as its row names them; `stands` (alive), `reported`, `underway` (its
    report as the outbox has it): what was found of it.
    """

    node: Node
    id: str
    level: int
    parent: _Placed | None
    payload: bytes
    keys: Keys
    children: list[_Placed] = field(default_factory=list)
    kin: bytes = b""
    stands: bool = False
    reported: bool = False
    underway: Delivery | None = None
    admitted: bool = False

    @property
    def parent_queue(self) -> str:
        """Where the parent is, when it is elsewhere."""
        return self.parent.node.queue if self.parent is not None and self.parent.node.queue != self.node.queue else ""

    @property
    def minted(self) -> bool:
        """Whether the id was made just now: nobody knows it yet."""
        return self.node.id is None


class Flows:
    """Adding flows, and reading what children have reported. Raises what `Connector.call` raises."""

    __slots__ = ("_mint", "_wire")

    def __init__(self, wire: Wire, *, mint: Mint | None = None) -> None:
        self._wire = wire
        self._mint = mint or default_mint()

    async def add(self, root: Node) -> Added:
        """Add a tree of at most 8 levels; the root has children. See `add_bulk`."""
        return (await self.add_bulk([root]))[0]

    async def add_bulk(self, roots: Sequence[Node], *, progress: Progress | None = None) -> list[Added]:
        """Add several trees, a round trip per level for all of them. Parents are held before children are admitted.

        With ids of the caller's own for every node it is idempotent: a producer that died half-way simply adds again,
        what stands is left, and a child that has reported is not run again (as long as its parent is there). Raises
        InvalidArgument (no children, too deep, an id twice), InvalidId, InvalidQueueName, KindRefused before anything
        is sent; StateRefused for a row that names another parent or other children, nothing of the call being admitted.
        `progress` is told how many nodes are done, of how many.
        """
        trees, everything = _placed(roots, self._mint)
        await self._look(everything)
        done = 0
        for level in range(LEVELS):
            these = [one for one in everything if one.level == level]
            await self._follow(these)
            new = [one for one in these if not (one.stands or one.reported)]
            done += len(these) - len(new)
            if progress is not None and these:
                progress(done, len(everything))
            for start in range(0, len(new), _CALLS_A_TRIP):
                some = new[start : start + _CALLS_A_TRIP]
                replies = checked(await evaluate_many(self._wire, [_call(placed) for placed in some]))
                for placed, reply in zip(some, replies, strict=True):
                    placed.admitted = reply == 1
                done += len(some)
                if progress is not None:
                    progress(done, len(everything))
        return [_added(tree) for tree in trees]

    async def children_values(self, queue: str, parent: str) -> dict[str, object]:
        """What the parent's children have returned, by child id: JSON decoded, else text, else bytes.

        A child that returned nothing has its own id there.
        """
        return await children.values(self._wire, Keys(queue), parent)

    async def dependencies(self, queue: str, parent: str) -> Dependencies:
        """How the parent's children stand; not a snapshot."""
        return await children.dependencies(self._wire, Keys(queue), parent)

    async def ignored_failures(self, queue: str, parent: str) -> dict[str, str]:
        """Why the children that died under policy `id` died, by child id."""
        return await children.ignored_failures(self._wire, Keys(queue), parent)

    async def tree(self, queue: str, id: str, *, limit: int = 100) -> Branch | None:
        """A job and everything below it, as far as rows and reports tell; see `children.tree`."""
        return await children.tree(self._wire, Keys(queue), id, limit=limit)

    async def _look(self, everything: Sequence[_Placed]) -> None:
        """Find what stands already, and what has reported; StateRefused for a row that is not this flow's."""
        look = _Look([placed for placed in everything if not placed.minted])
        replies: list[Any] = []
        for start in range(0, len(look.commands), _COMMANDS_A_TRIP):
            replies += checked(await self._wire.pipeline(look.commands[start : start + _COMMANDS_A_TRIP]))
        look.read(replies)

    async def _follow(self, level: Sequence[_Placed]) -> None:
        """What was found of these counts as far as their parents go on, which is known now.

        Of what an earlier parent was told one that was made anew has not heard: of its children those that were found
        are looked for again, now that whatever they report reaches it. A report that stands in the outbox may have been
        delivered to the earlier one, by a Pump that is about to take it out: it is told here, too.
        """
        again: list[_Placed] = []
        for placed in level:
            parent = placed.parent
            if parent is not None and parent.admitted and (placed.stands or placed.reported):
                placed.stands = placed.reported = False
                again.append(placed)
            elif parent is not None and parent.reported:
                placed.reported = True
        if again:
            await self._look(again)
        told = [placed.underway for placed in level if placed.underway is not None]
        for start in range(0, len(told), _CALLS_A_TRIP):
            calls = [telling(report) for report in told[start : start + _CALLS_A_TRIP]]
            checked(await evaluate_many(self._wire, calls))


def check(roots: Sequence[Node]) -> None:
    """Raise what `add_bulk` raises before anything is sent."""
    _placed(roots, default_mint())


def _placed(roots: Sequence[Node], mint: Mint) -> tuple[list[_Placed], list[_Placed]]:
    """The trees, and all of their nodes, parents before their children."""
    trees = [_place(root, None, mint) for root in roots]
    everything = [placed for tree in trees for placed in _walk(tree)]
    if len({placed.id for placed in everything}) < len(everything):
        raise InvalidArgument("flow: an id stands twice in it, expected each once")
    for placed in everything:
        placed.kin = _kin(placed)
    return trees, everything


def _place(node: Node, parent: _Placed | None, mint: Mint) -> _Placed:
    level = 0 if parent is None else parent.level + 1
    if level >= LEVELS:
        raise InvalidArgument(f"flow: deeper than {LEVELS} levels")
    if parent is None and not node.children:
        raise InvalidArgument("flow: the root has no children, expected one or more")
    if node.policy not in {"fp", "id"}:
        raise InvalidArgument(f"flow: policy {ascii(node.policy)[:20]}: expected 'fp' or 'id'")
    if node.group is not None:
        check_group(node.group)
    id = mint.next() if node.id is None else check_id(node.id)
    if not id.startswith(JOB):
        raise KindRefused(f"EMQKIND job id must be JOB-namespaced: {id}")
    placed = _Placed(node, id, level, parent, encode(node.payload), Keys(node.queue))
    placed.children = [_place(child, placed, mint) for child in node.children]
    return placed


class _Look:
    """What is asked of the server before anything is added.

    The order makes it safe while workers run: of a child first the row, then the outbox, then what its parent has
    heard, and only then the parent's row. Whatever ends meanwhile is seen where it went.
    """

    def __init__(self, known: Sequence[_Placed]) -> None:
        self.commands: list[Command] = []
        self._rows: list[tuple[_Placed, int]] = []
        self._heard: list[tuple[_Placed, int]] = []
        self._outboxes: dict[tuple[int, str], int] = {}
        for level in sorted({placed.level for placed in known}, reverse=True):
            these = [placed for placed in known if placed.level == level]
            for placed in these:
                self._rows.append((placed, self._ask(_row_of(placed))))
            for keys in {one.node.queue: one.keys for one in these if one.parent_queue}.values():
                self._outboxes[level, keys.queue] = self._ask(("LRANGE", keys.outbox, 0, -1))
            for placed in these:
                self._heard += [(placed, self._ask(command)) for command in _heard_of(placed)]

    def read(self, replies: Sequence[Any]) -> None:
        """File what was found. Raises StateRefused."""
        underway = {place: _reports(replies[at]) for place, at in self._outboxes.items()}
        for placed, at in self._heard:
            placed.reported = placed.reported or bool(replies[at])
        for placed, at in self._rows:
            parent = placed.parent
            if parent is not None and placed.parent_queue:
                reports = underway[placed.level, placed.node.queue]
                placed.underway = reports.get((placed.parent_queue, parent.id, placed.id))
                placed.reported = placed.reported or placed.underway is not None
            found = any(value is not None for value in replies[at])
            if found and not placed.reported:
                _check_row(placed, *replies[at][:3])
            # A child that is dead without its parent knowing is admitted again, so that the parent is told.
            placed.stands = found and replies[at][3] != b"dead"

    def _ask(self, command: Command) -> int:
        self.commands.append(command)
        return len(self.commands) - 1


def _row_of(placed: _Placed) -> Command:
    return "HMGET", placed.keys.job(placed.id), "parent", "parent_queue", "children", "state", "attempts", "payload"


def _heard_of(placed: _Placed) -> list[Command]:
    """What the parent may have heard of a child."""
    if placed.parent is None:
        return []
    keys, id = placed.parent.keys, placed.parent.id
    names = (keys.processed_children(id), keys.failed_children(id), keys.unsuccessful_children(id))
    return [("HEXISTS", name, placed.id) for name in names]


def _reports(entries: Sequence[bytes]) -> dict[tuple[str, str, str], Delivery]:
    """What an outbox holds, by parent's queue, parent and child."""
    told = [report for report in map(parse_entry, entries) if report is not None]
    return {(report.parent_queue, report.parent, report.child): report for report in told}


def _check_row(placed: _Placed, parent: bytes | None, parent_queue: bytes | None, kin: bytes | None) -> None:
    """A row that stands must be the one that the flow means: the same parent, and the same children."""
    expected = None if placed.parent is None else placed.parent.id.encode()
    if parent != expected or (parent_queue or b"").decode("utf-8", "replace") != placed.parent_queue:
        raise StateRefused(f"EMQSTATE flow row names another parent: {placed.id} in {placed.node.queue}")
    fresh = kin is None and any(child.minted for child in placed.children)
    if placed.children and (fresh or (kin is not None and kin != placed.kin)):
        raise StateRefused(f"EMQSTATE flow row has other children: {placed.id} in {placed.node.queue}")


def _call(placed: _Placed) -> Call:
    node, parent, keys = placed.node, placed.parent, placed.keys
    if not placed.children:
        parent_id = parent.id if parent is not None else ""
        values = (placed.id, placed.payload, parent_id, placed.parent_queue, node.policy, node.group or "")
        return "flow_child", (keys.job(placed.id), keys.pending), values
    fields: list[str | bytes] = ["children", placed.kin]
    if parent is not None:
        fields += ["parent", parent.id, "parent_policy", node.policy]
        if placed.parent_queue:
            fields += ["parent_queue", placed.parent_queue]
    if node.group is not None:
        fields += ["group", node.group]
    held = (placed.id, placed.payload, len(placed.children), *fields)
    return "flow_hold", (keys.job(placed.id), keys.dependencies(placed.id)), held


def _kin(placed: _Placed) -> bytes:
    """The children as the row keeps them: JSON, ids by queue, in one order whatever that of the node's is."""
    by_queue: dict[str, list[str]] = {}
    for queue, id in sorted((child.node.queue, child.id) for child in placed.children):
        by_queue.setdefault(queue, []).append(id)
    return json.dumps(by_queue, separators=(",", ":")).encode()


def _walk(placed: _Placed) -> Iterator[_Placed]:
    yield placed
    for child in placed.children:
        yield from _walk(child)


def _added(placed: _Placed) -> Added:
    return Added(placed.node.queue, placed.id, placed.admitted, tuple(_added(child) for child in placed.children))
