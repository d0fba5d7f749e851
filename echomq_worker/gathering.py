"""Gathering: flat jobs that many coroutines enqueue at the same time leave as one script call.

Source: issue "Faster than every peer" (concurrent `enqueue` calls coalesced into one round trip without added delay).
A caller that is alone sends the plain verb at once. While that is on its way, all calls of one turn of the event loop
are sent together at the end of the turn, and each gets an answer of its own.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from functools import partial

from echomq_worker.connector import Wire
from echomq_worker.errors import EchoMQError, KindRefused
from echomq_worker.keyspace import Keys
from echomq_worker.script import evaluate

_MOST_JOBS = 400
_MOST_BYTES = 4 * 1024 * 1024
_ADMITTED, _REFUSED = 1, -1

# Id, payload, and the future of the verdict on it, or of the error of the whole call.
_Waiting = tuple[str, bytes, "asyncio.Future[int | EchoMQError]"]


class Gathering:
    """The flat jobs that are admitted over one wire."""

    __slots__ = ("_alone", "_bytes", "_calls", "_waiting", "_wire")

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        # Whether a plain verb is on its way, sent by a caller who came when nobody else was there.
        self._alone = False
        self._waiting: dict[str, list[_Waiting]] = {}
        self._bytes = 0
        self._calls: set[asyncio.Task[None]] = set()

    async def admit(self, keys: Keys, id: str, payload: bytes) -> bool:
        """Whether the job was admitted; False where there is one of that id. Raises KindRefused for an id that is not
        JOB-namespaced, and what `Connector.call` raises: to everybody whose job was in that call.

        A caller that is cancelled disturbs nothing: its job is admitted, the answer is dropped.
        """
        if not self._alone:
            self._alone = True
            try:
                reply = await evaluate(self._wire, "enqueue", (keys.job(id), keys.pending), (id, payload))
            finally:
                self._alone = False
            return bool(reply == _ADMITTED)
        verdict = await self._together(keys, id, payload)
        if isinstance(verdict, EchoMQError):
            # One error for all who wait, and each raises it in a frame of its own.
            raise copy.copy(verdict)
        if verdict == _REFUSED:
            raise KindRefused(f"EMQKIND job id must be JOB-namespaced: {id}")
        return verdict == _ADMITTED

    def _together(self, keys: Keys, id: str, payload: bytes) -> asyncio.Future[int | EchoMQError]:
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(keys.queue)
        if waiting is not None and (len(waiting) == _MOST_JOBS or self._bytes + len(payload) > _MOST_BYTES):
            self._send(keys, waiting)
            waiting = None
        if waiting is None:
            waiting = self._waiting[keys.queue] = []
            loop.call_soon(self._send, keys, waiting)
        self._bytes += len(payload)
        told: asyncio.Future[int | EchoMQError] = loop.create_future()
        waiting.append((id, payload, told))
        return told

    def _send(self, keys: Keys, waiting: list[_Waiting]) -> None:
        if self._waiting.get(keys.queue) is not waiting:
            # The call was full, so it was sent already.
            return
        del self._waiting[keys.queue]
        self._bytes -= sum(len(payload) for _, payload, _ in waiting)
        call = asyncio.get_running_loop().create_task(self._call(keys, waiting), name=f"enqueue:{keys.queue}")
        self._calls.add(call)
        call.add_done_callback(partial(self._ended, waiting))

    def _ended(self, waiting: Sequence[_Waiting], call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        # When the call was cancelled, perhaps before it began, nobody else would tell those who wait.
        for _, _, told in waiting:
            told.cancel()

    async def _call(self, keys: Keys, waiting: Sequence[_Waiting]) -> None:
        values = [keys.base, *(value for id, payload, _ in waiting for value in (id, payload))]
        verdicts: Sequence[int | EchoMQError]
        try:
            verdicts = await evaluate(self._wire, "enqueue_many", (keys.pending,), values)
        except EchoMQError as error:
            verdicts = [error] * len(waiting)
        for (_, _, told), verdict in zip(waiting, verdicts, strict=True):
            if not told.done():
                told.set_result(verdict)
