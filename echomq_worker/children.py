"""Children: what a flow's parent can read of them, and what a child leaves for it.

Source: protocol section 6 (`:dependencies`, `:processed`, `:failed`, `:unsuccessful`). Plain reads of a parent's keys;
a handler asks through its `Job`, anybody else through `Flows`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from echomq_worker import codec
from echomq_worker.connector import Wire
from echomq_worker.errors import InvalidId, InvalidQueueName
from echomq_worker.identity import check_id, is_branded
from echomq_worker.keyspace import Keys
from echomq_worker.rows import checked

LEVELS = 8

_TEXT = "utf-8", "replace"
# What `_asked` asks of one job.
_READS = 5


@dataclass(frozen=True, slots=True)
class Dependencies:
    """How a parent's children stand, by id: `out` of them have not counted yet, the others are done, dead, or dead but
    ignored. A dead child is not counted: it stays among those that are out.
    """

    out: int
    processed: list[str]
    failed: list[str]
    ignored: list[str]


@dataclass(slots=True)
class Branch:
    """A job of a flow and what hangs on it.

    `state` is its row's; `done`, `dead` or `ignored` is what it has told its parent; `gone`: neither row nor word, as
    while a report is on its way. `said`: its result or why it died. `out`: how many children a parent waits for, None
    for no parent. `children` are those that are known, `hidden` more are not shown.
    """

    queue: str
    id: str
    state: str
    said: str | None = None
    out: int | None = None
    children: list[Branch] = field(default_factory=list)
    hidden: int = 0


def written(value: object) -> bytes | None:
    """What a handler returned, as its job's parent gets it: JSON, bytes as they are, None for None (nothing to tell).

    Raises InvalidArgument for what has no JSON form; see `codec.encode`.
    """
    if value is None:
        return None
    if isinstance(value, str):
        # As JSON, so that the parent reads the text that it was.
        value = [value]
        return codec.encode(value, what="result")[1:-1]
    return codec.encode(value, what="result")


def read(text: bytes) -> object:
    """A stored result: JSON decoded, else as text, else as the bytes that it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


async def values(wire: Wire, keys: Keys, parent: str) -> dict[str, object]:
    """What the parent's children have returned, by child id; a child that returned nothing has its id there."""
    flat = await wire.call("HGETALL", keys.processed_children(parent))
    return {id.decode(*_TEXT): read(text) for id, text in zip(flat[::2], flat[1::2], strict=True)}


async def ignored_failures(wire: Wire, keys: Keys, parent: str) -> dict[str, str]:
    """Why the children died whose death is ignored (policy `id`), by child id."""
    flat = await wire.call("HGETALL", keys.unsuccessful_children(parent))
    return {id.decode(*_TEXT): text.decode(*_TEXT) for id, text in zip(flat[::2], flat[1::2], strict=True)}


async def dependencies(wire: Wire, keys: Keys, parent: str) -> Dependencies:
    """How the parent's children stand; not a snapshot."""
    names = (keys.processed_children(parent), keys.failed_children(parent), keys.unsuccessful_children(parent))
    replies = await wire.pipeline([("GET", keys.dependencies(parent)), *(("HKEYS", name) for name in names)])
    out, *lists = checked(replies)
    return Dependencies(_count(out), *([id.decode(*_TEXT) for id in ids] for ids in lists))


async def tree(wire: Wire, keys: Keys, id: str, *, limit: int = 100) -> Branch | None:
    """A job and everything below it, at most `limit` children of each parent; None when the job has no row.

    A parent of another producer does not name its children: then those are shown that have reported. Not a snapshot.
    """
    root = Branch(keys.queue, check_id(id), "")
    level = [root]
    for _ in range(LEVELS):
        replies = checked(await wire.pipeline([command for branch in level for command in _asked(branch)]))
        for at, branch in enumerate(level):
            _fill(branch, limit, *replies[_READS * at : _READS * (at + 1)])
        level = [child for branch in level for child in branch.children if _has_row(child)]
        if not level:
            break
    return None if root.state == "gone" else root


def _count(out: bytes | None) -> int:
    """How many are out; a count that is none, or that others have counted below zero, is over."""
    return max(0, codec.count_of(out))


def _has_row(child: Branch) -> bool:
    return child.state != "done" and is_branded(child.id)


def _asked(branch: Branch) -> list[tuple[Any, ...]]:
    keys, id = Keys(branch.queue), branch.id
    told = (keys.failed_children(id), keys.unsuccessful_children(id), keys.processed_children(id))
    row = ("HMGET", keys.job(id), "state", "last_error", "children")
    return [row, ("GET", keys.dependencies(id)), *(("HGETALL", name) for name in told)]


def _fill(branch: Branch, limit: int, row: Sequence[bytes | None], out: bytes | None, *told: list[bytes]) -> None:
    state, error, kin = row
    if not branch.state:
        branch.state = "gone" if state is None else state.decode(*_TEXT)
        branch.said = None if error is None else error.decode(*_TEXT)
    branch.out = None if out is None else _count(out)
    known: dict[str, Branch] = {}
    # A child that is dead may have completed all the same: that comes last and stands.
    for name, flat in zip(("dead", "ignored", "done"), told, strict=True):
        for raw, text in zip(flat[::2], flat[1::2], strict=True):
            known[raw.decode(*_TEXT)] = Branch(branch.queue, raw.decode(*_TEXT), name, text.decode(*_TEXT))
    for queue, child in _named(kin):
        one = known.setdefault(child, Branch(queue, child, ""))
        one.queue = queue
    ids = sorted(known)
    branch.children = [known[child] for child in ids[:limit]]
    branch.hidden = len(ids) - len(branch.children)


def _named(kin: bytes | None) -> Iterator[tuple[str, str]]:
    """Queue and id of each child that a parent's row names; nothing of what nobody could have written there."""
    try:
        by_queue = json.loads(kin or b"{}")
        for queue, ids in by_queue.items():
            for child in ids:
                yield Keys(queue).queue, check_id(child)
    except (ValueError, TypeError, AttributeError, RecursionError, InvalidId, InvalidQueueName):
        return
