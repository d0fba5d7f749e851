"""What tells the twins from their scripts, each difference with its exact text; none of them writes anything.

Source: the specification of each native twin (schedule, promote, delay); docs/native.md has them as a table.
"""

from __future__ import annotations

import pytest

from tests.support.plain import FAR_MS, GROUP, State, job, row
from tests.support.twin import BASE, Twins, Verb

ID = job(1)
ROW = f"job:{ID}"
IN_HAND: State = {ROW: row("active", 1), "active": {ID: FAR_MS}}
PARKED: State = {ROW: row("scheduled", 1), "schedule": {ID: FAR_MS}}
DUE: State = {ROW: row("scheduled", 1), "schedule": {ID: 1}}

SCHEDULE = Verb("schedule", (ROW, "schedule"), (ID, "x", "in", 5))
DELAY = Verb("delay", (ROW, "active", "schedule"), (ID, "1", "in", 5))
PROMOTE = Verb("promote", ("schedule", "pending"), (BASE, 100))
EXTEND = Verb("extend_lock", ("active", ROW), (ID, "1", 60_000))
STALLED = Verb("stalled_check", ("active", "pending", "dead"), (BASE, 1, 100))
RETRY = Verb("retry", ("active", "schedule", "dead", ROW), (ID, "1", 5, 3, "boom", BASE))
RESCHEDULE = Verb("reschedule", (ROW, "schedule"), (ID, "at", 7))
REQUEUE = Verb("requeue", (ROW, "active", "pending"), (ID, "1"))

REFUSALS = {
    "schedule mode": (SCHEDULE.with_args(ID, "x", "on", 5), {}, "ERR EMQ.SCHEDULE mode must be in or at"),
    "schedule negative": (
        SCHEDULE.with_args(ID, "x", "at", -1),
        {},
        "ERR EMQ.SCHEDULE due must be a non-negative integer",
    ),
    "schedule fraction": (
        SCHEDULE.with_args(ID, "x", "in", "1.5"),
        {},
        "ERR EMQ.SCHEDULE due must be a non-negative integer",
    ),
    "delay mode": (DELAY.with_args(ID, "1", "IN", 5), IN_HAND, "ERR EMQ.DELAY mode must be in or at"),
    "delay negative": (DELAY.with_args(ID, "1", "in", -5), IN_HAND, "ERR EMQ.DELAY due must be a non-negative integer"),
    "delay not active": (DELAY, IN_HAND | {"active": {job(2): FAR_MS}}, "EMQSTATE delay not active"),
    "delay lane": (DELAY, IN_HAND | {ROW: row("active", 1, group=GROUP)}, "EMQSTATE delay lane not native"),
    "promote batch none": (
        PROMOTE.with_args(BASE, 0),
        DUE,
        "ERR EMQ.PROMOTE batch must be a positive integer",
    ),
    "promote batch word": (
        PROMOTE.with_args(BASE, "many"),
        DUE,
        "ERR EMQ.PROMOTE batch must be a positive integer",
    ),
    "promote lane": (
        PROMOTE,
        DUE | {f"job:{job(2)}": row("scheduled", 1, group=GROUP), "schedule": {ID: 1, job(2): 2}},
        "EMQSTATE promote lane not native",
    ),
    "extend lease": (EXTEND.with_args(ID, "1", 0), IN_HAND, "ERR EMQ.EXTEND lease_ms must be a positive integer"),
    "sweep threshold": (
        STALLED.with_args(BASE, 0, 100),
        IN_HAND,
        "ERR EMQ.STALLED.CHECK max_stalled must be a positive integer",
    ),
    "sweep limit": (
        STALLED.with_args(BASE, 1, -1),
        IN_HAND,
        "ERR EMQ.STALLED.CHECK limit must be a positive integer",
    ),
    "retry delay": (
        RETRY.with_args(ID, "1", -1, 3, "boom", BASE),
        IN_HAND,
        "ERR EMQ.RETRY delay_ms must be a non-negative integer",
    ),
    "retry attempts": (
        RETRY.with_args(ID, "1", 5, "all", "boom", BASE),
        IN_HAND,
        "ERR EMQ.RETRY max_attempts must be a positive integer",
    ),
}
"""By what it is: the call, the queue, the text."""

SAME_REFUSALS = {
    "schedule kind": (
        Verb("schedule", ("job:USR00000000001", "schedule"), ("USR00000000001", "x", "in", 5)),
        {},
        "EMQKIND job id must be JOB-namespaced",
    ),
    "delay kind": (
        Verb("delay", ("job:USR00000000001", "active", "schedule"), ("USR00000000001", "1", "in", 5)),
        {},
        "EMQKIND job id must be JOB-namespaced",
    ),
    "delay gone": (DELAY, {}, "EMQSTALE job gone"),
    "delay stale": (DELAY, IN_HAND | {ROW: row("active", 2)}, "EMQSTALE delay token mismatch"),
    "extend stale": (EXTEND, IN_HAND | {ROW: row("active", 2)}, "EMQSTALE extend token mismatch"),
    "retry gone": (RETRY, {}, "EMQSTALE job gone"),
    "retry stale": (RETRY, IN_HAND | {ROW: row("active", 2)}, "EMQSTALE retry token mismatch"),
    "reprocess": (Verb("reprocess", (ROW, "dead", "pending"), (ID,)), IN_HAND, "EMQSTATE not dead"),
}
"""The same, of calls that the scripts refuse with the same text."""


def unchanged(twins: Twins, state: State, verb: Verb, text: str, command: str | None = None) -> None:
    """The command refuses with this very text, and the queue is as it was."""
    outcome = twins.command(state, verb, command)
    # redis-py leaves the class `ERR` out; test_the_class_of_an_error reads it.
    assert outcome.reply == f"!{text.removeprefix('ERR ')}"
    assert outcome.state == twins.raw(state, "PING").state


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_by_the_command_alone(case: str, twins: Twins) -> None:
    """The script takes it, the command refuses it and writes nothing."""
    verb, state, text = REFUSALS[case]
    unchanged(twins, state, verb, text)


@pytest.mark.parametrize("case", SAME_REFUSALS)
def test_refused_by_both(case: str, twins: Twins) -> None:
    """The script's text, letter by letter."""
    verb, state, text = SAME_REFUSALS[case]
    unchanged(twins, state, verb, text)
    assert twins.script(state, verb).reply == f"!{text}"


def test_promote_drops_a_ghost(twins: Twins) -> None:
    """A scheduled id without a row only leaves the schedule; the script makes a skeleton row and puts it in pending."""
    ghost: State = {"schedule": {ID: 1}}
    native = twins.command(ghost, PROMOTE)
    assert (native.reply, native.state) == (1, {})
    assert twins.script(ghost, PROMOTE).state[ROW] == {"state": "pending"}


def test_reschedule(twins: Twins) -> None:
    """It moves the score of a job in the schedule, keeps its row, and answers 1."""
    moved = twins.command(PARKED, RESCHEDULE, "EMQ.RESCHEDULE")
    assert (moved.reply, moved.state) == (1, PARKED | {"schedule": {ID: 7.0}})


def test_reschedule_refusals(twins: Twins) -> None:
    """-1 for a missing row; a job that is not scheduled, or no job, is refused."""
    assert twins.command({}, RESCHEDULE, "EMQ.RESCHEDULE").reply == -1
    assert twins.command({"schedule": {ID: 5}}, RESCHEDULE, "EMQ.RESCHEDULE").reply == -1
    text = "EMQSTATE reschedule not scheduled"
    unchanged(twins, IN_HAND, RESCHEDULE, text, "EMQ.RESCHEDULE")
    unchanged(twins, {ROW: row("scheduled", 1)}, RESCHEDULE, text, "EMQ.RESCHEDULE")
    wrong = RESCHEDULE.with_args(ID, "on", 7)
    unchanged(twins, PARKED, wrong, "ERR EMQ.RESCHEDULE mode must be in or at", "EMQ.RESCHEDULE")
    wrong = RESCHEDULE.with_args(ID, "at", -7)
    unchanged(twins, PARKED, wrong, "ERR EMQ.RESCHEDULE due must be a non-negative integer", "EMQ.RESCHEDULE")


@pytest.mark.parametrize("token", ["1", "1:ab"])
def test_requeue(token: str, twins: Twins) -> None:
    """A job in hand is pending again at once: `held` and the lock go, everything else on the row stays; one token."""
    past = {"failures": "2", "stalled": "1", "crashes": "1:1", "settled": "0:scheduled"}
    state = IN_HAND | {ROW: row("active", 1, held="1:ab") | past, f"{ROW}:lock": "1"}
    back = twins.command(state, REQUEUE.with_args(ID, token), "EMQ.REQUEUE")
    assert (back.reply, back.state) == (1, {ROW: row("pending", 1) | past, "pending": {ID: 0.0}, "ready": ["1"]})
    assert set(back.expiring) == {"ready"}


def test_requeue_to_a_lane(twins: Twins) -> None:
    """A grouped job goes back to its lane: its slot is free, the lane on the ring, with a token."""
    state = IN_HAND | {ROW: row("active", 1, group=GROUP), "gactive": {GROUP: "1"}}
    back = twins.command(state, REQUEUE, "EMQ.REQUEUE")
    lane: State = {f"g:{GROUP}:pending": {ID: 0.0}, "ring": [GROUP], "wake": ["1"]}
    assert (back.reply, back.state) == (1, {ROW: row("pending", 1, group=GROUP)} | lane)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({}, "EMQSTALE job gone"),
        (IN_HAND | {ROW: row("active", 2)}, "EMQSTALE requeue token mismatch"),
        (IN_HAND | {ROW: row("active", 1, held="1:zz")}, "EMQSTALE requeue token mismatch"),
        (IN_HAND | {ROW: row("active", 1, settled="1:scheduled")}, "EMQSTALE requeue token mismatch"),
        ({ROW: row("pending", 1), "pending": {ID: 0}}, "EMQSTATE requeue not active"),
        (IN_HAND | {ROW: row("dead", 1)}, "EMQSTATE requeue not active"),
    ],
)
def test_requeue_refusals(state: State, text: str, twins: Twins) -> None:
    """Only the holder of an active job gives it back; a verdict that had arrived stands."""
    unchanged(twins, state, REQUEUE.with_args(ID, "1:ab"), text, "EMQ.REQUEUE")
