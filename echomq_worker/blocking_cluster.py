"""Blocking, in a cluster: the routes, redirects, map of slots and fence of `cluster` and `cluster_nodes`, over sockets
that are waited for.

Source: issue "Made for the people who run it", For handler authors (a synchronous producer), Topologies. Their
coroutines wait for nothing but the wire; over blocking connections that is no waiting, so that one step runs them.
Threads share the map, which is a value and changes as a whole; two that ask for it at the same time both do.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from echomq_worker.address import Host
from echomq_worker.blocking import BlockingLink, BlockingServer, finished
from echomq_worker.clock import SystemClock
from echomq_worker.cluster import ClusterConnector
from echomq_worker.cluster_map import Redirect, SlotMap
from echomq_worker.cluster_nodes import Node, Nodes, Terms
from echomq_worker.connection import Answer, Hearer, Link
from echomq_worker.endpoint import Endpoint
from echomq_worker.errors import CommandTimeout, Unreachable, WireError
from echomq_worker.packing import pack

T = TypeVar("T")


class _NodeServer(BlockingServer):
    """The connections to one node, each of which passes the fence as the node says."""

    __slots__ = ("_node",)

    def __init__(self, node: _Node, endpoint: Endpoint, terms: Terms) -> None:
        super().__init__(
            endpoint,
            wire_version=terms.wire_version,
            connect_timeout_ms=terms.connect_timeout_ms,
            command_timeout_ms=terms.command_timeout_ms,
            name=terms.name,
        )
        self._node = node

    def _connect(self, here: object) -> BlockingLink:  # noqa: ARG002 - no sentinels are asked
        return cast("BlockingLink", finished(self._node.link(self._name)))


class _Node(Node):
    """A node over blocking connections. What it is awaited for is there at once."""

    def __init__(self, address: Host, terms: Terms, nodes: _Nodes) -> None:
        super().__init__(address, terms, nodes)
        self.server = _NodeServer(self, self._endpoint, terms)

    @property
    def connected(self) -> bool:
        """Whether any of its connections stands, as far as is known."""
        return self.server.connections > 0

    async def open(self) -> None:
        """Connect now."""
        self.server.open()

    async def call(self, *args: Any) -> Any:
        """As Connector.call."""
        return self.server.call(*args)

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """As Connector.pipeline."""
        return self.server.pipeline(commands)

    def post(self, commands: Sequence[Sequence[Any]]) -> None:
        """Nothing stands that could be used beside its callers."""

    async def _dial(self, name: str, hearer: Hearer | None, wire_version: str | None) -> Link:  # noqa: ARG002 - nobody hears
        return cast("Link", self.server.dial(wire_version, cluster=True))


class _Nodes(Nodes):
    """All nodes that are known, without a task beside the callers."""

    def _made(self, address: Host) -> _Node:
        return _Node(address, self._terms, self)

    @property
    def servers(self) -> list[BlockingServer]:
        """The connections to each node that is in use."""
        return [node.server for node in self if isinstance(node, _Node)]

    def moved(self, told: Redirect) -> None:
        """A node has sent us on: its word counts for that slot; others are asked about as they are met."""
        if self._map is not None:
            self._map = self._map.moved(told.slot, told.address)
        self._ask_first = list(dict.fromkeys([told.address, *self._ask_first]))

    async def fresh(self) -> SlotMap:
        """Ask for the map; raises as Nodes.fresh."""
        if self.closed:
            raise self._is_closed()
        outcome = await self._ask()
        if outcome is not None:
            raise outcome
        assert self._map is not None  # noqa: S101 - an outcome of None has set it
        return self._map

    async def _asked_within(self, address: Host, limit_ms: int) -> Any:
        terms = replace(self._terms, connect_timeout_ms=limit_ms, command_timeout_ms=limit_ms)
        link = await _Node(address, terms, self).greet(f"{terms.name}:map")
        try:
            answer: Answer = await link.submit(pack(("CLUSTER", "SLOTS")), 1)
        finally:
            await link.aclose(at_once=True)
        if isinstance(answer, CommandTimeout):
            raise TimeoutError
        if isinstance(answer, WireError):
            raise Unreachable(str(answer))
        return answer[0]

    def _adopt(self, told: SlotMap) -> None:
        self._map = told
        self._doubted.clear()
        self._ask_first = []
        for address in set(self._nodes) - set(told.primaries):
            # Who has it in hand still may use it; its connections end with it.
            self._nodes.pop(address, None)

    async def aclose(self) -> None:
        """Close every connection of this process that nobody uses, the others when their call is answered."""
        self.closed = True
        for server in self.servers:
            server.close()


class _Ways(ClusterConnector):
    """Where commands go."""

    def __init__(self, endpoint: Endpoint, nodes: _Nodes) -> None:
        super().__init__(endpoint)
        self._nodes = nodes

    @staticmethod
    async def _together(parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        return [await part for part in parts]

    def _check(self) -> None:
        if self._nodes.closed:
            raise self._is_closed()


class BlockingCluster(BlockingServer):
    """A BlockingServer for a cluster, with the same surface: connections to each primary that is in use."""

    def __init__(
        self,
        url: str | Endpoint,
        *,
        wire_version: str = "echomq:3.0.0",
        connect_timeout_ms: int = 5000,
        command_timeout_ms: int = 5000,
        name: str = "echomq",
    ) -> None:
        """Raise ConfigError for a URL or timeout that cannot be used; nothing is connected yet."""
        super().__init__(
            url,
            wire_version=wire_version,
            connect_timeout_ms=connect_timeout_ms,
            command_timeout_ms=command_timeout_ms,
            name=name,
        )
        terms = Terms(
            self._endpoint, wire_version, connect_timeout_ms, command_timeout_ms, clock=SystemClock(), name=name
        )
        self._nodes = _Nodes(terms)
        self._ways = _Ways(self._endpoint, self._nodes)

    @property
    def connections(self) -> int:
        """How many are open in this process, to whichever node."""
        return sum(server.connections for server in self._nodes.servers)

    def open(self) -> None:
        """Learn which node has which slot, and pass the fence; raises what `BlockingServer.open` raises."""
        finished(self._ways.open())

    def call(self, *args: Any) -> Any:
        """Send one command to where it belongs and return its reply; see ClusterConnector.call."""
        return finished(self._ways.call(*args))

    def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands, to each node its own, and return the replies in order; see ClusterConnector.pipeline."""
        return finished(self._ways.pipeline(commands))

    def close(self) -> None:
        """Close the connections of this process, those that are in use when their call is answered."""
        super().close()
        finished(self._nodes.aclose())
