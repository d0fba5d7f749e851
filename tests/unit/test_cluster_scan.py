"""SCAN over the nodes of a cluster: every node once, whatever their addresses are called."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.address import Host
from echomq_worker.cluster_nodes import Nodes
from echomq_worker.cluster_scan import scan
from echomq_worker.errors import InvalidArgument

HOSTS = st.sampled_from(["10.0.0.1", "10.0.0.12", "10.0.0.2", "a", "a-b", "ab", "::1", "fe80::1"])
PORTS = st.sampled_from([7, 70, 700, 6379, 7000, 10_000])


class _Node:
    """A primary that tells its keys on two pages, and each page once."""

    def __init__(self, address: Host) -> None:
        self.address = address
        self.asked: list[bytes] = []

    async def call(self, *command: Any) -> list[Any]:
        cursor = command[1]
        assert cursor not in self.asked, "a page that was told before"
        self.asked.append(cursor)
        return [b"7" if cursor == b"0" else b"0", [f"{self.address} {cursor!r}".encode()]]


class _Primaries:
    """The part of Nodes that a scan of all of them needs."""

    def __init__(self, addresses: set[Host]) -> None:
        self.all = [_Node(address) for address in sorted(addresses)]

    async def primaries(self) -> list[_Node]:
        return self.all


@given(st.sets(st.builds(Host, HOSTS, PORTS), min_size=1, max_size=6))
async def test_every_page_of_every_node_is_told_once(addresses: set[Host]) -> None:
    """In order of address, whose text is in another one: 10.0.0.12 stands behind 10.0.0.1, port 10000 behind 7000."""
    nodes = _Primaries(addresses)
    pages, cursor = [], b"0"
    while True:
        cursor, page = await scan(cast("Nodes", nodes), ("SCAN", cursor, "COUNT", 10))
        pages += page
        if cursor == b"0":
            break

    assert len(pages) == len(set(pages)) == 2 * len(addresses)


async def test_a_node_that_is_gone_between_two_steps_is_passed_over() -> None:
    """What it had is told by nobody; the others are told whole."""
    nodes = _Primaries({Host("10.0.0.1", 7000), Host("10.0.0.12", 7000), Host("10.0.0.2", 7000)})
    cursor, _ = await scan(cast("Nodes", nodes), ("SCAN", b"0"))
    cursor, _ = await scan(cast("Nodes", nodes), ("SCAN", cursor))
    assert cursor == b"10.0.0.12:7000 0"
    del nodes.all[1]

    cursor, page = await scan(cast("Nodes", nodes), ("SCAN", cursor))
    assert (page, cursor) == ([b"Host(name='10.0.0.2', port=7000) b'0'"], b"10.0.0.2:7000 7")


@pytest.mark.parametrize("cursor", [b"7", b"x 0", b"host:port 0", b"10.0.0.1:7000 x", b":7000 0"])
async def test_a_cursor_that_no_scan_has_answered_is_refused(cursor: bytes) -> None:
    """One line, before anything is sent."""
    with pytest.raises(InvalidArgument, match="command SCAN: the cursor"):
        await scan(cast("Nodes", _Primaries({Host("a", 1)})), ("SCAN", cursor))
