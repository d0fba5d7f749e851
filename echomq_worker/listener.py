"""Listener: requests to cancel, heard at once, over one connection for all queues of the process.

Source: issue "Every control" ("it arrives at once where it is heard and at the next lease extension where it was
missed"). What was published before the connection was made is not heard here: then every job in hand is asked about.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from echomq_worker.cancel import read_request
from echomq_worker.clock import Clock
from echomq_worker.degraded import Degraded
from echomq_worker.errors import AuthenticationFailed, EchoMQError, ServerError, WireError
from echomq_worker.keyspace import Keys
from echomq_worker.logs import Logger
from echomq_worker.nap import Nap
from echomq_worker.subscription import Subscription


class Listener:
    """`run` hears the cancel channels of `queues` and calls `deliver(queue, id, reason)` for each request. `look()`
    tells of those that were made before, once for each connection.
    """

    __slots__ = ("_clock", "_degraded", "_deliver", "_log", "_look", "_nap", "_queues", "_subscription")

    def __init__(
        self,
        subscription: Subscription,
        queues: Sequence[Keys],
        *,
        clock: Clock,
        degraded: Degraded,
        deliver: Callable[[str, str, str], object],
        look: Callable[[], Awaitable[object]],
        log: Logger,
    ) -> None:
        self._subscription = subscription
        self._queues = {keys.cancel: keys.queue for keys in queues}
        self._clock = clock
        self._degraded = degraded
        self._deliver = deliver
        self._look = look
        self._log = log
        self._nap = Nap()

    async def run(self) -> None:
        """Hear until cancelled; a lost connection is made again on the degraded curve.

        A server that refuses the channels (an ACL without them) is warned about, once: requests come with the
        extension of a lease then.
        """
        try:
            while True:
                try:
                    await self.hear()
                except (WireError, AuthenticationFailed) as error:
                    await self._nap.sleep(self._clock, self._degraded.fail(error, self._nap.wake))
        except ServerError as error:
            self._log.warning(
                "cancel channel refused", error=str(error), hint="requests arrive when a lease is extended"
            )
            self._degraded.good()
        finally:
            await self._subscription.aclose()

    async def hear(self) -> None:
        """Connect, and deliver what is heard until the connection is lost. Raises WireError, ServerError."""
        await self._subscription.open(list(self._queues))
        self._degraded.good()
        with suppress(EchoMQError):
            # If the server cannot be asked now, the keeper's next extension of leases brings the requests.
            await self._look()
        while True:
            channel, data = await self._subscription.get()
            request = read_request(data)
            if request is not None:
                self._deliver(self._queues[channel.decode()], request.id, request.reason)
