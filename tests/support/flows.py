"""The verbs of flows as any host sends them, over the package's own scripts and connector; and states with parents.

Source: protocol sections 4 and 6 (keys and arguments), the headers of the scripts. Keys and arguments are written down
here once.
"""

from __future__ import annotations

from typing import Any

from echomq_worker.connector import Wire
from echomq_worker.flows import Node
from echomq_worker.keyspace import Keys
from echomq_worker.outbox import deliver
from tests.support.control import Control
from tests.support.plain import GROUP, OTHER_GROUP, QUEUE, State, job, row

UP = "up"
"""The queue of a parent that is elsewhere."""

NUL = "\0"
ROOT, LEFT, RIGHT, LEAF = job(1), job(2), job(3), job(4)
SUBKEYS = ("processed", "failed", "unsuccessful")


class FlowVerbs(Control):
    """The verbs of flows, and all others."""

    async def flow_add(self, parent: str, *pairs: Any, payload: Any = b"p", n: Any = None) -> Any:
        """How many children, 0 where a row stands; `pairs` are child id, payload, child id, payload …"""
        keys, ids = self.keys, pairs[::2]
        names = (self.row_key(parent), f"{self.row_key(parent)}:dependencies", keys.pending, *map(self.row_key, ids))
        return await self.run("flow_add", names, parent, payload, len(ids) if n is None else n, *pairs)

    async def flow_hold(self, parent: str, n: Any = 1, *fields: Any, payload: Any = b"p") -> Any:
        """1 held, 0 stands; StateRefused, KindRefused. `fields` are field, value, field, value …"""
        names = (self.row_key(parent), f"{self.row_key(parent)}:dependencies")
        return await self.run("flow_hold", names, parent, payload, n, *fields)

    async def flow_child(self, child: str, parent: str, *more: Any, queue: str = "", payload: Any = b"x") -> Any:
        """1 admitted, 0 stands; StateRefused, KindRefused. `more`: policy, group."""
        names = (self.row_key(child), self.keys.pending)
        return await self.run("flow_child", names, child, payload, parent, queue, *more)

    async def deliver(self, parent: str, child: str, result: Any = "r") -> Any:
        """1."""
        key = self.row_key(parent)
        names = (f"{key}:dependencies", f"{key}:processed", key)
        return await self.run("flow_deliver", names, child, result, parent, self.keys.base)

    async def deliver_death(self, parent: str, child: str, policy: str = "fp", error: Any = "boom") -> Any:
        """1."""
        key = self.row_key(parent)
        names = (f"{key}:dependencies", f"{key}:failed", f"{key}:unsuccessful", key)
        return await self.run("flow_deliver_death", names, child, error, policy, self.keys.base, parent)

    async def set_aside(self, *entries: Any) -> Any:
        """How many moved."""
        return await self.run("flow_set_aside", (self.keys.outbox, self.keys.malformed), *entries)


def completion(child: str, parent: str, result: str, *, queue: str = UP) -> str:
    """An entry of the outbox: the child is done."""
    return NUL.join((queue, parent, child, result))


def death(child: str, parent: str, error: str, *, policy: str = "fp", queue: str = UP) -> str:
    """An entry of the outbox: the child is dead."""
    return NUL.join(("", "fail", queue, parent, child, policy, error))


def parent_row(state: str, out: int, **fields: Any) -> State:
    """Job 90, a flow's parent, and its count."""
    return {f"job:{job(90)}": row(state, **fields), f"job:{job(90)}:dependencies": str(out)}


def of(state: State, id: str) -> State:
    """What of a state belongs to one job: its row and all that hangs on it."""
    return {name: value for name, value in state.items() if name.startswith(f"job:{id}")}


def tree() -> Node:
    """Three levels over three queues, every node with an id: root in `q`, a child in `mid` with a leaf in `low`, and a
    child beside the root.
    """
    leaf = Node("low", {"n": 4}, id=LEAF, policy="id", group=OTHER_GROUP)
    left = Node("mid", {"n": 2}, [leaf], id=LEFT, group=GROUP)
    return Node(QUEUE, {"n": 1}, [left, Node(QUEUE, "three", id=RIGHT)], id=ROOT)


async def pump(wire: Wire, queue: str) -> None:
    """Deliver what stands in the outbox of a queue."""
    keys = Keys(queue)
    await deliver(wire, keys, await wire.call("LRANGE", keys.outbox, 0, -1))
