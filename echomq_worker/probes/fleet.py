"""Fleet: the supervisor of several worker processes answers for all of them.

Source: issue "Made for the people who run it" (with `--processes N` one port answers for all), user-needs 110; decision
0030. It is ready when all are. Its numbers are the sum over them and over those that have ended: each is asked once a
second, so a process that is killed takes at most a second of counts with it; one that ends by itself tells its last.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from echomq_worker.probes import instruments as i
from echomq_worker.probes.channel import LAST, LINE_BYTES
from echomq_worker.probes.probe import Said
from echomq_worker.probes.snapshot import Snapshot, added

_ASK_S = 1.0
_LOOK_S = 1.0
# What a process has written before its end is in the socket already, so there is little to wait for.
_LAST_S = 1.0
_SHARED_S = 5.0


class Member:
    """One process, asked over its socket."""

    def __init__(self) -> None:
        self.last = Snapshot()
        self.heard = False
        self._numbers = itertools.count(LAST + 1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, ours: socket.socket) -> asyncio.Task[None]:
        """Our end of its socket; the task takes its answers until it closes."""
        reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=LINE_BYTES)
        return asyncio.create_task(self._listen(reader, self._writer), name="reports")

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, ValueError, KeyError, TypeError):
                while line := await reader.readline():
                    self._take(json.loads(line))
        finally:
            writer.close()
            for future in self._asked.values():
                future.cancel()

    def _take(self, answer: dict[str, Any]) -> None:
        self.heard = True
        if answer["n"] == LAST:
            self.last = Snapshot.of_rows(answer["rows"])
        elif (future := self._asked.get(answer["n"])) is not None and not future.done():
            future.set_result(answer)

    async def ask(self, what: str, limit_s: float = _ASK_S) -> dict[str, Any] | None:
        """Its answer; None where it does not answer in time."""
        if self._writer is None or self._writer.is_closing():
            return None
        number = next(self._numbers)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(json.dumps({"n": number, "what": what}).encode() + b"\n")
            await asyncio.wait({future}, timeout=limit_s)
            return future.result() if future.done() and not future.cancelled() else None
        finally:
            del self._asked[number]

    async def own(self) -> Snapshot:
        """Its numbers; what it has counted as far as is known where it does not answer."""
        answer = await self.ask("own")
        if answer is None:
            return self.last.only(i.LASTING)
        self.last = Snapshot.of_rows(answer["rows"])
        return self.last


class Fleet:
    """Several processes behind one port. The supervisor tells of each that begins."""

    def __init__(self, count: int, *, about: Mapping[str, str]) -> None:
        """`count`: how many there are to be. `about`: the versions."""
        self._count = count
        self._about = dict(about)
        self._members: dict[int, Member] = {}
        self._past = Snapshot()

    @asynccontextmanager
    async def member(self, index: int) -> AsyncIterator[socket.socket]:
        """Process number `index` runs while inside; yields its end of the socket, to be closed when it has begun."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        member = Member()
        listening = await member.open(ours)
        self._members[index] = member
        try:
            with theirs:
                yield theirs
            # A process that the ended one has started may still hold the other end open, so the socket may never end.
            await asyncio.wait({listening}, timeout=_LAST_S)
        finally:
            listening.cancel()
            del self._members[index]
            self._past = added([self._past, member.last.only(i.LASTING)])

    async def watch(self) -> None:
        """Ask each for its numbers once a second, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await asyncio.gather(*(member.own() for member in list(self._members.values())))

    async def live(self) -> Said:
        """No where a process that has begun does not answer: its event loop is blocked. One that starts is let be."""
        answers = await self._ask_all("live")
        silent = [index for index, answer in answers.items() if answer is None and self._heard(index)]
        body = {"alive": not silent, "pid": os.getpid(), **self._about, "processes": len(answers), "silent": silent}
        return Said(not silent, body)

    async def ready(self) -> Said:
        """Whether all of them are."""
        answers = await self._ask_all("ready")
        bodies = [self._ready(index, answers.get(index)) for index in range(self._count)]
        why = next((f"process {body['process']}: {body['why']}" for body in bodies if body["why"] is not None), None)
        body = {"ready": why is None, "why": why, "pid": os.getpid(), **self._about, "processes": bodies}
        return Said(why is None, body)

    def _ready(self, index: int, answer: dict[str, Any] | None) -> dict[str, Any]:
        if answer is not None:
            return {"process": index, **answer["body"]}
        why = "does not answer" if self._heard(index) else "starts" if index in self._members else "is not running"
        return {"process": index, "ready": False, "why": why}

    def _heard(self, index: int) -> bool:
        return index in self._members and self._members[index].heard

    async def snapshot(self) -> Snapshot:
        """The sum of all, and what one of them tells for all."""
        # Both read before the first await: a process that ends in between must be counted once, not twice.
        past, members = self._past, list(self._members.values())
        *own, shared = await asyncio.gather(*(member.own() for member in members), self._shared(members))
        return added([past, *own, shared])

    @staticmethod
    async def _shared(members: list[Member]) -> Snapshot:
        for member in members:
            answer = await member.ask("shared", _SHARED_S) if member.heard else None
            if answer is not None:
                return Snapshot.of_rows(answer["rows"])
        return Snapshot()

    async def _ask_all(self, what: str) -> dict[int, dict[str, Any] | None]:
        members = dict(self._members)
        answers = await asyncio.gather(*(member.ask(what) for member in members.values()))
        return dict(zip(members, answers, strict=True))
