"""Calls that tell the parents of flows, for test_touch: of each key that they may use one in turn cannot be used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.flows import UP, FlowVerbs, completion
from tests.support.own import complete, retry
from tests.support.plain import FAR_MS, GROUP, State, job, row

CHILD, PARENT, TOP = job(1), job(90), job(91)
ROW, MIDDLE, HIGH, LANE = f"job:{CHILD}", f"job:{PARENT}", f"job:{TOP}", f"g:{GROUP}:pending"

NAMES = [HIGH, *(f"{HIGH}:{name}" for name in ("dependencies", "processed", "failed", "unsuccessful"))]

# Three levels in this queue: a death fails the middle one, which releases the highest into its lane.
TREE: State = {
    MIDDLE: row("awaiting_children", parent=TOP, parent_policy="id", dedup="k"),
    f"{MIDDLE}:dependencies": "1",
    HIGH: row("awaiting_children", group=GROUP, parent=job(92), parent_queue=UP),
    f"{HIGH}:dependencies": "1",
    "de:k": PARENT,
}
# The same, and the death goes on to another queue.
FAILING: State = TREE | {MIDDLE: row("awaiting_children", parent=TOP, parent_policy="fp")}
IN_HAND: State = {ROW: row("active", 3, parent=PARENT), "active": {CHILD: FAR_MS}}
EXPIRED: State = {ROW: row("active", 3, parent=PARENT), "active": {CHILD: 1}}
POISON: State = {ROW: row(attempts=3, held="3:ab", crashes="2:3", parent=PARENT), "pending": {CHILD: 0}}
ELSEWHERE: State = {ROW: row("active", 3, parent=PARENT, parent_queue=UP), "active": {CHILD: FAR_MS}}
LAST: State = {MIDDLE: row("awaiting_children", group=GROUP), f"{MIDDLE}:dependencies": "1"}
FLAT: State = {MIDDLE: row("awaiting_children"), f"{MIDDLE}:dependencies": "1"}
STALE: State = {f"{MIDDLE}:{name}": {CHILD: "x"} for name in ("processed", "failed", "unsuccessful")}

Verb = Callable[[FlowVerbs], Awaitable[Any]]
CASES: dict[str, tuple[State, Verb]] = {
    "flow_add": (STALE, lambda flow: flow.flow_add(PARENT, CHILD, "x", job(2), "y")),
    "flow_hold": (STALE, lambda flow: flow.flow_hold(PARENT, 2, "group", GROUP)),
    "flow_child": ({}, lambda flow: flow.flow_child(CHILD, PARENT)),
    "flow_child of a group": ({}, lambda flow: flow.flow_child(CHILD, PARENT, "id", GROUP, queue=UP)),
    "flow_deliver": (LAST, lambda flow: flow.deliver(PARENT, CHILD)),
    "flow_deliver to a flat parent": (FLAT, lambda flow: flow.deliver(PARENT, CHILD)),
    "flow_deliver_death": (TREE, lambda flow: flow.deliver_death(PARENT, CHILD)),
    "flow_deliver_death that goes on": (FAILING, lambda flow: flow.deliver_death(PARENT, CHILD)),
    "flow_deliver_death that is ignored": (LAST, lambda flow: flow.deliver_death(PARENT, CHILD, "id")),
    "flow_set_aside": (
        {"flow:outbox": ["x", completion(CHILD, PARENT, "1")]},
        lambda flow: flow.set_aside("x", "gone", completion(CHILD, PARENT, "1")),
    ),
    "complete of a child": (IN_HAND | LAST, lambda flow: flow.complete(CHILD, 3)),
    "complete of a child elsewhere": (ELSEWHERE, lambda flow: flow.complete(CHILD, 3)),
    "retry of a child to death": (IN_HAND | TREE, lambda flow: flow.retry(CHILD, 3, max_attempts=1)),
    "retry of a child elsewhere to death": (ELSEWHERE, lambda flow: flow.retry(CHILD, 3, max_attempts=1)),
    "settle c of a child": (IN_HAND | LAST, lambda flow: flow.settle(complete(CHILD, 3))),
    "settle r of a child to death": (IN_HAND | FAILING, lambda flow: flow.settle(retry(CHILD, 3, max_attempts=1))),
    "settle v of a child elsewhere": (ELSEWHERE, lambda flow: flow.settle(("v", CHILD, 3, "", "r"))),
    "stalled_check of a child to death": (EXPIRED | FAILING, lambda flow: flow.stalled_check(1)),
    "claim_many that buries a child": (POISON | TREE, lambda flow: flow.claim_many(max_crashes=3)),
}
