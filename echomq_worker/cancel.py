"""Cancel: a request for the end of one job, from anywhere.

Source: issue "Every control" (the worker in hand), the seed "Lifecycle controls" (the cooperative token), script
`cancel`. A job that does not run is removed. One that does gets the request on its row and, where its worker listens,
over the queue's cancel channel at once; a worker that missed it is told at the next extension of the lease. The handler
decides: what it completes counts as done, anything else makes the job dead with `cancelled: <reason>`, without a retry.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Literal, NamedTuple, get_args

from echomq_worker.codec import event_text
from echomq_worker.connector import Wire
from echomq_worker.errors import EchoMQError, InvalidArgument
from echomq_worker.keyspace import Keys
from echomq_worker.script import evaluate
from echomq_worker.verdict import ERROR_LIMIT, clean

Answer = Literal["removed", "asked", "ended", "gone"]
"""What became of a request: the job did not run and is removed; it runs and was asked; it is dead; it has no row."""

# `last_error` has the same limit, with the word in front.
REASON_LIMIT = ERROR_LIMIT - len("cancelled: ")


class Request(NamedTuple):
    """A request as the cancel channel carries it."""

    id: str
    reason: str


class Cancel:
    """Requests to cancel, over any wire."""

    __slots__ = ("_wire",)

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def request(self, queue: str, id: str, reason: str = "by request") -> Answer:
        """Ask for the end of a job; `reason` becomes a part of its `last_error`, on one line of at most 989 characters.

        Asked again, an active job keeps the last reason on its row; its handler has the first one. Raises
        InvalidQueueName, InvalidId, InvalidArgument (a reason that is no text, or empty), and what `Connector.call`
        raises.
        """
        keys = Keys(queue)
        words = _reason(reason)
        names = (keys.job(id), keys.pending, keys.active, keys.schedule)
        reply = (await evaluate(self._wire, "cancel", names, (id, words, keys.base))).decode()
        if reply == "removed":
            await self._tell(keys, id, words)
        return next(answer for answer in get_args(Answer) if answer == reply)

    async def _tell(self, keys: Keys, id: str, reason: str) -> None:
        """Publish the end of a job that nobody ran, as a worker would have; it is gone whether or not this is heard."""
        with suppress(EchoMQError):
            await self._wire.call("PUBLISH", keys.events, event_text("removed", id, error=f"cancelled: {reason}"))


def read_request(data: bytes) -> Request | None:
    """What a message on the cancel channel asks for; None for one that is no request."""
    try:
        said: Any = json.loads(data)
        id, reason = said["id"], said["reason"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return Request(id, clean(reason)) if isinstance(id, str) and isinstance(reason, str) else None


def _reason(reason: object) -> str:
    if not isinstance(reason, str):
        raise InvalidArgument(f"cancel reason of type {type(reason).__name__}: expected text")
    words = clean(reason)[:REASON_LIMIT]
    if not words:
        raise InvalidArgument("cancel reason: it is empty, expected a text")
    return words
