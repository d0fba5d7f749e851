"""One server: commands and pipelines for many callers over one connection that is made again when it was lost.

Source: protocol section 3 (fence), design sections 3 and 4. Nothing is ever sent a second time: what a lost reply
means is for the caller to decide, verb by verb.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from echomq_worker import bounds
from echomq_worker.address import Kind
from echomq_worker.bounds import checked
from echomq_worker.clock import Clock, SystemClock
from echomq_worker.connection import Answer, Haste, Hearer, Link
from echomq_worker.endpoint import Endpoint
from echomq_worker.errors import ConfigError, ConnectionLost, EchoMQError, Unavailable, Unreachable, WireError
from echomq_worker.handshake import establish
from echomq_worker.packing import pack, pack_publish
from echomq_worker.parking import MARGIN_MS, Parking
from echomq_worker.seats import Berth
from echomq_worker.subscription import Subscription
from echomq_worker.twins import SCRIPTS, Spoken, Twins, known_wire

A = TypeVar("A", Parking, Subscription)


class Wire(Protocol):
    """What verbs are sent over: a connector, or a pool of them."""

    async def call(self, *args: Any) -> Any:
        """Send one command and return its reply; an error reply raises."""

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands in one go and return the replies in order; error replies stand in place as exceptions."""


class Connector:
    """One multiplexed connection to the server; belongs to the event loop that uses it first.

    The first call of an event-loop turn leaves at once, and whatever else the turn brings in one write at its end.
    Cancelling a caller does not touch the connection: its command runs, the reply is dropped. After a loss the next
    call connects again, once per call, and passes the fence first. Commands that block (BLPOP) or change the connection
    (SUBSCRIBE, SELECT) do not belong here.
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
        checked("connect_timeout_ms", connect_timeout_ms, bounds.ANSWER_MS)
        checked("command_timeout_ms", command_timeout_ms, bounds.ANSWER_MS)
        self._endpoint = url if isinstance(url, Endpoint) else _one_server(url)
        self._wire_version = wire_version
        self._connect_timeout_ms = connect_timeout_ms
        self._command_timeout_ms = command_timeout_ms
        self._clock = clock or SystemClock()
        self._name = name
        self._wire = known_wire(wire)
        self._twins = None if self._wire == SCRIPTS else Twins(self._wire)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: Link | None = None
        self._opening: asyncio.Task[Link | EchoMQError] | None = None
        self._apart: list[Parking | Subscription] = []
        self._shared: dict[int, Parking] = {}
        self._closed = False
        self._generation = 0
        self._held_up = 0

    @property
    def url_safe(self) -> str:
        """The URL with its secrets masked."""
        return self._endpoint.safe

    @property
    def connected(self) -> bool:
        """Whether the connection stands, as far as is known."""
        return self._link is not None and not self._link.closed

    @property
    def standing(self) -> Counter[str]:
        """How many connections stand, as far as is known: `commands`, `parking`, and `cancel`, which hears channels."""
        apart = ("parking" if isinstance(one, Parking) else "cancel" for one in self._apart if one.connected)
        return Counter(commands=int(self.connected)) + Counter(apart)

    @property
    def generation(self) -> int:
        """How many times a connection was made and passed the fence."""
        return self._generation

    @property
    def spoken(self) -> Spoken:
        """Whether verbs go as scripts or as commands of the server, as of the last connection."""
        return Spoken(SCRIPTS) if self._twins is None else self._twins.spoken

    @property
    def pending(self) -> int:
        """Calls and pipelines that are not answered yet, those that wait for the connection included."""
        return self._held_up + (0 if self._link is None else self._link.pending)

    async def open(self) -> None:
        """Connect now; raises Unreachable, AuthenticationFailed, FenceRefused, Unavailable or ConfigError."""
        await self._usable()

    async def call(self, *args: Any) -> Any:
        """Send one command and return its reply, text as bytes.

        Raises what the server answers (Refused, Unavailable, ServerError), ConnectionLost or CommandTimeout when the
        reply is unknown, Unreachable and what `open` raises when nothing was sent, InvalidArgument for arguments that
        are not bytes, text, int or float, NoTwin on wire 6 for a script that has no command.
        """
        if self._twins is not None and args[:1] == ("EVALSHA",):
            reply = (await self._spell(self._twins, [args]))[0]
            if isinstance(reply, EchoMQError):
                raise reply
            return reply
        packed = pack(args)
        link = self._link
        if link is None or link.closed or not link.writable.is_set() or asyncio.get_running_loop() is not self._loop:
            link = await self._usable()
        reply = _replies(await link.submit(packed, 1, haste=Haste.OWN))[0]
        if isinstance(reply, EchoMQError):
            try:
                raise reply
            finally:
                del reply
        return reply

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands in one go and return the replies in order.

        Error replies stand in place as Refused, Unavailable or ServerError instances; transport trouble raises as in
        `call`. Between MULTI and EXEC of one pipeline nobody else's command comes.
        """
        if not commands:
            return []
        if self._twins is not None:
            return await self._spell(self._twins, commands)
        return await self._send(commands)

    async def _send(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        packed = b"".join([pack(command) for command in commands])
        link = self._link
        if link is None or link.closed or not link.writable.is_set() or asyncio.get_running_loop() is not self._loop:
            link = await self._usable()
        return _replies(await link.submit(packed, len(commands)))

    async def _spell(self, twins: Twins, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands as this node takes them; what its twins decline is sent again as a script, in one go."""
        if not self.connected:
            await self._usable()
        spelt = [twins.spell(command) for command in commands]
        replies = await self._send(spelt)
        declined: list[int] = []
        for number, (sent, command) in enumerate(zip(spelt, commands, strict=True)):
            if sent is not command:
                replies[number], again = twins.read(sent, replies[number])
                if again:
                    declined.append(number)
        if declined:
            try:
                answers = await self._send([commands[number] for number in declined])
            except Unreachable as error:
                if len(declined) == len(commands):
                    raise
                # The others were answered, and their replies are lost here.
                raise ConnectionLost(str(error)) from error
            for number, answer in zip(declined, answers, strict=True):
                replies[number] = answer
        return replies

    def post(self, commands: Sequence[Sequence[Any]]) -> asyncio.Future[Answer] | None:
        """Send commands in this turn's write and wait for nothing; None, and nothing sent, without a connection.

        The future need not be awaited and never raises: it becomes the replies, or what became of the connection.
        """
        link = self._link
        if link is None or link.closed:
            return None
        return link.submit(b"".join([pack(command) for command in commands]), len(commands), haste=Haste.NONE)

    def publish(self, channel: str, texts: Sequence[str]) -> asyncio.Future[Answer] | None:
        """PUBLISH each text, as `post` does it."""
        link = self._link
        if link is None or link.closed:
            return None
        return link.submit(pack_publish(channel, texts), len(texts), haste=Haste.NONE)

    def parking(self, *, margin_ms: int = MARGIN_MS) -> Parking:
        """A connection for blocking waits; it is closed with the connector. Raises EchoMQError on a closed one."""
        return self._kept(Parking(self._berth, margin_ms=margin_ms))

    def parking_for(self, key: str | bytes) -> Parking:
        """The connection on which all of this process wait for keys that one BLPOP can name together with `key`: here
        all keys, in a cluster those of its slot. Raises EchoMQError on a closed connector.
        """
        stand = self._stand_of(key)
        shared = self._shared.get(stand)
        if shared is None or shared.closed:
            shared = self._shared[stand] = self.parking()
        return shared

    def _stand_of(self, _key: str | bytes) -> int:
        return 0

    def subscription(self, purpose: str) -> Subscription:
        """A connection that hears channels, named `<name>:<purpose>`; it is closed with the connector.

        Raises EchoMQError on a closed one.
        """

        async def dial(hearer: Hearer, channels: Sequence[str]) -> Link:
            self._check_loop()
            return await self._hear(f"{self._name}:{purpose}", hearer, channels)

        return self._kept(Subscription(dial, ping_ms=self._command_timeout_ms))

    async def nodes(self) -> Sequence[Connector]:
        """A connector for each server that holds data: this one alone, in a cluster one per primary."""
        return (self,)

    def _kept(self, one: A) -> A:
        if self._closed:
            raise self._is_closed()
        self._apart = [kept for kept in self._apart if not kept.closed]
        self._apart.append(one)
        return one

    async def skew_ms(self) -> int:
        """The host's wall clock minus the server's TIME in ms, half the round trip taken off."""
        started = self._clock.monotonic_ms()
        seconds, microseconds = await self.call("TIME")
        half_ms = (self._clock.monotonic_ms() - started) / 2
        server_ms = int(seconds) * 1000 + int(microseconds) / 1000
        return round(self._clock.now_ms() - half_ms - server_ms)

    async def _usable(self) -> Link:
        self._check_loop()
        opened = False
        self._held_up += 1
        try:
            while True:
                if self._closed:
                    raise self._is_closed()
                link = self._link
                if link is None or link.closed:
                    if opened:
                        raise Unreachable(f"{self.url_safe}: the connection was closed right after it was made")
                    opened = True
                    await self._open_once()
                elif not link.writable.is_set():
                    await link.writable.wait()
                else:
                    return link
        finally:
            self._held_up -= 1

    def _is_closed(self) -> EchoMQError:
        return EchoMQError(f"connector {self.url_safe}: it is closed")

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise EchoMQError(f"connector {self.url_safe}: it belongs to another event loop, expected one per loop")

    async def _open_once(self) -> None:
        # One attempt for all who wait, in a task of its own: a caller who is cancelled takes only itself out.
        task = self._opening
        if task is None:
            task = self._opening = asyncio.create_task(self._open_link(), name=f"connector:{self._name}:open")
        await asyncio.wait({task})
        outcome = self._is_closed() if task.cancelled() else task.result()
        if isinstance(outcome, EchoMQError):
            raise outcome

    async def _open_link(self) -> Link | EchoMQError:
        try:
            link = await self._establish(self._name)
            await self._learn(link)
            self._link = link
            self._generation += 1
            return link
        except EchoMQError as error:
            return error
        finally:
            self._opening = None

    async def _learn(self, link: Link) -> None:
        """What the server has in place of scripts. Raises Unreachable."""
        if self._twins is None:
            return
        try:
            await self._twins.find(link)
        except BaseException as error:
            link.abort()
            if isinstance(error, WireError):
                raise Unreachable(f"{self.url_safe}: {error}") from error
            raise

    async def _berth(self, _key: str | bytes, sent_on: Unavailable | None) -> Berth:
        # Where all keys are on one server nobody is sent on.
        if sent_on is not None:
            raise sent_on
        self._check_loop()
        return Berth(await self._establish(f"{self._name}:parking"), self)

    async def _hear(self, name: str, hearer: Hearer, _channels: Sequence[str]) -> Link:
        return await self._establish(name, hearer)

    async def _establish(self, name: str, hearer: Hearer | None = None) -> Link:
        return await establish(
            self._endpoint,
            wire_version=self._wire_version,
            connect_timeout_ms=self._connect_timeout_ms,
            command_timeout_ms=self._command_timeout_ms,
            name=name,
            hearer=hearer,
        )

    async def aclose(self) -> None:
        """Close, with parkings and subscriptions; what is unanswered ends as ConnectionLost. May be called again."""
        if self._loop is not None and not self._closed:
            self._check_loop()
        # A stack, so that a cancellation in the middle leaves nothing open behind it.
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._close_link)
            closing.push_async_callback(self._end_opening)
            await self._close_apart()

    async def _close_apart(self) -> None:
        apart, self._apart = self._apart, []
        try:
            # They first, and while commands still go: a token that nobody took is given back over this connection.
            await asyncio.gather(*(one.aclose() for one in apart))
        finally:
            for one in apart:
                one.abort()

    async def _end_opening(self) -> None:
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})

    async def _close_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            # Cancelled while it connects: the attempt is a task of its own and has to be ended.
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _one_server(url: str) -> Endpoint:
    endpoint = Endpoint.parse(url)
    if endpoint.address.kind is Kind.CLUSTER:
        raise ConfigError(f"url {endpoint.safe}: a cluster's, expected it given to connect(), or to ClusterConnector")
    return endpoint


def _replies(answer: Answer) -> list[Any]:
    if isinstance(answer, WireError):
        raise answer
    return answer
