"""The schedule of a chaos run is a value of its seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.chaos.evidence import Terms
from bench.chaos.lab import Order
from bench.chaos.plan import KINDS, PRODUCERS, SERVER, make_plan
from bench.chaos.roles import QUEUES, role_of

lengths = st.integers(10_000, 600_000)


@given(seed=st.integers(0, 2**32), length_ms=lengths, workers=st.integers(1, 8), faults=st.integers(20, 200))
def test_the_same_seed_gives_the_same_schedule(seed: int, length_ms: int, workers: int, faults: int) -> None:
    """Whatever is asked, it is asked again with the same answer: in order, in time, at targets that there are."""
    first, again = (
        make_plan(seed, length_ms=length_ms, workers=workers, lease_ms=3_000, faults=faults) for _ in range(2)
    )
    assert first == again
    assert len(first) == faults
    assert [fault.at_ms for fault in first] == sorted(fault.at_ms for fault in first)
    assert all(0 <= fault.at_ms < length_ms for fault in first)
    targets = {SERVER, PRODUCERS, *(str(number) for number in range(workers))}
    assert {fault.target for fault in first} <= targets


@given(seed=st.integers(0, 2**32))
def test_a_short_run_meets_most_kinds(seed: int) -> None:
    """Every kind comes once before one comes twice: 24 faults are 24 kinds, and as many as there are have them all."""
    short = make_plan(seed, length_ms=60_000, workers=3, lease_ms=3_000, faults=24)
    assert len({fault.kind for fault in short}) == 24
    whole = make_plan(seed, length_ms=60_000, workers=3, lease_ms=3_000, faults=len(KINDS))
    assert {fault.kind for fault in whole} == {kind.name for kind in KINDS}


def test_another_seed_gives_another_schedule() -> None:
    """The seed is what decides."""
    one, other = (make_plan(seed, length_ms=60_000, workers=3, lease_ms=3_000, faults=24) for seed in (1, 2))
    assert one != other


@given(seed=st.integers(0, 2**32))
def test_only_a_host_without_a_pump_has_its_clock_set(seed: int) -> None:
    """Repeats are priced on the clock of the host that fires them, so a stepped one must not."""
    plan = make_plan(seed, length_ms=600_000, workers=6, lease_ms=3_000, faults=200)
    stepped = {fault.target for fault in plan if fault.kind == "clock_step"} - {PRODUCERS}
    assert not any(role_of(int(number)).pump for number in stepped)


def test_some_hosts_have_their_clock_set() -> None:
    """Not in every plan, but in most."""
    plans = [make_plan(seed, length_ms=600_000, workers=6, lease_ms=3_000, faults=200) for seed in range(20)]
    assert sum(any(fault.kind == "clock_step" and fault.target != PRODUCERS for fault in plan) for plan in plans) > 10


@given(seed=st.integers(0, 2**32))
def test_a_server_that_keeps_no_file_forgets_once(seed: int) -> None:
    """With `forget` the server is restarted once, half-way, and never otherwise."""
    plan = make_plan(seed, length_ms=60_000, workers=3, lease_ms=3_000, faults=100, forget=True)
    kinds = [fault.kind for fault in plan]
    assert kinds.count("server_forget") == 1
    assert not {"server_restart", "server_kill"} & set(kinds)


def test_every_queue_is_served_twice_and_fired_by_two_pumps() -> None:
    """Of three workers or more: what one has lost another finds, and no repeat depends on one process."""
    for count in range(3, 9):
        roles = [role_of(number) for number in range(count)]
        for queue in QUEUES:
            serving = [role for role in roles if queue in role.queues]
            assert len(serving) >= 2, (count, queue)
            assert sum(role.processes for role in serving if role.pump) >= 2, (count, queue)


@pytest.mark.parametrize(
    ("wire", "module", "twins"), [("4", "emq.so", False), ("auto", None, False), ("6", "emq.so", True)]
)
def test_faults_look_for_what_is_sent(wire: str, module: str | None, twins: bool) -> None:
    """A worker that may call commands, next to a server that has none, is known by its scripts: else no fault of theirs
    finds anything to hit.
    """
    terms = Terms(lease_ms=1, beat_ms=1, margin_ms=1)
    path = None if module is None else Path(module)
    order = Order(1, 1_000, 1, 1.0, terms, (), Path(), wire=wire, module=path)
    assert order.calls_twins is twins
