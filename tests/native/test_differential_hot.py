"""Admissions, claims and endings beside their native twins: the same call answers and leaves the same.

Source: protocol section 7; issue "The native twins".
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from tests.native.hot_states import HOT_CALLS, hot_queues
from tests.support.plain import State
from tests.support.twin import Outcome, Twins, Verb, assert_alike

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
