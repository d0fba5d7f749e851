"""Subscription: what is published while it stands is heard, in order; what ends it is told, after what came before."""

from __future__ import annotations

import asyncio

import pytest
import redis.asyncio

from echomq_worker.connector import Connector, connect
from echomq_worker.errors import CommandTimeout, ConnectionLost, EchoMQError, FenceRefused, InvalidArgument, ServerError
from echomq_worker.subscription import Message, Subscription
from tests.support.proxy import Proxy
from tests.support.valkey import OwnServer, ValkeyServer
from tests.support.waiting import wait_until

ONE, TWO = "emq:{q}:events", "emq:{q}:cancel"


async def _told(subscription: Subscription, count: int) -> list[Message]:
    return [await subscription.get() for _ in range(count)]


async def test_what_is_published_is_heard_in_order(url: str, raw: redis.asyncio.Redis) -> None:
    """On every channel, from the moment that `open` has returned, whether or not somebody waits at the time."""
    async with connect(url, name="me") as connector:
        subscription = connector.subscription("ears")
        await subscription.open([ONE, TWO])
        assert await raw.publish(ONE, "a") == 1
        first = asyncio.ensure_future(subscription.get())
        assert await first == (ONE.encode(), b"a")
        waiting = asyncio.ensure_future(subscription.get())
        await asyncio.sleep(0)
        await raw.publish(TWO, b"\x00\xff")
        assert await waiting == (TWO.encode(), b"\x00\xff")
        for n in range(100):
            await raw.publish(ONE, str(n))
        assert [data for _, data in await _told(subscription, 100)] == [str(n).encode() for n in range(100)]
        assert "me:ears" in {client["name"] for client in await raw.client_list()}


async def test_a_reader_that_gives_up_loses_nothing(url: str, raw: redis.asyncio.Redis) -> None:
    """The next one gets what came meanwhile."""
    async with connect(url) as connector:
        subscription = connector.subscription("ears")
        await subscription.open([ONE])
        waiting = asyncio.ensure_future(subscription.get())
        await asyncio.sleep(0)
        waiting.cancel()
        await raw.publish(ONE, "a")
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await subscription.get() == (ONE.encode(), b"a")


async def test_a_loss_is_told_after_what_came_before_it(url: str, raw: redis.asyncio.Redis) -> None:
    """Then `open` hears again; what was published in between is not heard."""
    async with connect(url) as connector:
        subscription = connector.subscription("ears")
        await subscription.open([ONE])
        await raw.publish(ONE, "before")
        await raw.client_kill_filter(_type="pubsub")
        assert await subscription.get() == (ONE.encode(), b"before")
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await subscription.get()
        await raw.publish(ONE, "between")
        await subscription.open([ONE])
        await raw.publish(ONE, "after")
        assert await subscription.get() == (ONE.encode(), b"after")


async def test_a_loss_wakes_who_waits(url: str, raw: redis.asyncio.Redis) -> None:
    """At once, not at the next ping."""
    async with connect(url, command_timeout_ms=120_000) as connector:
        subscription = connector.subscription("ears")
        await subscription.open([ONE])
        waiting = asyncio.ensure_future(subscription.get())
        await asyncio.sleep(0)
        await raw.client_kill_filter(_type="pubsub")
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(waiting, 20)


async def test_a_silent_peer_is_given_up(url: str, server: ValkeyServer) -> None:
    """It is asked now and then; one that answers stays, one that does not is a CommandTimeout."""
    async with Proxy(server.port) as proxy, connect(proxy.url, command_timeout_ms=1_200) as connector:
        subscription = connector.subscription("ears")
        await subscription.open([ONE])
        waiting = asyncio.ensure_future(subscription.get())
        await wait_until(lambda: proxy.count(b"PING") >= 2, "it is asked again")
        assert not waiting.done()
        proxy.swallow_reply(b"PING", then="hang")
        with pytest.raises(CommandTimeout):
            await asyncio.wait_for(waiting, 20)


async def test_a_slow_reader_loses_the_oldest(url: str, raw: redis.asyncio.Redis) -> None:
    """What waits is bounded, and what went is counted."""
    async with connect(url) as connector:
        ears = connector.subscription("ears")
        ears._keep = 3
        await ears.open([ONE])
        for n in range(5):
            await raw.publish(ONE, str(n))
        await raw.publish(ONE, "last")
        await wait_until(lambda: ears.dropped == 3, "three have gone")
        assert [data for _, data in await _told(ears, 3)] == [b"3", b"4", b"last"]


async def test_a_refused_channel_is_an_error(own_server: OwnServer) -> None:
    """Of the server, in its words; the connection is not kept."""
    server = own_server()
    server.admin.acl_setuser("deaf", enabled=True, nopass=True, keys=["*"], categories=["+@all"], reset=True)
    async with connect(f"redis://deaf:x@127.0.0.1:{server.port}/0") as connector:
        subscription = connector.subscription("ears")
        with pytest.raises(ServerError, match="NOPERM"):
            await subscription.open([ONE])
        with pytest.raises(ConnectionLost):
            await subscription.get()


async def test_another_wire_version_is_refused(url: str, raw: redis.asyncio.Redis) -> None:
    """The fence comes first on this connection too."""
    async with connect(url) as connector:
        subscription = connector.subscription("ears")
        await raw.set("{emq}:version", "echomq:9")
        with pytest.raises(FenceRefused):
            await subscription.open([ONE])


async def test_it_is_closed_with_its_connector(url: str) -> None:
    """Who waits is told; nothing can be opened afterwards."""
    async with connect(url) as connector:
        subscription = connector.subscription("ears")
        await subscription.open([ONE])
        waiting = asyncio.ensure_future(subscription.get())
        await asyncio.sleep(0)
    with pytest.raises(ConnectionLost):
        await waiting
    with pytest.raises(EchoMQError, match="closed"):
        await subscription.open([ONE])
    with pytest.raises(EchoMQError, match="closed"):
        connector.subscription("ears")


async def test_misuse_is_refused(url: str) -> None:
    """No channel, or a get before the open."""
    subscription = Connector(url).subscription("ears")
    with pytest.raises(InvalidArgument, match="channels"):
        await subscription.open([])
    with pytest.raises(EchoMQError, match="not open"):
        await subscription.get()
