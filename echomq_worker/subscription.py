"""A connection that hears channels. It does not reconnect by itself: who reads decides how long to wait.

Source: protocol section 1 (the channels `events` and `cancel`), section 4 ("Delivery is at most once"). What is
published while nobody is connected is not heard, and nobody can tell.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from echomq_worker.connection import Hearer, Link
from echomq_worker.errors import EchoMQError, InvalidArgument, WireError
from echomq_worker.packing import pack

# Messages that wait for a reader who is slow; above this the oldest go.
KEEP = 10_000


class Message(NamedTuple):
    """What was published on which channel."""

    channel: bytes
    data: bytes


class Subscription:
    """Hears channels, one reader at a time: `open`, then `get` until it raises, then `open` again.

    `dropped` counts messages that went because the reader was too slow. A peer that is silent for `ping_ms` is asked
    whether it is there; without an answer in the time that a command gets, the connection is given up.
    """

    def __init__(
        self, dial: Callable[[Hearer, Sequence[str]], Awaitable[Link]], *, ping_ms: int, keep: int = KEEP
    ) -> None:
        self.dropped = 0
        self._dial = dial
        self._ping_s = ping_ms / 1000
        self._messages: deque[Message] = deque()
        self._keep = keep
        self._link: Link | None = None
        self._lost: WireError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether the connection stands, as far as is known."""
        return self._link is not None and not self._link.closed

    @property
    def closed(self) -> bool:
        """Whether `aclose` was called."""
        return self._closed

    async def open(self, channels: Sequence[str]) -> None:
        """Connect and subscribe: what is published after this has returned is heard.

        Raises what connecting raises, ConnectionLost, ServerError where the server refuses a channel.
        """
        if not channels:
            raise InvalidArgument("channels: none, expected at least one")
        await self._drop_link()
        await self._check_open()
        self._lost = None
        link = self._link = await self._dial(self, channels)
        await self._check_open()
        answer = await link.submit(b"".join(pack(("SUBSCRIBE", name)) for name in channels), len(channels))
        if isinstance(answer, WireError):
            raise answer
        for reply in answer:
            if isinstance(reply, EchoMQError):
                await self._drop_link()
                raise reply

    async def get(self) -> Message:
        """The next message. Raises ConnectionLost or CommandTimeout once all that came before the loss is read."""
        while not self._messages:
            link, lost = self._link, self._lost
            if link is None or link.closed:
                raise type(lost)(*lost.args) if lost is not None else EchoMQError("subscription: it is not open")
            waiter = self._waiter = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait({waiter}, timeout=self._ping_s)
            finally:
                self._waiter = None
            if not waiter.done():
                _ping(link)
        return self._messages.popleft()

    def message(self, channel: bytes, data: bytes) -> None:
        """Part of Hearer."""
        if len(self._messages) >= self._keep:
            self._messages.popleft()
            self.dropped += 1
        self._messages.append(Message(channel, data))
        self._wake()

    def ended(self, error: WireError) -> None:
        """Part of Hearer."""
        self._lost = error
        self._wake()

    async def aclose(self) -> None:
        """Close the connection; a reader gets ConnectionLost. May be called again."""
        self._closed = True
        await self._drop_link()

    def abort(self) -> None:
        """Drop the connection at once."""
        self._closed = True
        if self._link is not None:
            self._link.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _check_open(self) -> None:
        if self._closed:
            await self._drop_link()
            raise EchoMQError("subscription: it is closed")

    async def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()


def _ping(link: Link) -> None:
    if not link.closed and not link.pending:
        link.submit(pack(("PING",)), 1)
