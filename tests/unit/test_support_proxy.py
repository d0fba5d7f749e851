"""Every fault of the proxy does what its name says, to the command that is meant."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.proxy import Proxy
from tests.support.resp import frames
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until

GET = b"*2\r\n$3\r\nGET\r\n$4\r\n{emq\r\n"
PING = b"*1\r\n$4\r\nPING\r\n"
PONG = b"+PONG\r\n"


def echo(text: str) -> bytes:
    """The command ECHO as it is sent."""
    return f"*2\r\n$4\r\nECHO\r\n${len(text)}\r\n{text}\r\n".encode()


def bulk(text: str) -> bytes:
    """Its reply."""
    return f"${len(text)}\r\n{text}\r\n".encode()


class Client:
    """A connection that sends bytes and reads replies, each within a deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.buffer = bytearray()
        self.waiting: list[bytes] = []

    def send(self, *commands: bytes) -> None:
        """Send them in one write."""
        self.writer.write(b"".join(commands))

    async def reply(self) -> bytes:
        """The next reply, b"" at the end of the stream; ConnectionResetError, or TimeoutError after 30 s."""
        while not self.waiting:
            chunk = await asyncio.wait_for(self.reader.read(1 << 16), 30)
            if not chunk:
                return b""
            self.buffer += chunk
            self.waiting += frames(self.buffer)
        return self.waiting.pop(0)

    async def silent(self) -> bool:
        """Whether nothing arrives for 30 ms."""
        try:
            await asyncio.wait_for(self.reader.read(1), 0.03)
        except TimeoutError:
            return True
        return False


@asynccontextmanager
async def connected(proxy: Proxy) -> AsyncIterator[Client]:
    """A client of the proxy."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def test_it_forwards_and_tells_what_it_saw(url: str, server: ValkeyServer) -> None:
    """Without a fault it is a wire: replies in order; it counts connections and keeps the commands."""
    async with Proxy(server.port) as proxy, connected(proxy) as client:
        client.send(echo("a"), PING, echo("b"))
        assert [await client.reply() for _ in range(3)] == [bulk("a"), PONG, bulk("b")]
        assert (proxy.seen, proxy.count(b"ECHO")) == ([echo("a"), PING, echo("b")], 2)
        assert (proxy.opened, proxy.open) == (1, 1)
        assert proxy.url == f"redis://127.0.0.1:{proxy.port}/0"
        client.writer.close()
        await wait_until(lambda: proxy.open == 0, "the proxy has seen the client go")


async def test_delay_holds_replies(url: str, server: ValkeyServer) -> None:
    """A reply takes as long as was asked for, until the delay is taken back."""
    async with Proxy(server.port) as proxy, connected(proxy) as client:
        proxy.delay(60)
        begun = time.monotonic()
        client.send(PING)
        assert await client.reply() == PONG
        assert time.monotonic() - begun >= 0.06
        proxy.delay(0)
        client.send(PING)
        assert await client.reply() == PONG


async def test_a_stall_closes_nothing_and_loses_nothing(url: str, server: ValkeyServer) -> None:
    """While it is stalled nothing arrives; when it flows again, all does."""
    async with Proxy(server.port) as proxy, connected(proxy) as client:
        proxy.stall()
        client.send(PING)
        assert await client.silent()
        assert proxy.open == 1
        proxy.flow()
        assert await client.reply() == PONG


async def test_reset_and_close(url: str, server: ValkeyServer) -> None:
    """A reset is seen as one, a close as the end of the stream; the next connection works."""
    async with Proxy(server.port) as proxy:
        async with connected(proxy) as client:
            client.send(PING)
            assert await client.reply() == PONG
            proxy.reset()
            with pytest.raises(ConnectionResetError):
                await client.reply()
        async with connected(proxy) as client:
            client.send(PING)
            assert await client.reply() == PONG
            proxy.close_all()
            assert await client.reply() == b""
        await wait_until(lambda: proxy.open == 0, "both are gone")


async def test_refuse_and_accept(url: str, server: ValkeyServer) -> None:
    """New connections are refused, open ones stay, and the port is the same afterwards."""
    async with Proxy(server.port) as proxy, connected(proxy) as client:
        port = proxy.port
        client.send(PING)
        assert await client.reply() == PONG
        await proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        client.send(PING)
        assert await client.reply() == PONG
        await proxy.accept()
        await proxy.accept()
        async with connected(proxy) as second:
            second.send(PING)
            assert await second.reply() == PONG
        assert proxy.port == port


async def test_a_reply_is_cut_in_its_middle(url: str, server: ValkeyServer) -> None:
    """The connection ends right behind the nth byte of replies; the next one is whole again."""
    async with Proxy(server.port) as proxy:
        async with connected(proxy) as client:
            proxy.cut_after(len(PONG) + 3)
            client.send(PING, PING, PING)
            assert [await client.reply(), await client.reply()] == [PONG, b""]
            assert bytes(client.buffer) == PONG[:3]
        async with connected(proxy) as client:
            client.send(PING)
            assert await client.reply() == PONG
        with pytest.raises(ValueError, match="expected 1 or more"):
            proxy.cut_after(0)


async def test_a_swallowed_reply_was_carried_out(url: str, server: ValkeyServer) -> None:
    """The nth matching command reaches the server, its reply does not come back, the connection is reset."""
    async with Proxy(server.port) as proxy, connected(proxy) as client:
        rule = proxy.swallow_reply(b"INCR", nth=2)
        incr = b"*2\r\n$4\r\nINCR\r\n$13\r\nemq:{q}:limit\r\n"
        client.send(incr, PING)
        assert [await client.reply(), await client.reply()] == [b":1\r\n", PONG]
        assert not rule.done
        client.send(incr, PING)
        with pytest.raises(ConnectionResetError):
            await client.reply()
        assert rule.done
        assert server.admin.getdel("emq:{q}:limit") == b"2"


async def test_a_swallowed_reply_may_leave_the_connection_hanging(url: str, server: ValkeyServer) -> None:
    """With then="hang" what came before arrives, nothing after it does, and the connection stays open."""
    async with Proxy(server.port) as proxy, connected(proxy) as client:
        rule = proxy.swallow_reply(b"lost", then="hang")
        client.send(echo("a"), echo("lost"), echo("b"))
        assert await client.reply() == bulk("a")
        await wait_until(lambda: rule.done, "the reply was lost")
        assert await client.silent()
        assert proxy.open == 1


async def test_an_answer_of_its_own_keeps_its_place(url: str, server: ValkeyServer) -> None:
    """The matching command never reaches the server, and its error comes between the replies around it."""
    async with Proxy(server.port) as proxy, connected(proxy) as client:
        rule = proxy.answer("LOADING later", pattern=b"ECHO", nth=2)
        client.send(echo("a"), echo("b"), echo("c"))
        assert [await client.reply() for _ in range(3)] == [bulk("a"), b"-LOADING later\r\n", bulk("c")]
        assert rule.done
        proxy.answer("READONLY no")
        client.send(PING)
        assert await client.reply() == b"-READONLY no\r\n"


async def test_pushes_are_no_replies(url: str, server: ValkeyServer) -> None:
    """A push message passes and is not taken for the reply of a command."""
    async with Proxy(server.port) as proxy, connected(proxy) as client:
        subscribe = b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n"
        client.send(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n", subscribe)
        assert (await client.reply()).startswith(b"%")
        assert (await client.reply()).startswith(b">3")
        client.send(PING)
        assert await client.reply() == PONG


async def test_a_server_that_is_down_shows(url: str) -> None:
    """Where the server does not listen, the client's connection is closed."""
    async with Proxy(1) as proxy, connected(proxy) as client:
        assert await client.reply() == b""


async def test_a_proxy_that_ends_while_it_connects_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose connection to the server is still being made sees its end when the proxy is left."""
    began = asyncio.Event()

    async def never(*_: object) -> None:
        began.set()
        await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        async with Proxy(1) as proxy:
            monkeypatch.setattr(asyncio, "open_connection", never)
            await loop.sock_connect(client, ("127.0.0.1", proxy.port))
            await asyncio.wait_for(began.wait(), 30)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(loop.sock_recv(client, 1), 30) == b"", "the connection has ended"


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_is_accepted_as_the_proxy_is_left_is_hung_up_on(
    server: ValkeyServer, turns: int
) -> None:
    """Whatever step of that the loop had come to: no link to the server is left, which would end with the client."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        async with Proxy(server.port) as proxy:
            client.connect(("127.0.0.1", proxy.port))
            for _ in range(turns):
                await asyncio.sleep(0)
        client.setblocking(False)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(loop.sock_recv(client, 1), 30) == b"", "the connection has ended"
        assert proxy.open == 0


async def test_what_passes_can_be_heard_and_forgotten(url: str, server: ValkeyServer) -> None:
    """A tap is told each command; with remembers=False none is kept."""
    heard: list[bytes] = []
    async with Proxy(server.port, remembers=False, tap=heard.append) as proxy, connected(proxy) as client:
        client.send(PING, echo("a"))
        assert [await client.reply() for _ in range(2)] == [PONG, bulk("a")]
        assert (heard, proxy.seen) == ([PING, echo("a")], [])
