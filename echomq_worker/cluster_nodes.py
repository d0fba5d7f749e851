"""The nodes of a cluster: a connector per primary, made when it is first needed; the map of slots, asked again when it
was wrong; the fence, which only the owner of its slot can answer.

Source: protocol section 3 ("in a cluster: asked of the slot's owner"), issue "The five promises, kept under every
fault, on every topology" (Topologies).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from echomq_worker.address import Host
from echomq_worker.clock import Clock
from echomq_worker.cluster_map import Redirect, SlotMap, redirect
from echomq_worker.connection import Hearer, Link
from echomq_worker.endpoint import Endpoint
from echomq_worker.errors import (
    LOGIN_REFUSALS,
    AuthenticationFailed,
    ConfigError,
    EchoMQError,
    FenceRefused,
    ServerError,
    Unavailable,
    Unreachable,
    WireError,
)
from echomq_worker.handshake import establish, fence_value
from echomq_worker.keyspace import FENCE_KEY, slot
from echomq_worker.packing import pack
from echomq_worker.patience import within
from echomq_worker.single import Connector
from echomq_worker.twins import SCRIPTS

FENCE_SLOT = slot(FENCE_KEY)
# How often the fence's slot may be found elsewhere in a row before it is called unavailable.
_TURNS = 4
# How long one of several nodes may take to tell the map, at least.
_PATIENCE_MS = 250
_MAP = ("CLUSTER", "SLOTS")


@dataclass(frozen=True, slots=True)
class Terms:
    """What all connections to a cluster have in common; `endpoint.at` is how to dial a node."""

    endpoint: Endpoint
    wire_version: str
    connect_timeout_ms: int
    command_timeout_ms: int
    clock: Clock
    name: str
    wire: str = SCRIPTS


class Node(Connector):
    """The connector to one node. Each of its connections passes the fence before its first command."""

    def __init__(self, address: Host, terms: Terms, nodes: Nodes) -> None:
        super().__init__(
            terms.endpoint.at(*address),
            wire_version=terms.wire_version,
            connect_timeout_ms=terms.connect_timeout_ms,
            command_timeout_ms=terms.command_timeout_ms,
            clock=terms.clock,
            name=terms.name,
            wire=terms.wire,
        )
        self.address = address
        self._nodes = nodes

    async def _establish(self, name: str, hearer: Hearer | None = None) -> Link:
        said: Unavailable | None = None
        for _ in range(_TURNS):
            mine = await self._nodes.owner(FENCE_SLOT) == self.address
            if not mine:
                await self._nodes.pass_fence()
            try:
                return await self._dial(name, hearer, self._wire_version if mine else None)
            except Unavailable as error:
                if not (mine and self._nodes.sends_on(error, self)):
                    raise
                said = error
        raise said or Unavailable("TRYAGAIN the slot of the fence does not stay with one node")

    async def link(self, name: str, hearer: Hearer | None = None) -> Link:
        """A connection of its own to this node, for whoever parks or hears."""
        return await self._establish(name, hearer)

    def _is_closed(self) -> EchoMQError:
        if self._nodes.closed:
            return super()._is_closed()
        return Unreachable(f"{self.url_safe}: this node has no slots any more")

    async def greet(self, name: str, wire_version: str | None = None) -> Link:
        """A connection for one question; the fence is asked of this very node, or not at all."""
        return await self._dial(name, None, wire_version)

    async def _dial(self, name: str, hearer: Hearer | None, wire_version: str | None) -> Link:
        return await establish(
            self._endpoint,
            wire_version=wire_version,
            connect_timeout_ms=self._connect_timeout_ms,
            command_timeout_ms=self._command_timeout_ms,
            name=name,
            hearer=hearer,
            cluster=True,
        )


class Nodes:
    """All nodes that are known. A map is asked for at first use, and again once a node failed or has sent us on.

    `closed` turns true with `aclose`.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._nodes: dict[Host, Node] = {}
        self._map: SlotMap | None = None
        self._doubted: set[Host] = set()
        # Nodes that have redirected us: they know the new map, so they are asked for it before the others.
        self._ask_first: list[Host] = []
        self._asking: asyncio.Task[EchoMQError | None] | None = None
        self._retiring: dict[asyncio.Task[None], Node] = {}
        self._retired_generations = 0
        self.closed = False

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))

    @property
    def generation(self) -> int:
        """How many times a connection was made, to whichever node."""
        return self._retired_generations + sum(node.generation for node in self)

    def ready(self, slot: int) -> Node | None:
        """The connector to the owner of a slot, where it is known and nobody doubts it."""
        address = None if self._map is None else self._map.owner(slot)
        return None if address is None or address in self._doubted else self._nodes.get(address)

    async def of(self, slot: int) -> Node:
        """The connector to the owner of a slot; asks for the map first where that is not certain.

        Raises what asking raises, Unavailable for a slot that nobody owns.
        """
        address = await self.owner(slot)
        if address is None:
            raise Unavailable(f"CLUSTERDOWN {self._terms.endpoint.safe}: no node serves slot {slot}")
        return self.at(address)

    async def owner(self, slot: int) -> Host | None:
        """Who owns a slot."""
        address = None if self._map is None else self._map.owner(slot)
        if address is None or address in self._doubted:
            return (await self.fresh()).owner(slot)
        return address

    async def primaries(self) -> list[Node]:
        """A connector to each primary, in order of address; a fresh map is asked for."""
        return [self.at(address) for address in (await self.fresh()).primaries]

    def at(self, address: Host) -> Node:
        """The connector to a node of that address; made where there is none. Raises EchoMQError when closed."""
        if self.closed:
            raise self._is_closed()
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = self._made(address)
        return node

    def _made(self, address: Host) -> Node:
        return Node(address, self._terms, self)

    def moved(self, told: Redirect) -> None:
        """A node has sent us on: its word counts at once, and the rest of the map is asked for again."""
        if self._map is not None:
            self._map = self._map.moved(told.slot, told.address)
        self._ask_first = list(dict.fromkeys([told.address, *self._ask_first]))
        if not self.closed:
            self._spawn_asking()

    def sends_on(self, error: EchoMQError, node: Node) -> bool:
        """Whether an error is a node's MOVED; it is taken to heart."""
        told = redirect(error, node.address)
        if told is None or told.kind != "MOVED":
            return False
        self.moved(told)
        return True

    def doubt(self, node: Node) -> None:
        """A node does not answer, or not as a primary: whether its slots are still there is asked before they are used
        again.
        """
        self._doubted.add(node.address)

    async def fresh(self) -> SlotMap:
        """Ask for the map, once for all who wait.

        Raises Unreachable, AuthenticationFailed, ConfigError, Unavailable.
        """
        task = self._spawn_asking()
        await asyncio.wait({task})
        outcome = self._is_closed() if task.cancelled() else task.result()
        if outcome is not None:
            raise outcome
        assert self._map is not None  # noqa: S101 - an outcome of None has set it
        return self._map

    def _is_closed(self) -> EchoMQError:
        return EchoMQError(f"connector {self._terms.endpoint.safe}: it is closed")

    def _spawn_asking(self) -> asyncio.Task[EchoMQError | None]:
        if self.closed:
            raise self._is_closed()
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name=f"connector:{self._terms.name}:map")
        return self._asking

    async def _ask(self) -> EchoMQError | None:
        first: EchoMQError | None = None
        known = self._candidates()
        limit_ms = max(_PATIENCE_MS, self._terms.connect_timeout_ms // len(known))
        try:
            for address in known:
                try:
                    self._adopt(await self._told_by(address, limit_ms))
                except (AuthenticationFailed, ConfigError, FenceRefused) as error:
                    return error
                except EchoMQError as error:
                    first = first or error
                else:
                    return None
            more = f" (nor any of {len(known) - 1} others)" if len(known) > 1 else ""
            if isinstance(first, WireError):
                return type(first)(f"{first}{more}")
            return first
        finally:
            self._asking = None

    def _candidates(self) -> list[Host]:
        """Whom to ask, the best first: who has told of a change, who is connected, who is known, the URL's."""
        connected = [node.address for node in self if node.connected and node.address not in self._doubted]
        known = () if self._map is None else self._map.primaries
        return list(dict.fromkeys([*self._ask_first, *connected, *known, *self._terms.endpoint.address.hosts]))

    async def _told_by(self, address: Host, limit_ms: int) -> SlotMap:
        terms = self._terms
        try:
            reply = await self._asked_within(address, limit_ms)
        except TimeoutError:
            raise Unreachable(f"{terms.endpoint.at(*address).safe}: no map of slots within {limit_ms} ms") from None
        if isinstance(reply, ServerError):
            if reply.code in LOGIN_REFUSALS:
                raise AuthenticationFailed(f"{terms.endpoint.at(*address).safe}: CLUSTER SLOTS is not allowed: {reply}")
            raise ConfigError(f"{terms.endpoint.at(*address).safe}: this is not a node of a cluster: {reply}")
        if isinstance(reply, EchoMQError):
            raise reply
        try:
            told = SlotMap.read(reply, address)
        except (AttributeError, IndexError, TypeError, ValueError):
            raise Unreachable(f"{terms.endpoint.at(*address).safe}: its map of slots cannot be read") from None
        if not told.primaries:
            raise Unavailable(f"CLUSTERDOWN {terms.endpoint.at(*address).safe}: no node has slots")
        return told

    async def _asked_within(self, address: Host, limit_ms: int) -> Any:
        async with within(limit_ms / 1000):
            return await self._asked(address)

    async def _asked(self, address: Host) -> Any:
        """The reply to CLUSTER SLOTS over the connection that stands, else over one for this question."""
        node = self._nodes.get(address)
        # Posted, not called: a call would open a connection where there is none, and opening one asks us for the map.
        asked = None if node is None else node.post([_MAP])
        if asked is not None:
            answer = await asked
        else:
            link = await Node(address, self._terms, self).greet(f"{self._terms.name}:map")
            try:
                answer = await link.submit(pack(_MAP), 1)
            finally:
                await link.aclose(at_once=True)
        if isinstance(answer, WireError):
            raise Unreachable(str(answer))
        return answer[0]

    def _adopt(self, told: SlotMap) -> None:
        self._map = told
        self._doubted.clear()
        self._ask_first.clear()
        for address in set(self._nodes) - set(told.primaries):
            node = self._nodes.pop(address)
            self._retired_generations += node.generation
            task = asyncio.create_task(_retire(node), name=f"connector:{self._terms.name}:end")
            self._retiring[task] = node
            task.add_done_callback(self._retiring.pop)

    async def pass_fence(self) -> None:
        """Ask the owner of the fence's slot for it. Raises FenceRefused, and what connecting raises.

        Over the owner's connection where that stands. Else over one for this question: to wait for the owner to connect
        could be to wait for ourselves, while two nodes each take the other for the owner.
        """
        wanted = self._terms.wire_version
        for _ in range(_TURNS):
            node = await self.of(FENCE_SLOT)
            try:
                found = await self._fence_at(node)
            except WireError as error:
                if self.sends_on(error, node):
                    continue
                if not isinstance(error, Unavailable):
                    self.doubt(node)
                raise
            if found != wanted:
                raise FenceRefused(wanted, found)
            return
        raise Unavailable("TRYAGAIN the slot of the fence does not stay with one node")

    async def _fence_at(self, node: Node) -> str:
        asked = node.post([("GET", FENCE_KEY)])
        if asked is not None:
            answer = await asked
            if isinstance(answer, WireError):
                raise Unreachable(str(answer))
            found = fence_value(answer[0], self._terms.endpoint.safe, self._terms.wire_version)
            if found is not None:
                return found
        # Its handshake reads the fence, and claims it where there is none.
        link = await node.greet(f"{self._terms.name}:fence", self._terms.wire_version)
        await link.aclose(at_once=True)
        return self._terms.wire_version

    async def aclose(self) -> None:
        """Close every connection; may be called again."""
        self.closed = True
        tasks = {*self._retiring, *([self._asking] if self._asking is not None else [])}
        nodes, self._nodes = [*self._nodes.values(), *self._retiring.values()], {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*(node.aclose() for node in nodes), *map(_end, tasks))


async def _retire(node: Node) -> None:
    """Close the connection to a node without slots, when what was sent to it is answered."""
    # Replies come in order: when this PING is answered, so is everything that was sent before it.
    while node.pending and (answer := node.post([("PING",)])) is not None:
        await asyncio.wait({answer})
    await node.aclose()


async def _end(task: asyncio.Task[Any]) -> None:
    await asyncio.wait({task})
