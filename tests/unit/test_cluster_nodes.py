"""The nodes of a cluster as they come and go, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from echomq_worker.address import Host
from echomq_worker.clock import SystemClock
from echomq_worker.cluster import ClusterConnector
from echomq_worker.cluster_map import SlotMap
from echomq_worker.cluster_nodes import Node, Nodes, Terms
from echomq_worker.endpoint import Endpoint
from echomq_worker.errors import Unavailable, Unreachable
from echomq_worker.keyspace import slot
from tests.support.waiting import never_ends

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


class _SendsOn(_Node):
    """A node that sends us on to the second one, which cannot be reached."""

    def __init__(self, address: Host, kind: str) -> None:
        super().__init__(address)
        self._kind = kind

    async def call(self, *_args: Any) -> Any:
        if self.address == SECOND:
            raise Unreachable("10.0.0.2:7000: refused")
        raise self._told()

    async def pipeline(self, commands: Sequence[Any]) -> list[Any]:
        if self.address == SECOND:
            raise Unreachable("10.0.0.2:7000: refused")
        return [self._told() for _ in commands]

    def _told(self) -> Unavailable:
        return Unavailable(f"{self._kind} {slot('{q}')} 10.0.0.2:7000")


class _SendingOn(_Nodes):
    """Nodes of that sort, whose map nobody tells any more."""

    def __init__(self, kind: str) -> None:
        super().__init__(SlotMap((0,), (FIRST,)))
        self._map = self.told
        self.kind = kind

    def _made(self, address: Host) -> Node:
        return cast("Node", _SendsOn(address, self.kind))

    async def _told_by(self, address: Host, limit_ms: int) -> SlotMap:
        await never_ends()
        return self.told


# No transaction follows ASK.
@pytest.mark.parametrize(
    ("kind", "way"),
    [("MOVED", "call"), ("MOVED", "pipeline"), ("MOVED", "transaction"), ("ASK", "call"), ("ASK", "pipeline")],
)
async def test_a_node_that_another_one_named_and_nobody_reaches_is_doubted(kind: str, way: str) -> None:
    """As one that the map has named: who owns its slots is asked again before it is used."""
    connector = ClusterConnector("redis+cluster://10.0.0.1:7000")
    connector._nodes = nodes = _SendingOn(kind)
    nodes.at(FIRST), nodes.at(SECOND)
    get = ("GET", "{q}")
    if way == "call":
        with pytest.raises(Unreachable):
            await connector.call(*get)
    elif way == "pipeline":
        assert [type(reply) for reply in await connector.pipeline([get, get])] == [Unreachable] * 2
    else:
        with pytest.raises(Unreachable):
            await connector.pipeline([("MULTI",), get, ("EXEC",)])
    assert SECOND in nodes._doubted
    await nodes.aclose()
