"""The synchronous producer under faults: nothing is sent twice, no reply is mixed up, and it goes on by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from echomq_worker import sync
from echomq_worker.blocking_connector import BlockingConnector
from echomq_worker.errors import CommandTimeout, ConnectionLost, EchoMQError, Unavailable, Unreachable
from tests.support.plain import QUEUE
from tests.support.proxy import Proxy
from tests.support.valkey import OwnServer, ValkeyServer
from tests.support.waiting import wait_until_sync


@pytest.fixture
def connector(url: str) -> Iterator[sync.Connector]:
    """A connector to the session's server, closed at the end."""
    with sync.connect(url) as made:
        yield made


def test_a_connection_that_was_closed_meanwhile_is_replaced(own_server: OwnServer) -> None:
    """The server was restarted, or tidied up, between two calls: the second one notices before it sends."""
    server = own_server()
    with sync.connect(server.url) as connector:
        jobs = sync.Jobs(connector)
        jobs.enqueue(QUEUE, b"x")
        server.restart()

        assert jobs.enqueue(QUEUE, b"x").admitted
        server.admin.client_kill_filter(_type="normal", skipme=True)
        assert jobs.enqueue(QUEUE, b"x").admitted
        server.stop()
        with pytest.raises(Unreachable):
            jobs.enqueue(QUEUE, b"x")


@pytest.fixture
async def proxy(server: ValkeyServer, url: str) -> AsyncIterator[Proxy]:
    """A proxy in front of the session's server."""
    async with Proxy(server.port) as made:
        yield made


@pytest.mark.parametrize(("then", "kind"), [("hang", CommandTimeout), ("reset", ConnectionLost)])
async def test_a_lost_reply_is_not_sent_again(proxy: Proxy, then: Any, kind: type[ConnectionLost]) -> None:
    """The job was admitted, its reply lost: an error that says so, one job, and the next call is on another
    connection.
    """

    def produce() -> int:
        with sync.connect(proxy.url, command_timeout_ms=1_000) as connector:
            jobs = sync.Jobs(connector)
            jobs.enqueue(QUEUE, b"first")
            proxy.swallow_reply(b"EVALSHA", then=then)
            with pytest.raises(kind):
                jobs.enqueue(QUEUE, b"second")
            return jobs.counts(QUEUE).pending

    assert await asyncio.to_thread(produce) == 2
    assert proxy.opened == 2


async def test_a_server_that_is_no_primary_any_more_is_left(proxy: Proxy) -> None:
    """It refuses to write, as after a failover: the error says so, and the next call connects anew."""

    def produce() -> int:
        with sync.connect(proxy.url) as connector:
            jobs = sync.Jobs(connector)
            jobs.enqueue(QUEUE, b"first")
            proxy.answer("READONLY You can't write against a read only replica.", b"EVALSHA")
            with pytest.raises(Unavailable, match="READONLY"):
                jobs.enqueue(QUEUE, b"second")
            return jobs.counts(QUEUE).pending

    assert await asyncio.to_thread(produce) == 1
    assert proxy.opened == 2


def test_a_call_that_is_interrupted_gives_its_connection_up(connector: sync.Connector) -> None:
    """A signal handler raises while a reply is waited for: that reply is nobody else's."""

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        blocked = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        blocked.start()
        with pytest.raises(Interrupted):
            connector.call("BLPOP", "emq:{q}:nothing", 5)
        blocked.join()
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert connector.call("PING") == b"PONG"
    assert connector.connections == 1


def test_a_silent_server_is_given_up() -> None:
    """Something takes the connection and says nothing: Unreachable within the time limit, that of TLS with a hint."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for scheme, hint in (("redis", "no connection within 100 ms"), ("rediss", "does this port speak TLS")):
            connector = BlockingConnector(f"{scheme}://127.0.0.1:{port}", connect_timeout_ms=100)
            with pytest.raises(Unreachable, match=hint):
                connector.open()


def test_the_server_restarts_under_many_threads(own_server: OwnServer) -> None:
    """Calls fail while it is away, and go on by themselves when it is back; no connection is left over."""
    server = own_server()
    with sync.connect(server.url, connect_timeout_ms=1_000) as connector:
        jobs, stop, good = sync.Jobs(connector), threading.Event(), [0] * 4

        def produce(number: int) -> None:
            while not stop.is_set():
                try:
                    jobs.enqueue(QUEUE, b"x")
                    good[number] += 1
                except EchoMQError:
                    stop.wait(0.01)

        threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        wait_until_sync(lambda: all(good), "all have produced")
        server.kill()
        server.start()
        good[:] = [0] * 4
        wait_until_sync(lambda: all(good), "all produce again")
        stop.set()
        for thread in threads:
            thread.join()
        assert connector.connections <= 4
