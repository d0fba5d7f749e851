"""Every way in which a job dies or is taken away: the state before it, the call, and the reason that is told.

Source: protocol sections 4 and 6 ("whoever buried the child"). Used for children of flows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.support.flows import FlowVerbs
from tests.support.own import delay, retry
from tests.support.plain import FAR_MS, GROUP, State, job, row

CHILD = job(1)
_ROW = f"job:{CHILD}"


@dataclass(frozen=True, slots=True)
class Burial:
    """`before` makes the state from fields of the child's row."""

    before: Callable[..., State]
    call: Callable[[FlowVerbs], Awaitable[Any]]
    reason: str


def in_hand(**fields: Any) -> State:
    """The child is active with token 3."""
    return {_ROW: row("active", 3, **fields), "active": {CHILD: FAR_MS}}


def pending(**fields: Any) -> State:
    """The child is pending."""
    return {_ROW: row(**({"attempts": 3} | fields)), "pending": {CHILD: 0}}


def grouped(**fields: Any) -> State:
    """The child is the only one in its lane."""
    return {_ROW: row(group=GROUP, **fields), f"g:{GROUP}:pending": {CHILD: 0}, "ring": [GROUP]}


async def _cancel(flow: FlowVerbs) -> Any:
    keys = flow.keys
    return await flow.run(
        "cancel", (keys.job(CHILD), keys.pending, keys.active, keys.schedule), CHILD, "stop", keys.base
    )


BURIALS = {
    "retry": Burial(in_hand, lambda flow: flow.retry(CHILD, 3, max_attempts=1), "boom"),
    "settle": Burial(in_hand, lambda flow: flow.settle(retry(CHILD, 3, max_attempts=1)), "boom"),
    "settle of a cancelled job": Burial(
        lambda **fields: in_hand(cancel="stop", **fields), lambda flow: flow.settle(delay(CHILD, 3)), "cancelled: stop"
    ),
    "stalled_check": Burial(
        lambda **fields: in_hand(**fields) | {"active": {CHILD: 1}}, lambda flow: flow.stalled_check(1), "stalled"
    ),
    "claim of a crasher": Burial(
        lambda **fields: pending(held="3:ab", crashes="4:3", **fields),
        lambda flow: flow.claim_many(),
        "crashed: 5 claims in a row never ended",
    ),
    "claim of an expired job": Burial(
        lambda **fields: pending(expires_at=1, **fields), lambda flow: flow.claim_many(), "expired"
    ),
    "claim of a cancelled job": Burial(
        lambda **fields: pending(cancel="stop", **fields), lambda flow: flow.claim_many(), "cancelled: stop"
    ),
    "claim from a lane": Burial(
        lambda **fields: grouped(expires_at=1, **fields), lambda flow: flow.claim_many(), "expired"
    ),
    "cancel": Burial(pending, _cancel, "cancelled: stop"),
    "remove_job": Burial(pending, lambda flow: flow.remove_job(CHILD, "force"), "removed"),
    "drain": Burial(pending, lambda flow: flow.drain(), "drained"),
    "lane_drain": Burial(grouped, lambda flow: flow.lane_drain(), "drained"),
}
