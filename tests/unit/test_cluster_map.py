"""Who owns which slot, as a value; and what MOVED and ASK say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.address import Host
from echomq_worker.cluster_map import Redirect, SlotMap, redirect
from echomq_worker.errors import ServerError, Unavailable
from echomq_worker.keyspace import SLOTS

ASKED = Host("10.0.0.9", 7000)
A, B, C = (Host("10.0.0.1", port) for port in (1, 2, 3))
SLOT = st.integers(0, SLOTS - 1)


def _node(host: str | None, port: int) -> list[Any]:
    return [None if host is None else host.encode(), port, b"id", []]


def test_ranges_in_any_order_with_gaps() -> None:
    """Primaries stand first, replicas behind them; a slot that nobody has is nobody's."""
    reply = [[100, 199, _node("10.0.0.2", 2), _node("10.0.0.8", 8)], [0, 49, _node("10.0.0.1", 1)]]
    found = SlotMap.read(reply, ASKED)

    first, second = Host("10.0.0.1", 1), Host("10.0.0.2", 2)
    assert [found.owner(slot) for slot in (0, 49, 50, 99, 100, 199, 200, SLOTS - 1)] == [
        *(first, first, None, None, second, second, None, None)
    ]
    assert found.primaries == (first, second)


def test_no_slots_at_all() -> None:
    """A node that belongs to no cluster yet."""
    found = SlotMap.read([], ASKED)
    assert found.primaries == ()
    assert found.owner(0) is None


@pytest.mark.parametrize("host", [None, "", "?"])
def test_a_node_that_does_not_know_its_address_is_the_one_that_was_asked(host: str | None) -> None:
    """It has an unknown endpoint; its port counts."""
    assert SlotMap.read([[0, SLOTS - 1, _node(host, 7001)]], ASKED).owner(5) == Host("10.0.0.9", 7001)
    moved = redirect(Unavailable(f"MOVED 5 {host or ''}:7001"), ASKED)
    assert moved == Redirect("MOVED", 5, Host("10.0.0.9", 7001))


@given(st.lists(st.tuples(SLOT, st.sampled_from([A, B, C])), max_size=8), st.lists(SLOT, min_size=3, max_size=3))
def test_moves_against_a_table(moves: list[tuple[int, Host]], bounds: list[int]) -> None:
    """Whatever moves where: the map is what a table of the slots would be, here of those around each change."""
    low, high = sorted(bounds[:2])
    found = SlotMap.read([[low, high, _node(*A)], *([[high + 1, SLOTS - 1, _node(*B)]] if high + 1 < SLOTS else [])], A)
    changes = {0, SLOTS - 1, low, high, *(slot for slot, _ in moves)}
    table = {slot: found.owner(slot) for at in changes for slot in (at - 1, at, at + 1) if 0 <= slot < SLOTS}
    for slot, to in moves:
        found = found.moved(slot, to)
        table[slot] = to

    assert {slot: found.owner(slot) for slot in table} == table
    assert set(found.primaries) == {owner for owner in found.owners if owner is not None}
    assert list(found.starts) == sorted(set(found.starts))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("MOVED 3999 10.0.0.1:1", Redirect("MOVED", 3999, A)),
        ("ASK 3999 10.0.0.1:1", Redirect("ASK", 3999, A)),
        ("MOVED 1 2001:db8::7:6379", Redirect("MOVED", 1, Host("2001:db8::7", 6379))),
        ("MOVED 1 valkey-3.internal:6379", Redirect("MOVED", 1, Host("valkey-3.internal", 6379))),
        ("MOVED", None),
        ("MOVED x 10.0.0.1:1", None),
        ("MOVED 16384 10.0.0.1:1", None),
        ("MOVED 1 10.0.0.1", None),
        ("TRYAGAIN Multiple keys request during rehashing of slot", None),
        ("CLUSTERDOWN The cluster is down", None),
    ],
)
def test_what_an_error_sends_us_to(text: str, told: Redirect | None) -> None:
    """MOVED and ASK name a slot and an address; anything else sends nowhere."""
    assert redirect(Unavailable(text), ASKED) == told
    assert redirect(ServerError(text), ASKED) is None
