"""What the connector does when the wire fails: each fault has its class, and the next call starts afresh."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis.asyncio
import uvloop

from echomq_worker.connector import Connector, connect
from echomq_worker.errors import (
    CommandTimeout,
    ConnectionLost,
    EchoMQError,
    FenceRefused,
    Unavailable,
    Unreachable,
    WireError,
)
from tests.support.proxy import Proxy
from tests.support.valkey import OwnServer, ValkeyServer
from tests.support.waiting import in_time, passes, wait_until, works_plainly_for

PAUSED = "emq:{q}:paused"


async def test_nobody_listens(url: str) -> None:
    """A refused connection is Unreachable, at open and at each call, one attempt each, on one line with the address."""
    connector = Connector("redis://user:secret@127.0.0.1:1/0")
    for use in (connector.open(), connector.call("PING"), connector.pipeline([("PING",)])):
        with pytest.raises(Unreachable) as caught:
            await use
        text = str(caught.value)
        assert text.startswith("redis://user:***@127.0.0.1:1/0: ")
        assert "secret" not in text
        assert "\n" not in text
    assert not connector.connected
    assert connector.generation == 0


async def test_a_name_that_does_not_resolve() -> None:
    """A host that does not exist is Unreachable, naming it."""
    with pytest.raises(Unreachable, match=r"no-such-host\.invalid"):
        await Connector("redis://no-such-host.invalid").open()


async def test_a_server_that_never_answers_the_handshake(server: ValkeyServer, url: str) -> None:
    """Connecting has one time limit, handshake included; nothing is left open when it is over."""
    async with Proxy(server.port) as proxy:
        proxy.stall()
        started = time.monotonic()
        with pytest.raises(Unreachable, match="no connection within 150 ms"):
            await Connector(proxy.url, connect_timeout_ms=150).open()
        assert 0.14 <= time.monotonic() - started < 20
        proxy.flow()
        await wait_until(lambda: proxy.open == 0, "the connection is closed")


async def test_a_stalled_connection_times_out_and_the_next_call_works(server: ValkeyServer, url: str) -> None:
    """All that waits on a silent server raises CommandTimeout in time; the next call makes a new connection."""
    async with Proxy(server.port) as proxy, connect(proxy.url, command_timeout_ms=1_000) as connector:
        proxy.stall()
        started = time.monotonic()
        outcomes = await asyncio.gather(
            connector.call("ECHO", 1),
            connector.pipeline([("ECHO", 2), ("ECHO", 3)]),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [CommandTimeout, CommandTimeout]
        assert "no reply within 1000 ms" in str(outcomes[0])
        assert 0.99 <= time.monotonic() - started < 20
        assert not connector.connected
        proxy.flow()
        assert await connector.call("ECHO", "again") == b"again"
        assert (connector.generation, proxy.opened) == (2, 2)


async def test_nothing_is_sent_a_second_time(server: ValkeyServer, url: str, raw: redis.asyncio.Redis) -> None:
    """A command whose reply is lost or late has run once, and is not sent again by the connector, whatever follows."""
    async with Proxy(server.port) as proxy, connect(proxy.url, command_timeout_ms=1_000) as connector:
        for then, kind in (("reset", ConnectionLost), ("hang", CommandTimeout)):
            proxy.swallow_reply(b"RPUSH", then=then)  # type: ignore[arg-type]  # both are of Then
            with pytest.raises(kind):
                await connector.call("RPUSH", "emq:{q}:ring", "x")
            assert await connector.call("PING") == b"PONG"
        assert proxy.count(b"RPUSH") == await raw.llen("emq:{q}:ring") == 2


async def test_a_reset_fails_what_was_sent_and_the_next_call_works(server: ValkeyServer, url: str) -> None:
    """RST in the middle of many calls: each raises ConnectionLost, not a timeout; then one new one serves all."""
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        proxy.stall()
        calls = [asyncio.ensure_future(connector.call("ECHO", i)) for i in range(50)]
        await wait_until(lambda: connector.pending == 50, "all are in flight")
        proxy.reset()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert type(outcome) is ConnectionLost
        proxy.flow()
        replies = await asyncio.gather(*(connector.call("ECHO", i) for i in range(50)))
        assert replies == [str(i).encode() for i in range(50)]
        assert (connector.generation, proxy.opened) == (2, 2)


async def test_an_idle_connection_that_was_closed_costs_no_call(server: ValkeyServer, url: str) -> None:
    """The server closes an idle connection: it is noticed at once, and the next call is not the one that fails."""
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        for generation in (2, 3):
            proxy.close_all()
            await wait_until(lambda: not connector.connected, "the loss is noticed")
            assert await connector.call("PING") == b"PONG"
            assert connector.generation == generation


async def test_each_connection_passes_the_fence_first(server: ValkeyServer, url: str, raw: redis.asyncio.Redis) -> None:
    """A version that changes meanwhile is found at the reconnect: FenceRefused, and the call is not sent."""
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        await raw.set("{emq}:version", "echomq:4.0.0")
        assert await connector.call("SADD", PAUSED, "before") == 1
        proxy.reset()
        await wait_until(lambda: not connector.connected, "the loss is noticed")
        for _ in range(2):
            with pytest.raises(FenceRefused) as caught:
                await connector.call("SADD", PAUSED, "after")
            assert caught.value.found == "echomq:4.0.0"
        assert await raw.smembers(PAUSED) == {b"before"}
        await raw.set("{emq}:version", "echomq:3.0.0")
        assert await connector.call("SADD", PAUSED, "after") == 1


async def test_a_refused_reconnect_is_one_attempt_for_all_who_call(server: ValkeyServer, url: str) -> None:
    """Twenty calls at once while the server is away share one attempt and all raise; back again, all work."""
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        await proxy.refuse()
        proxy.reset()
        await wait_until(lambda: not connector.connected, "the loss is noticed")
        outcomes = await asyncio.gather(*(connector.call("PING") for _ in range(20)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Unreachable] * 20
        await proxy.accept()
        assert await asyncio.gather(*(connector.call("PING") for _ in range(20))) == [b"PONG"] * 20
        assert proxy.opened == 2


@pytest.mark.parametrize("cut", [1, 3, 40])
async def test_a_reply_that_is_cut_off_is_a_lost_one(server: ValkeyServer, url: str, cut: int) -> None:
    """The stream ends inside a reply: what was complete is delivered, the rest is ConnectionLost."""
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        proxy.cut_after(cut)
        outcomes = await asyncio.gather(*(connector.call("ECHO", "x" * 10) for _ in range(5)), return_exceptions=True)
        whole = cut // len(b"$10\r\nxxxxxxxxxx\r\n")
        assert outcomes[:whole] == [b"x" * 10] * whole
        assert [type(outcome) for outcome in outcomes[whole:]] == [ConnectionLost] * (5 - whole)
        assert await connector.call("PING") == b"PONG"


@pytest.mark.parametrize("code", ["LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED"])
async def test_a_server_that_cannot_serve_yet_is_unavailable(server: ValkeyServer, url: str, code: str) -> None:
    """A server that is loading refuses the fence's GET: Unavailable, not Unreachable, and the next call tries again."""
    async with Proxy(server.port) as proxy:
        proxy.answer(f"{code} wait", pattern=b"{emq}:version")
        connector = Connector(proxy.url)
        with pytest.raises(Unavailable) as caught:
            await connector.open()
        assert caught.value.code == code
        assert await connector.call("PING") == b"PONG"
        await connector.aclose()


async def test_a_replica_that_may_not_be_written_is_unavailable(server: ValkeyServer, url: str) -> None:
    """A fresh store behind a replica: the fence cannot be claimed, which is told as it is."""
    async with Proxy(server.port) as proxy:
        proxy.answer("READONLY You can't write against a read only replica.", pattern=b"SET\r\n")
        with pytest.raises(Unavailable, match="READONLY"):
            await Connector(proxy.url).open()


async def test_a_fence_that_cannot_be_read_for_another_reason_is_told(server: ValkeyServer, url: str) -> None:
    """Any other error in place of the fence is Unreachable, with the server's words."""
    async with Proxy(server.port) as proxy:
        proxy.answer("ERR unknown command 'GET', with args beginning with: 'x'", pattern=b"{emq}:version")
        with pytest.raises(Unreachable, match=r"ERR unknown command 'GET'$"):
            await Connector(proxy.url).open()


async def test_a_connection_that_never_lasts_is_one_attempt_a_call() -> None:
    """A server that closes right behind the handshake fails the call after one attempt, in no endless loop."""
    accepted = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        await reader.read(1000)
        writer.write(b"*0\r\n+OK\r\n$12\r\nechomq:3.0.0\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        connector = Connector(f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        for calls in range(1, 11):
            with pytest.raises(WireError):
                await connector.call("PING")
            assert accepted <= calls
        await connector.aclose()


async def test_closing_does_not_wait_for_a_server_that_reads_nothing(own_server: OwnServer) -> None:
    """Bytes that a frozen server does not take hold up closing for about a second, not for ever."""
    server = own_server()
    async with connect(server.url) as connector:
        await asyncio.to_thread(server.pause)
        call = asyncio.ensure_future(connector.call("ECHO", b"x" * 20_000_000))
        await wait_until(lambda: connector.pending == 1, "it is on its way")
        started = time.monotonic()
        await connector.aclose()
        assert time.monotonic() - started < 20
        with pytest.raises(ConnectionLost):
            await call
        await asyncio.to_thread(server.resume)


async def test_a_server_that_is_full_is_named(own_server: OwnServer) -> None:
    """`max number of clients` is Unreachable with the server's words; when there is room again the call works."""
    server = own_server(args=["--maxclients", "3"])
    async with connect(server.url), connect(server.url) as second:
        third = Connector(server.url)
        with pytest.raises(Unreachable, match="max number of clients reached"):
            await third.open()
        await second.aclose()
        await wait_until(lambda: len(list(server.admin.client_list())) == 2, "the server has seen that there is room")
        assert await third.call("PING") == b"PONG"
        await third.aclose()


async def test_what_answers_is_no_server(url: str) -> None:
    """Another protocol on the port, or nothing but a closed door, is Unreachable in one line."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if greeting:
            await reader.read(1)
            writer.write(greeting)
            await writer.drain()
        writer.close()

    for greeting, words in (
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak the protocol"),
        (b"-DENIED Running in protected mode\r\n", "DENIED Running in protected mode"),
        (b"+OK\r\n" * 9, "a reply that nobody asked for"),
        # What it has not read by then makes the system say it another way.
        (b"", "the server closed the connection|the connection broke"),
    ):
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            with pytest.raises(EchoMQError) as caught:
                await Connector(f"redis://127.0.0.1:{port}").open()
            if greeting.startswith(b"+OK"):
                # Its OK for GET stands where a version should be.
                continue
            assert isinstance(caught.value, Unreachable)
            assert re.search(words, str(caught.value))
            assert "\n" not in str(caught.value)


async def test_a_reply_that_nobody_asked_for_ends_the_connection() -> None:
    """Out of step is out of trust: a reply too many closes the connection, no later call gets a wrong reply."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    stray = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"*0\r\n+OK\r\n$12\r\nechomq:3.0.0\r\n")
        await stray.wait()
        writer.write(b"+STRAY\r\n")
        await reader.read(1000)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        async with connect(f"redis://127.0.0.1:{port}") as connector:
            stray.set()
            await wait_until(lambda: not connector.connected, "the connection is given up")
    assert complaints == []


@pytest.mark.blocks("code that blocks the loop is what this test is about")
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("where", ["before the write", "after the write", "while reading"])
def test_a_blocked_loop_is_not_taken_for_a_silent_server(
    server: ValkeyServer, url: str, run: Callable[..., None], where: str
) -> None:
    """The loop stands still for longer than the timeout around a call: it is answered, on the same connection."""

    def block() -> None:
        works_plainly_for(1_300)

    async def blocked_while_reading() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            done = asyncio.Event()

            def readable() -> None:
                ours.recv(1)
                block()
                done.set()

            loop.add_reader(ours, readable)
            theirs.send(b"x")
            await done.wait()
            loop.remove_reader(ours)

    async def scenario() -> None:
        # The proxy is part of the blocked loop: what it has not passed on is late, as over a long line.
        async with Proxy(server.port) as proxy, connect(proxy.url, command_timeout_ms=1_000) as connector:
            for _ in range(2):
                call = asyncio.ensure_future(connector.call("ECHO", "x"))
                await asyncio.sleep(0)
                if where == "while reading":
                    await blocked_while_reading()
                else:
                    if where == "after the write":
                        await asyncio.sleep(0)
                    block()
                assert await call == b"x"
            assert connector.generation == 1

    run(in_time(scenario()))


async def test_a_slow_server_that_answers_is_waited_for() -> None:
    """The timeout is for silence: many commands that take longer together, one by one, are all answered."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"*0\r\n+OK\r\n$12\r\nechomq:3.0.0\r\n")
        await reader.read(1000)
        for i in range(20):
            await passes(60, "each answer takes its time")
            writer.write(b":%d\r\n" % i)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        async with connect(f"redis://127.0.0.1:{port}", command_timeout_ms=800) as connector:
            replies = await asyncio.gather(*(connector.call("GET", i) for i in range(20)))
            assert replies == list(range(20))


async def test_callers_wait_when_the_server_does_not_read(own_server: OwnServer) -> None:
    """Memory stays bounded: above 1 MiB of unsent bytes callers wait; when the server reads again all are answered."""
    server = own_server()
    async with connect(server.url, command_timeout_ms=20_000) as connector:
        await asyncio.to_thread(server.pause)
        payload = b"x" * 100_000
        calls = [asyncio.ensure_future(connector.call("ECHO", payload)) for _ in range(20)]
        await wait_until(lambda: connector.pending == 20, "the first turn is queued")
        link: Any = connector._link
        more = [asyncio.ensure_future(connector.call("ECHO", payload)) for _ in range(200)]
        await wait_until(lambda: not link.writable.is_set(), "the buffer is full")
        queued = link.pending
        even_more = [asyncio.ensure_future(connector.call("ECHO", b"y")) for _ in range(50)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert link.pending == queued
        even_more[0].cancel()
        await asyncio.to_thread(server.resume)
        assert await asyncio.gather(*calls, *more) == [payload] * 220
        assert (await asyncio.gather(*even_more, return_exceptions=True))[1:] == [b"y"] * 49
        assert connector.generation == 1


async def test_a_server_that_comes_back_is_found_by_itself(own_server: OwnServer) -> None:
    """Killed and started again with its data: calls fail while it is away, and work as soon as it serves."""
    server = own_server(append_only=True, args=["--appendfsync", "always"])
    async with connect(server.url) as connector:
        assert await connector.call("SADD", PAUSED, "kept") == 1
        await asyncio.to_thread(server.kill)
        with pytest.raises(WireError):
            await connector.call("PING")
        await asyncio.to_thread(server.start)
        assert await connector.call("SMEMBERS", PAUSED) == [b"kept"]
