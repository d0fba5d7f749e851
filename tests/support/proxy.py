"""A TCP proxy of our own between the package and a server: delays, stalls, resets, lost replies, answers of its own.

Source: style anchor 18 (faults are a fixture). It knows where a command and a reply end (RESP2 and RESP3), so that a
fault hits the reply that is meant and the others keep their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from tests.support.resp import frames
from tests.support.valkey import free_port, login
from tests.support.waiting import passes

Then = Literal["hang", "reset"]
_CHUNK = 1 << 16


@dataclass(slots=True)
class Rule:
    """What happens to the `nth` command (counted from when the rule was made) whose bytes contain `pattern`."""

    pattern: bytes
    nth: int
    # None: the command is forwarded and its reply swallowed; else it is not forwarded and this line is the reply.
    answer: bytes | None = None
    then: Then = "reset"
    # Whether the fault has happened: the reply was lost, or ours was given.
    done: bool = False

    def hits(self, command: bytes) -> bool:
        """Count `command` and say whether it is the one."""
        if self.pattern not in command:
            return False
        self.nth -= 1
        return self.nth == 0


class _Link:
    """One client connection and its twin at the server."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        # What is owed to the client, in order: None = the server's next reply, bytes = ours, a Rule = swallow.
        self.owed: deque[bytes | Rule | None] = deque()
        self.hung = False

    def reset(self) -> None:
        """Close both sides at once; the client sees RST."""
        for writer in (self.client, self.server):
            if (sock := writer.get_extra_info("socket")) is not None and not writer.is_closing():
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def close(self) -> None:
        """Close both sides in order; the client sees the end of the stream."""
        self.client.close()
        self.server.close()

    def take_command(self, command: bytes) -> None:
        """Forward one command, or answer it here."""
        if self.proxy.remembers:
            self.proxy.seen.append(command)
        if self.proxy.tap is not None:
            self.proxy.tap(command)
        rule = next((rule for rule in self.proxy.rules if rule.hits(command)), None)
        if rule is not None and rule.answer is not None:
            self.owed.append(rule.answer)
            rule.done = True
            self.pay()
        else:
            self.owed.append(rule)
            if not self.server.is_closing():
                self.server.write(command)

    def take_reply(self, reply: bytes) -> None:
        """Give one reply of the server to the client, or lose it."""
        # A push (client tracking, pub/sub) answers no command.
        if reply.startswith(b">"):
            self.give(reply)
            return
        rule = self.owed.popleft() if self.owed else None
        if isinstance(rule, Rule):
            rule.done = self.hung = True
            if rule.then == "reset":
                self.reset()
        else:
            self.give(reply)
        self.pay()

    def pay(self) -> None:
        """Give the client the answers of ours that are next in turn."""
        while self.owed and isinstance(answer := self.owed[0], bytes):
            self.owed.popleft()
            self.give(answer)

    def give(self, reply: bytes) -> None:
        """Write to the client, as far as the budget of `cut_after` goes."""
        if self.hung or self.client.is_closing():
            return
        budget = self.proxy.reply_budget
        if budget is None or len(reply) < budget:
            self.client.write(reply)
            self.proxy.reply_budget = None if budget is None else budget - len(reply)
            return
        self.client.write(reply[:budget])
        self.proxy.reply_budget = None
        self.hung = True
        # In order, not a reset: RST could overtake the bytes that were to arrive.
        self.close()


class Proxy:
    """`async with Proxy(server.port) as proxy:` and connect to `proxy.url`.

    `seen` holds every command that passed (raw bytes; none with `remembers=False`, for a long run), `tap` is told each,
    `opened` counts connections. Faults are methods and may be combined; what was set stays until it is undone or used
    up.
    """

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        *,
        remembers: bool = True,
        tap: Callable[[bytes], None] | None = None,
    ) -> None:
        self.remembers = remembers
        self.tap = tap
        self.rules: list[Rule] = []
        self.seen: list[bytes] = []
        self.opened = 0
        self.reply_budget: int | None = None
        self.delay_ms = 0
        self._target = (host, port)
        self._port = 0
        self._listener: asyncio.Server | None = None
        self._left = False
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    @property
    def port(self) -> int:
        """The port that clients connect to; stays the same while connections are refused."""
        return self._port

    @property
    def url(self) -> str:
        """`redis://127.0.0.1:<port>/0` of the proxy, with the login of a run as a role (tests/support/roles.py)."""
        return f"redis://{login()}127.0.0.1:{self._port}/0"

    @property
    def open(self) -> int:
        """How many connections are open now."""
        return len(self._links)

    async def __aenter__(self) -> Self:
        """Listen."""
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening and reset what is open."""
        self._left = True
        await self.refuse()
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def accept(self) -> None:
        """Take connections (again, on the same port)."""
        while self._listener is None:
            # One that no outgoing connection takes while none are taken here.
            port = self._port or free_port()
            with contextlib.suppress(OSError) if not self._port else contextlib.nullcontext():
                self._listener = await asyncio.start_server(self._serve, "127.0.0.1", port)
                self._port = port

    async def refuse(self) -> None:
        """Refuse new connections (ECONNREFUSED); open ones stay."""
        if self._listener is not None:
            # asyncio forgets the socket of a connection that it has accepted, and not made a transport for, when its
            # server is closed in between: these are made first.
            for listening in self._listener.sockets:
                asyncio.get_running_loop().remove_reader(listening.fileno())
            await asyncio.sleep(0)
            self._listener.close()
            self._listener = None
            await asyncio.sleep(0)

    def delay(self, ms: int) -> None:
        """Hold every reply for `ms` milliseconds; 0 ends it."""
        self.delay_ms = ms

    def stall(self) -> None:
        """Forward nothing in either direction, close nothing."""
        self._flowing.clear()

    def flow(self) -> None:
        """End a stall; what has arrived meanwhile goes on."""
        self._flowing.set()

    def reset(self) -> None:
        """Reset (RST) every open connection."""
        for link in list(self._links):
            link.reset()

    def close_all(self) -> None:
        """Close (FIN) every open connection."""
        for link in list(self._links):
            link.close()

    def cut_after(self, reply_bytes: int) -> None:
        """Close the connection that gets the `reply_bytes`th byte of replies from now, right behind that byte."""
        if reply_bytes < 1:
            raise ValueError(f"reply_bytes: {reply_bytes}, expected 1 or more")
        self.reply_budget = reply_bytes

    def swallow_reply(self, pattern: bytes, nth: int = 1, *, then: Then = "reset") -> Rule:
        """The nth command with `pattern` in it is carried out by the server, its reply is lost.

        Then the connection is reset, or hangs: nothing arrives on it any more. `.done` of the result says when.
        """
        rule = Rule(pattern, nth, then=then)
        self.rules.append(rule)
        return rule

    def answer(self, line: str, pattern: bytes = b"", nth: int = 1) -> Rule:
        """The nth command with `pattern` in it never reaches the server; its reply is the error `line`."""
        rule = Rule(pattern, nth, answer=f"-{line}\r\n".encode())
        self.rules.append(rule)
        return rule

    def count(self, pattern: bytes) -> int:
        """How many commands that passed contain `pattern`."""
        return sum(pattern in command for command in self.seen)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "start_server runs this in a task"
        if self._left:
            # Accepted as the proxy was left: nobody would reset it any more.
            writer.transport.abort()
            return
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except (OSError, asyncio.CancelledError):
            # No link owns it yet: nobody else would close it. The task ends here either way.
            writer.transport.abort()
            return
        link = _Link(self, writer, server_writer)
        self._links.add(link)
        self.opened += 1
        try:
            # No task group: the first direction that ends, ends the other, and neither end is an error.
            pumps = [
                asyncio.ensure_future(self._pump(reader, link, commands=True)),
                asyncio.ensure_future(self._pump(server_reader, link, commands=False)),
            ]
            try:
                # The task ends behind this anyway; a cancelled one would make asyncio's callback complain.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._links.discard(link)
            link.close()

    async def _pump(self, reader: asyncio.StreamReader, link: _Link, *, commands: bool) -> None:
        buffer = bytearray()
        while chunk := await self._read(reader):
            buffer += chunk
            if not commands and self.delay_ms:
                await passes(self.delay_ms, "as a link far away has it")
            await self._flowing.wait()
            for frame in frames(buffer):
                if commands:
                    link.take_command(frame)
                else:
                    link.take_reply(frame)

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.read(_CHUNK)
        except ConnectionError:
            return b""
