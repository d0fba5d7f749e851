"""The nodes of a cluster as they come and go, without a server."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from echomq_worker.address import Host
from echomq_worker.clock import SystemClock
from echomq_worker.cluster_map import SlotMap
from echomq_worker.cluster_nodes import Node, Nodes, Terms
from echomq_worker.endpoint import Endpoint

FIRST, SECOND = Host("10.0.0.1", 7000), Host("10.0.0.2", 7000)


class _Node:
    """A connector to a node; it has connected three times."""

    generation = 3
    pending = 0
    connected = True

    def __init__(self, address: Host) -> None:
        self.address = address
        self.closed = False

    async def aclose(self) -> None:
        self.closed = True


class _Nodes(Nodes):
    """A cluster that is told by hand."""

    def __init__(self, told: SlotMap) -> None:
        endpoint = Endpoint.parse("redis+cluster://10.0.0.1:7000")
        super().__init__(Terms(endpoint, "echomq:3.0.0", 5_000, 5_000, clock=SystemClock(), name="test"))
        self.told = told
        self.closing: asyncio.Task[None] | None = None

    def _made(self, address: Host) -> Node:
        return cast("Node", _Node(address))

    async def _told_by(self, address: Host, limit_ms: int) -> SlotMap:
        if len(self.told.owners) == 1:
            # It is the next to run, before whatever is begun because of what is told here.
            self.closing = asyncio.create_task(self._close())
        return self.told

    async def _close(self) -> None:
        assert self.generation == 6, "what the node that has gone counted is counted"
        await self.aclose()


async def test_a_node_without_slots_is_closed_however_soon_all_is() -> None:
    """It is on its way out when the connector is closed: nothing of it stays open, and what it counted is counted."""
    nodes = _Nodes(SlotMap((0, 100), (FIRST, SECOND)))
    made: list[Any] = [await nodes.of(slot) for slot in (0, 100)]
    assert [node.address for node in made] == [FIRST, SECOND]
    nodes.told = SlotMap((0,), (FIRST,))
    await nodes.fresh()
    assert nodes.closing is not None
    await nodes.closing
    assert [node.closed for node in made] == [True, True]
