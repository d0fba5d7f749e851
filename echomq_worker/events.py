"""Events: what becomes of jobs, told live on a queue's channel, and an iterator that hears it.

Source: protocol section 4 (events: one JSON object each, `event` names it; at most once). Values are JSON strings, as
in `{"event":"progress","job":"JOB…","progress":"50"}`. Nothing is kept for who is not connected: the state of a job is
what its row says, not an event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from echomq_worker.backoff import Exponential, delay_ms
from echomq_worker.clock import Clock, SystemClock
from echomq_worker.connector import Connector
from echomq_worker.errors import EchoMQError, InvalidArgument, WireError
from echomq_worker.keyspace import Keys
from echomq_worker.subscription import Subscription

_AGAIN = Exponential(100, 30_000)


@dataclass(frozen=True, slots=True)
class Event:
    """One event: `name` (completed, scheduled, dead, delayed, stalled, removed, progress, or a foreign runtime's), the
    job's id ('' where it is about none), and what else was said, as text.
    """

    queue: str
    name: str
    job: str
    fields: Mapping[str, str] = field(default_factory=dict)


class Stream:
    """Live events of some queues: `async with events.subscribe("emails") as stream: async for event in stream: …`.

    Delivery is at most once. A lost connection is made again (after 100 ms, up to 30 s when it keeps failing); what
    was published meanwhile is missed, and `gaps` counts how often that may have happened. `dropped` counts events that
    went because this reader was more than 10,000 behind. Without `async with` it connects when it is first asked, and
    the connection stays until `aclose` or the end of the connector.
    """

    def __init__(self, subscription: Subscription, queues: Sequence[Keys], *, clock: Clock) -> None:
        self.gaps = 0
        self._subscription = subscription
        self._queues = {keys.events: keys.queue for keys in queues}
        self._clock = clock
        self._open = False
        self._streak = 0

    @property
    def dropped(self) -> int:
        """Events that went because the reader was too slow."""
        return self._subscription.dropped

    async def __aenter__(self) -> Self:
        """Connect: what is published from here on is heard. Raises what connecting raises, ServerError."""
        await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event. The first connection raises when it fails, later ones are tried again for ever.

        FenceRefused, AuthenticationFailed and ServerError (a channel is refused) are raised at any time.
        """
        if not self._open:
            await self._connect()
        while not self._subscription.closed:
            try:
                channel, data = await self._subscription.get()
            except WireError:
                await self._reconnect()
                continue
            self._streak = 0
            event = read_event(self._queues[channel.decode()], data)
            if event is not None:
                return event
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Close the connection; the iteration ends."""
        await self._subscription.aclose()

    async def _connect(self) -> None:
        await self._subscription.open(list(self._queues))
        self._open = True

    async def _reconnect(self) -> None:
        self.gaps += 1
        while not self._subscription.closed:
            self._streak += 1
            await self._clock.sleep_ms(delay_ms(_AGAIN, self._streak))
            try:
                await self._connect()
            except WireError:
                continue
            except EchoMQError:
                # Closed while it was connecting: that ends the iteration and is no error.
                if not self._subscription.closed:
                    raise
            return


class Events:
    """Live events, over a connector: each stream has a connection of its own."""

    __slots__ = ("_clock", "_connector")

    def __init__(self, connector: Connector, *, clock: Clock | None = None) -> None:
        self._connector = connector
        self._clock = clock or SystemClock()

    def subscribe(self, *queues: str) -> Stream:
        """A stream of the events of one queue or more. Raises InvalidQueueName, InvalidArgument (no queue)."""
        if not queues:
            raise InvalidArgument("events: no queue, expected at least one")
        named = [Keys(queue) for queue in dict.fromkeys(queues)]
        return Stream(self._connector.subscription("events"), named, clock=self._clock)


def read_event(queue: str, data: bytes) -> Event | None:
    """What was published, or None where that is no event. Values that are no text stand as their JSON."""
    try:
        said: Any = json.loads(data)
        name = said["event"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(said, dict) or not isinstance(name, str):
        return None
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in said.items()}
    del texts["event"]
    return Event(queue, name, texts.pop("job", ""), texts)
