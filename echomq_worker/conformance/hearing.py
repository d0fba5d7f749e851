"""Hearing: what is published on the channels of a queue, as values."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from echomq_worker.conformance.bench import Bench
from echomq_worker.conformance.checks import Broken, comes, same
from echomq_worker.subscription import Subscription

_MARK = '{"mark":true}'


class Heard:
    """The messages of some channels in order."""

    __slots__ = ("_bench", "_channel", "_subscription")

    def __init__(self, bench: Bench, subscription: Subscription, channel: str) -> None:
        self._bench = bench
        self._subscription = subscription
        self._channel = channel

    async def next(self) -> Any:
        """The next message, JSON decoded. Raises Broken when none comes."""
        message = await comes(self._subscription.get(), "a message on the channel")
        try:
            return json.loads(message.data)
        except ValueError:
            raise Broken(f"a message on the channel: {ascii(message.data)[:200]} is no JSON") from None

    async def nothing(self) -> None:
        """Raise Broken where something was published that is not read yet."""
        await self._bench.wire.call("PUBLISH", self._channel, _MARK)
        same(await self.next(), json.loads(_MARK), "the next message, when none is expected")


@asynccontextmanager
async def hearing(bench: Bench, *channels: str) -> AsyncIterator[Heard]:
    """Hear channels over a connection of their own: all that is published inside."""
    async with bench.connector() as connector:
        subscription = connector.subscription("hearing")
        await subscription.open(channels)
        try:
            yield Heard(bench, subscription, channels[0])
        finally:
            await subscription.aclose()
