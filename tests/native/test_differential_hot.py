"""Admissions, claims and endings beside their native twins: the same call answers and leaves the same.

Source: protocol section 7; issue "The native twins".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from tests.native.hot_states import HOT_CALLS, hot_queues
from tests.support.native import load_options
from tests.support.plain import FAR_MS, GROUP, State, job, row
from tests.support.twin import BASE, Outcome, Twins, Verb, assert_alike
from tests.support.valkey import ValkeyServer

# Where several lanes are offered at once a script does so in an order of its own: that of a table's hashes.
MANY_OFFERS = {"settle", "claim_many"}
EXAMPLES = {"claim_many": 60, "settle": 60}
FEWER = 15


def offers_in_any_order(scripted: Outcome, native: Outcome) -> Outcome:
    """The native outcome with the ring as the script left it, where both rings have the same lanes behind what a claim
    has rotated.
    """
    rings = [outcome.state.get("ring", []) for outcome in (scripted, native)]
    same = next((n for n, (one, other) in enumerate(zip(*rings, strict=False)) if one != other), 0)
    if sorted(rings[0][same:]) != sorted(rings[1][same:]) or not rings[0]:
        return native
    return replace(native, state=native.state | {"ring": rings[0]})


def offers(state: State, verb: Verb, native: Outcome) -> bool:
    """Whether the call may have offered more than one lane."""
    if verb.name == "settle":
        return True
    strays = any("group" in state.get(f"job:{id}", {}) for id in state.get("pending", {}))
    return bool(native.reply[4]) or strays


@pytest.mark.parametrize("name", sorted(HOT_CALLS))
def test_alike(name: str, twins: Twins) -> None:
    """Whatever a queue holds, a call and its twin's answer the same and leave the same."""

    @settings(suppress_health_check=[HealthCheck.too_slow], max_examples=EXAMPLES.get(name, FEWER))
    @given(state=hot_queues(), verb=HOT_CALLS[name])
    def example(state: State, verb: Verb) -> None:
        native, scripted = twins.command(state, verb), twins.script(state, verb)
        if name in MANY_OFFERS and offers(state, verb, native):
            native = offers_in_any_order(scripted, native)
        assert_alike(scripted, native)

    example()


WAITING: State = {f"job:{job(1)}": row(), "pending": {job(1): 0}}
HELD: State = {f"job:{job(1)}": row("active", 1, held="1:ab"), "active": {job(1): FAR_MS}}
IN_LANE: State = {
    f"job:{job(1)}": row(group=GROUP),
    f"g:{GROUP}:pending": {job(1): 0},
    "ring": [GROUP],
}
SETS = ("active", "pending", "schedule", "dead")
CLAIM = Verb("claim_many", ("pending", "active", "ring", "meta", "claimed:c"), (BASE, 60_000, 2, 0, "zz", 5, 1))
UNREAD: State = HELD | {"claimed:c": f"3 ab {job(1)} 1"}
FULL: dict[str, tuple[State, Verb]] = {
    "enqueue": ({}, Verb("enqueue", (f"job:{job(2)}", "pending"), (job(2), "x"))),
    "enqueue_many": ({}, Verb("enqueue_many", ("pending",), (BASE, job(2), "x"))),
    "claim": (WAITING, Verb("claim", ("pending", "active"), (f"{BASE}job:", 60_000))),
    "claim_many": (WAITING, CLAIM),
    "claim_many of a lane": (IN_LANE, CLAIM),
    "claim_many of a receipt": (UNREAD, CLAIM),
    "complete": (HELD, Verb("complete", ("active", f"job:{job(1)}"), (job(1), "1:ab", BASE))),
    "settle c": (HELD, Verb("settle", SETS, (BASE, "c", job(1), "1:ab", ""))),
    "settle r": (HELD, Verb("settle", SETS, (BASE, "r", job(1), "1:ab", "", 5, 3, "boom"))),
    "settle d": (HELD, Verb("settle", SETS, (BASE, "d", job(1), "1:ab", "", "in", 5))),
}


@pytest.fixture(scope="module")
def full() -> Iterator[Twins]:
    """Both ways on a server that has no memory left."""
    server = ValkeyServer(args=load_options()).start()
    twins = Twins(server)
    yield twins
    twins.close()
    server.close()


@pytest.mark.parametrize("case", FULL)
def test_at_maxmemory(case: str, full: Twins) -> None:
    """What a full server takes and refuses as a script it takes and refuses as a command."""
    state, verb = FULL[case]
    scripted, native = full.script(state, verb, full=True), full.command(state, verb, full=True)
    assert isinstance(scripted.reply, str) == isinstance(native.reply, str), (scripted.reply, native.reply)
    if not isinstance(scripted.reply, str):
        assert_alike(scripted, native)
    else:
        assert scripted.state == native.state
