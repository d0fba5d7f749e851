"""Every script beside its native twin: from the same keyspace the same call gives the same reply and the same keyspace.

Source: protocol section 7; issue "The native twins". What the two are told apart by is in test_differences.py.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.native.states import CALLS, queues
from tests.support.plain import GROUP, State, job, row
from tests.support.twin import BASE, Outcome, Twins, Verb, assert_alike

# What a twin alone refuses, where the script goes on.
ALONE = {
    "promote": {"!EMQSTATE promote lane not native"},
    "delay": {"!EMQSTATE delay lane not native", "!EMQSTATE delay not active"},
}


# What a verb meets most of the time.
MOSTLY = {"promote": "scheduled", "reprocess": "dead"}


def without_ghosts(state: State) -> State:
    """The schedule's ids all with a row: of one without, promote makes a skeleton and its twin does not."""
    missing = [id for id in state.get("schedule", {}) if f"job:{id}" not in state]
    assume(not missing)
    return state


def check(twins: Twins, state: State, verb: Verb) -> None:
    """One example."""
    native = twins.command(state, verb)
    if native.reply in ALONE.get(verb.name, ()):
        assert (native.state, native.expiring) == unwritten(twins, state)
        return
    assert_alike(twins.script(state, verb), native)


def unwritten(twins: Twins, state: State) -> tuple[State, dict[str, int]]:
    """The state as it was put."""
    outcome: Outcome = twins.raw(state, "PING")
    return outcome.state, outcome.expiring


@pytest.mark.parametrize("name", sorted(CALLS))
def test_alike(name: str, twins: Twins) -> None:
    """Whatever a queue holds, a call and its twin's answer the same and leave the same."""
    lanes, mostly = name not in {"promote", "delay"}, MOSTLY.get(name, "active")
    met = queues(lanes=lanes, mostly=mostly)

    @settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], max_examples=80)
    @given(state=st.one_of(met, met, met, queues(mostly="dead")), verb=CALLS[name])
    def example(state: State, verb: Verb) -> None:
        check(twins, without_ghosts(state) if name == "promote" else state, verb)

    example()


def test_a_burial_leaves_the_lane(twins: Twins) -> None:
    """An id that stood in its lane beside its lease, the last one there: the lane goes, and its ring entry."""
    state: State = {
        f"job:{job(1)}": row("active", 1, group=GROUP),
        "active": {job(1): 1},
        f"g:{GROUP}:pending": {job(1): 0},
        "ring": [GROUP],
    }
    sweep = Verb("stalled_check", ("active", "pending", "dead"), (BASE, 1, 100))
    native = twins.command(state, sweep)
    assert_alike(twins.script(state, sweep), native)
    assert "ring" not in native.state
