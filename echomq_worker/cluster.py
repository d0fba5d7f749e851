"""The connector of a cluster: each command over the connection to the node that owns its slot.

Source: issue "The five promises, kept under every fault, on every topology" (Topologies), protocol section 4 ("a key of
a migrating slot raises in mid-script"). A command that a node has refused with MOVED has not run, so it is sent once
more, to the node that was named; nothing else is ever sent a second time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from echomq_worker.address import Host
from echomq_worker.clock import Clock
from echomq_worker.cluster_map import redirect
from echomq_worker.cluster_nodes import FENCE_SLOT, Node, Nodes, Terms
from echomq_worker.cluster_route import ANY, EVERY, is_transaction, may_be_asked, route, routes, together
from echomq_worker.cluster_scan import scan
from echomq_worker.connection import Answer, Hearer, Link
from echomq_worker.endpoint import Endpoint
from echomq_worker.errors import ConnectionLost, EchoMQError, Unavailable, WireError
from echomq_worker.keyspace import slot
from echomq_worker.seats import Berth
from echomq_worker.single import Connector
from echomq_worker.twins import SCRIPTS, Spoken, least

T = TypeVar("T")

# What a node answers that is not a primary (any more): its slots have moved with a failover.
_NO_PRIMARY = frozenset({"LOADING", "MASTERDOWN", "READONLY"})


class ClusterConnector(Connector):
    """A Connector for a cluster, with the same surface: one multiplexed connection per primary that is in use.

    A command goes to the owner of its key's slot, one without a key to the owner of the fence's slot, and those that
    concern all keys to every primary. Commands that are not known to `cluster_route` are refused (InvalidArgument).
    """

    def __init__(
        self,
        url: str | Endpoint,
        *,
        wire_version: str = "echomq:3.0.0",
        connect_timeout_ms: int = 5000,
        command_timeout_ms: int = 5000,
        clock: Clock | None = None,
        name: str = "echomq",
        wire: int | str = SCRIPTS,
    ) -> None:
        """Raise ConfigError for a URL, timeout or wire that cannot be used; nothing is connected yet."""
        endpoint = url if isinstance(url, Endpoint) else Endpoint.parse(url)
        super().__init__(
            endpoint,
            wire_version=wire_version,
            connect_timeout_ms=connect_timeout_ms,
            command_timeout_ms=command_timeout_ms,
            clock=clock,
            name=name,
            wire=wire,
        )
        self._nodes = Nodes(
            Terms(
                endpoint,
                wire_version,
                connect_timeout_ms,
                command_timeout_ms,
                clock=self._clock,
                name=name,
                wire=self._wire,
            )
        )

    @property
    def connected(self) -> bool:
        """Whether the connection to each node that is in use stands, as far as is known."""
        used = [node for node in self._nodes if node.generation]
        return bool(used) and all(node.connected for node in used)

    @property
    def spoken(self) -> Spoken:
        """What the nodes that are in use speak; where they differ, the least."""
        return least((node.spoken for node in self._nodes if node.generation), super().spoken)

    @property
    def standing(self) -> Counter[str]:
        """How many connections stand; for commands one per primary that is in use."""
        found = super().standing
        found["commands"] = sum(1 for node in self._nodes if node.connected)
        return found

    @property
    def generation(self) -> int:
        """How many times a connection was made, to whichever node, and the fence was passed."""
        return self._nodes.generation

    @property
    def pending(self) -> int:
        """Calls and pipelines that are not answered yet."""
        return self._held_up

    async def open(self) -> None:
        """Learn which node has which slot, and pass the fence; raises what `Connector.open` raises."""
        self._check()
        await (await self._nodes.of(FENCE_SLOT)).open()

    async def nodes(self) -> Sequence[Connector]:
        """A connector for each primary; they are not to be closed."""
        self._check()
        return await self._nodes.primaries()

    async def skew_ms(self) -> int:
        """Of all primaries the largest difference to the host's wall clock, see `Connector.skew_ms`."""
        return max([await node.skew_ms() for node in await self.nodes()], key=abs)

    async def call(self, *args: Any) -> Any:
        """Send one command to where it belongs and return its reply; see Connector.call.

        Raises Unavailable also for a slot that is on its way to another node (TRYAGAIN, ASK of a script) or that no
        node serves.
        """
        if args and args[0] == "SCAN":
            self._check()
            return await scan(self._nodes, args)
        where = route(args)
        if where == EVERY:
            reply = (await self.pipeline([args]))[0]
            if isinstance(reply, EchoMQError):
                raise reply
            return reply
        self._check()
        self._held_up += 1
        try:
            return await self._call(FENCE_SLOT if where == ANY else where, args)
        finally:
            self._held_up -= 1

    async def _call(self, where: int, args: tuple[Any, ...]) -> Any:
        node = self._nodes.ready(where) or await self._nodes.of(where)
        try:
            return await node.call(*args)
        except Unavailable as error:
            told = redirect(error, node.address)
            if told is None:
                self._note(node, error)
                raise
            if told.kind == "MOVED":
                self._nodes.moved(told)
                return await self._named(told.address, lambda named: named.call(*args))
            if not may_be_asked(args):
                raise
            reply = (await self._pipeline_at(told.address, [("ASKING",), args]))[1]
            if isinstance(reply, EchoMQError):
                raise reply from None
            return reply
        except WireError:
            self._nodes.doubt(node)
            raise

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands in one go, to each node its own, and return the replies in order; see Connector.pipeline.

        Where some nodes have answered and another has not, what became of its commands stands in their place:
        ConnectionLost, Unreachable. Where none has it raises. A transaction (MULTI) stays on one node.
        """
        if not commands:
            return []
        where = routes(commands)
        self._check()
        self._held_up += 1
        try:
            if len(set(where)) == 1 and where[0] != EVERY:
                return await self._on_one(where[0], commands)
            return await self._on_several(where, commands)
        finally:
            self._held_up -= 1

    async def _on_one(self, where: int, commands: Sequence[Sequence[Any]]) -> list[Any]:
        at = FENCE_SLOT if where == ANY else where
        node = self._nodes.ready(at) or await self._nodes.of(at)
        try:
            replies = await node.pipeline(commands)
        except WireError as error:
            self._note(node, error)
            raise
        return await self._sent_on(node, commands, replies)

    async def _on_several(self, where: Sequence[int], commands: Sequence[Sequence[Any]]) -> list[Any]:
        every = await self._nodes.primaries() if EVERY in where else []
        parts: dict[Node, list[int]] = {node: [] for node in every}
        for number, at in enumerate(where):
            some = every if at == EVERY else [await self._nodes.of(FENCE_SLOT if at == ANY else at)]
            for node in some:
                parts.setdefault(node, []).append(number)
        answers = await self._together(
            [self._part(node, [commands[number] for number in numbers]) for node, numbers in parts.items()]
        )
        if failed := [answer for answer in answers if isinstance(answer, EchoMQError)]:
            _raise_where_none_answered(failed, len(answers))
        found: list[list[Any]] = [[] for _ in commands]
        for numbers, answer in zip(parts.values(), answers, strict=True):
            for at, number in enumerate(numbers):
                found[number].append(answer if isinstance(answer, EchoMQError) else answer[at])
        return [together(command, replies) for command, replies in zip(commands, found, strict=True)]

    @staticmethod
    async def _together(parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        return await asyncio.gather(*parts)

    async def _part(self, node: Node, commands: Sequence[Sequence[Any]]) -> list[Any] | EchoMQError:
        """The replies of one node, or what became of the connection to it."""
        try:
            return await self._sent_on(node, commands, await node.pipeline(commands))
        except EchoMQError as error:
            self._note(node, error)
            return error

    async def _sent_on(self, node: Node, commands: Sequence[Sequence[Any]], replies: list[Any]) -> list[Any]:
        """The replies, with those commands sent again for which the node has sent us to another one."""
        elsewhere: dict[Host, list[int]] = {}
        asked: dict[Host, list[int]] = {}
        for number, reply in enumerate(replies):
            told = redirect(reply, node.address) if isinstance(reply, Unavailable) else None
            if told is not None and told.kind == "MOVED":
                self._nodes.moved(told)
                elsewhere.setdefault(told.address, []).append(number)
            elif told is not None and may_be_asked(commands[number]):
                asked.setdefault(told.address, []).append(number)
            elif isinstance(reply, Unavailable):
                self._note(node, reply)
        if is_transaction(commands):
            # Refused as a whole, so it is sent again as a whole.
            return await self._pipeline_at(next(iter(elsewhere)), commands) if elsewhere else replies
        for address, numbers in elsewhere.items():
            await self._put(address, [[commands[number]] for number in numbers], numbers, replies)
        for address, numbers in asked.items():
            await self._put(address, [[("ASKING",), commands[number]] for number in numbers], numbers, replies)
        return replies

    async def _put(
        self, address: Host, groups: Sequence[Sequence[Sequence[Any]]], numbers: Sequence[int], replies: list[Any]
    ) -> None:
        """Send groups of commands to a node; the reply to the last of each goes to its place."""
        try:
            again = iter(await self._pipeline_at(address, [command for group in groups for command in group]))
        except WireError as error:
            # Only what went to this node has failed; the replies of other nodes stand.
            for number in numbers:
                replies[number] = error
            return
        for number, group in zip(numbers, groups, strict=True):
            replies[number] = [next(again) for _ in group][-1]

    def post(self, commands: Sequence[Sequence[Any]]) -> asyncio.Future[Answer] | None:
        """Send commands of one slot in this turn's write and wait for nothing; see Connector.post."""
        found = set(routes(commands))
        node = self._nodes.ready(max(found)) if len(found) == 1 else None
        return None if node is None else node.post(commands)

    def publish(self, channel: str, texts: Sequence[str]) -> asyncio.Future[Answer] | None:
        """PUBLISH each text, as `post` does it: over the channel's own node where it is connected, else over another
        one, as what is published reaches every node from any.
        """
        node = self._nodes.ready(slot(channel))
        if node is None or not node.connected:
            node = next((one for one in self._nodes if one.connected), None)
        return None if node is None else node.publish(channel, texts)

    def _stand_of(self, key: str | bytes) -> int:
        return slot(key)

    async def _berth(self, key: str | bytes, sent_on: Unavailable | None) -> Berth:
        self._check()
        node = await self._nodes.of(slot(key))
        told = None if sent_on is None else redirect(sent_on, node.address)
        if told is not None:
            self._nodes.moved(told)
            node = self._at(told.address)
        return Berth(await self._link_to(node, f"{self._name}:parking"), node)

    async def _hear(self, name: str, hearer: Hearer, channels: Sequence[str]) -> Link:
        """A connection that will hear channels: every node tells of all that is published, so any will do."""
        self._check()
        node = await self._nodes.of(slot(channels[0]))
        try:
            return await self._link_to(node, name, hearer)
        except WireError:
            other = next((one for one in self._nodes if one.connected and one is not node), None)
            if other is None:
                raise
            return await self._link_to(other, name, hearer)

    async def _link_to(self, node: Node, name: str, hearer: Hearer | None = None) -> Link:
        try:
            return await node.link(name, hearer)
        except WireError as error:
            self._note(node, error)
            raise

    async def _pipeline_at(self, address: Host, commands: Sequence[Sequence[Any]]) -> list[Any]:
        return await self._named(address, lambda node: node.pipeline(commands))

    async def _named(self, address: Host, send: Callable[[Node], Awaitable[T]]) -> T:
        """What a node answers that another has sent us to."""
        node = self._at(address)
        try:
            return await send(node)
        except WireError as error:
            self._note(node, error)
            raise

    def _at(self, address: Host) -> Node:
        return self._nodes.at(address)

    def _note(self, node: Node, error: EchoMQError) -> None:
        """A node that cannot be reached, or is no primary, is doubted."""
        if isinstance(error, Unavailable):
            if error.code in _NO_PRIMARY:
                self._nodes.doubt(node)
        elif isinstance(error, WireError):
            self._nodes.doubt(node)

    def _check(self) -> None:
        self._check_loop()
        if self._closed:
            raise self._is_closed()

    async def _end_opening(self) -> None:
        self._closed = True

    async def _close_link(self) -> None:
        await self._nodes.aclose()


def _raise_where_none_answered(failed: Sequence[EchoMQError], parts: int) -> None:
    """Raise what is no trouble of the transport; and that too, the worst of it, where no part was answered."""
    for error in failed:
        if not isinstance(error, WireError):
            raise error
    if len(failed) == parts:
        raise next((one for one in failed if isinstance(one, ConnectionLost)), failed[0])
