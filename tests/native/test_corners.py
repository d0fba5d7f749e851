"""Corners beside their native twins: states that random ones meet too seldom, each with the call that looks into it.

Source: protocol section 7; issue "The native twins". Each case finds a change of the native code that test_differential
passed over.
"""

from __future__ import annotations

import pytest

from tests.support.plain import FAR_MS, GROUP, State, job, row
from tests.support.twin import BASE, Twins, Verb, assert_alike

ID = job(1)
ROW = f"job:{ID}"
PARENT = job(8)
CHILD = job(7)
LANE = f"g:{GROUP}:pending"
SETS = ("active", "pending", "schedule", "dead")

DELAY = Verb("delay", (ROW, "active", "schedule"), (ID, "1:ab", "in", 5_000_000_000_000))
REPROCESS = Verb("reprocess", (ROW, "dead", "pending"), (ID,))
PROMOTE = Verb("promote", ("schedule", "pending"), (BASE, 100))
REAP = Verb("reap", ("active", "pending"), (BASE,))
SWEEP = Verb("stalled_check", ("active", "pending", "dead"), (BASE, 1, 100))
KEEP = Verb("keep", ("active",), (BASE, 60_000, ID, "1:ab"))
COMPLETE = Verb("complete", ("active", ROW), (ID, "1:ab", BASE))
RETRY = Verb("retry", ("active", "schedule", "dead", ROW), (ID, "1:ab", 5, 3, "why", BASE))
REQUEUED = Verb("settle", SETS, (BASE, "r", ID, "1:ab", "", 5, 3, "why"))
DONE = Verb("settle", SETS, (BASE, "c", ID, "1:ab", ""))

HELD: State = {ROW: row("active", 1, held="1:ab"), "active": {ID: FAR_MS}}
GROUPED: State = {ROW: row("active", 1, held="1:ab", group=GROUP), "active": {ID: FAR_MS}}
IN_ITS_LANE: State = GROUPED | {LANE: {ID: 0}, "ring": [GROUP], "gactive": {GROUP: "1"}}
DEAD: State = {ROW: row("dead", 1), "dead": {ID: 0}}
WAITS: State = DEAD | {f"{ROW}:dependencies": "1"}
FAMILY: State = {f"job:{PARENT}": row("awaiting_children", 0), f"job:{PARENT}:dependencies": "2"}

CASES: dict[str, tuple[State, Verb]] = {
    "delay: a verdict that was another": (
        {ROW: row("active", 1, held="1:ab", settled="1:scheduled"), "active": {ID: FAR_MS}},
        DELAY,
    ),
    "delay: sent again": ({ROW: row("scheduled", 1, settled="1:delayed"), "schedule": {ID: FAR_MS}}, DELAY),
    "reprocess: a child has failed, and completed after all": (
        WAITS | {f"{ROW}:failed": {CHILD: "e"}, f"{ROW}:processed": {CHILD: "r"}},
        REPROCESS,
    ),
    "reprocess: a child has failed": (WAITS | {f"{ROW}:failed": {CHILD: "e"}}, REPROCESS),
    "reprocess: forced": (WAITS, REPROCESS.with_args(ID, "force")),
    "reprocess: another word": (WAITS, REPROCESS.with_args(ID, "no")),
    "reprocess: dead by its row alone": ({ROW: row("dead", 1)}, REPROCESS),
    "promote: with a lease that ran out": (
        {ROW: row("active", 1, held="1:ab"), "schedule": {ID: 1}, "active": {ID: 1}},
        PROMOTE,
    ),
    "promote: in hand": ({ROW: row("active", 1, held="1:ab"), "schedule": {ID: 1}, "active": {ID: FAR_MS}}, PROMOTE),
    "reap: scheduled as well": ({ROW: row("scheduled", 1), "schedule": {ID: FAR_MS}, "active": {ID: 1}}, REAP),
    "reap: a parent that waits": (
        {ROW: row("awaiting_children", 1), f"{ROW}:dependencies": "2", "active": {ID: 1}},
        REAP,
    ),
    "reap: others keep the lane at its ceiling": (
        {ROW: row("active", 1, group=GROUP), "active": {ID: 1}, "glimit": {GROUP: "1"}, "gactive": {GROUP: "2"}},
        REAP,
    ),
    "stalled_check: pending as well": (
        {ROW: row("active", 1, stalled=2), "active": {ID: 1}, "pending": {ID: 0}},
        SWEEP,
    ),
    "keep: not in hand": ({ROW: row("pending", 1, held="1:ab"), "pending": {ID: 0}}, KEEP),
    "complete: of a dead job": (DEAD | {ROW: row("dead", 1, settled="1:dead")}, COMPLETE),
    "complete: in its lane as well": (IN_ITS_LANE, COMPLETE),
    "retry: in its lane as well": (IN_ITS_LANE, RETRY),
    "retry: locked": (HELD | {f"{ROW}:lock": "1"}, RETRY),
    "settle: a retry of a locked job": (HELD | {f"{ROW}:lock": "1"}, REQUEUED),
    "settle: in its lane as well": (IN_ITS_LANE, DONE),
    "settle: twice in one call": (
        HELD,
        DONE.with_args(BASE, "r", ID, "1:ab", "", 5, 3, "why", "c", ID, "1:ab", ""),
    ),
    "settle: a late failure of a child": (
        FAMILY | {ROW: row("dead", 1, parent=PARENT, settled="0:dead", last_error="boom"), "dead": {ID: 0}},
        REQUEUED,
    ),
    "settle: locked, as the mark says": (HELD | {f"{ROW}:lock": "1", "kept": "1"}, DONE),
}


@pytest.mark.parametrize("case", CASES)
def test_alike(case: str, twins: Twins) -> None:
    """The call and its twin's answer the same and leave the same."""
    state, verb = CASES[case]
    assert_alike(twins.script(state, verb), twins.command(state, verb))
