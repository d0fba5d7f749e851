"""Opening a connection on a real server: the fence, credentials, databases, sockets."""

from __future__ import annotations

import asyncio
import re
import socket

import pytest
import redis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection

from echomq_worker.connector import Connector, connect
from echomq_worker.errors import (
    AuthenticationFailed,
    ConfigError,
    FenceRefused,
)
from tests.support.proxy import Proxy
from tests.support.valkey import OwnServer, ValkeyServer
from tests.support.waiting import wait_until


async def test_the_first_connector_claims_the_fence_and_others_pass_it(url: str, raw: redis.asyncio.Redis) -> None:
    """On a fresh store the version is written once; a second connector finds it and goes on."""
    async with connect(url):
        assert await raw.get("{emq}:version") == b"echomq:3.0.0"
    async with connect(url) as connector:
        assert await connector.call("PING") == b"PONG"


async def test_an_older_rung_is_a_setting(url: str, raw: redis.asyncio.Redis) -> None:
    """A deployment on an older version is served when that version is expected, and left as it is."""
    await raw.set("{emq}:version", "echomq:2.4.2")
    async with connect(url, wire_version="echomq:2.4.2") as connector:
        assert await connector.call("PING") == b"PONG"
    assert await raw.get("{emq}:version") == b"echomq:2.4.2"


async def test_a_different_fence_is_fatal_and_names_both(
    server: ValkeyServer, url: str, raw: redis.asyncio.Redis
) -> None:
    """Nothing of ours is sent behind a fence of another version, nothing is written, both versions are named."""
    await raw.set("{emq}:version", "echomq:9.9.9")
    async with Proxy(server.port) as proxy:
        with pytest.raises(FenceRefused) as caught:
            async with connect(proxy.url):
                raise AssertionError("the block must not run")
        assert [command.split(b"\r\n")[2] for command in proxy.seen] == [b"HELLO", b"CLIENT", b"GET"]
    assert (caught.value.expected, caught.value.found) == ("echomq:3.0.0", "echomq:9.9.9")
    assert await raw.get("{emq}:version") == b"echomq:9.9.9"


@pytest.mark.leaves_keys("a list under the fence's name is what this test is about")
async def test_a_fence_that_is_no_string_is_refused(url: str, raw: redis.asyncio.Redis) -> None:
    """A key of another type under the fence's name is a refusal, not a crash."""
    await raw.lpush("{emq}:version", "x")
    with pytest.raises(FenceRefused, match="a key that is not a string"):
        await Connector(url).open()


async def test_two_connectors_that_race_for_the_fence_read_what_one_wrote(url: str, raw: redis.asyncio.Redis) -> None:
    """Of two versions that race on a fresh store one is written, and the other one is refused."""
    ours = [Connector(url, wire_version=f"echomq:{i}.0.0") for i in (1, 2)]
    outcomes = await asyncio.gather(*(connector.open() for connector in ours), return_exceptions=True)
    for connector in ours:
        await connector.aclose()
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["FenceRefused", "NoneType"]
    winner = outcomes.index(None)
    assert await raw.get("{emq}:version") == f"echomq:{winner + 1}.0.0".encode()


async def test_credentials_and_rights(own_server: OwnServer) -> None:
    """Escaped credentials log in; wrong, missing or insufficient ones are AuthenticationFailed without the password.

    Report 103 (celery/celery#8016).
    """
    server = own_server()
    server.admin.acl_setuser("work", enabled=True, passwords="+p@s:s/#%", keys=["*"], categories=["+@all"])
    base = f"127.0.0.1:{server.port}"
    async with connect(f"redis://work:p%40s%3As%2F%23%25@{base}") as connector:
        assert await connector.call("ACL", "WHOAMI") == b"work"
    for login in ("work:wrong", "nobody:wrong", ":wrong"):
        with pytest.raises(AuthenticationFailed) as caught:
            await Connector(f"redis://{login}@{base}").open()
        assert str(caught.value).startswith(f"redis://{login.partition(':')[0]}:***@{base}: the server refused")
        assert ":wrong" not in str(caught.value)
    server.admin.acl_setuser("narrow", enabled=True, passwords="+p", keys=["emq:*"], categories=["+@all"])
    with pytest.raises(AuthenticationFailed, match=r"\{emq\}:version cannot be read or claimed: NOPERM"):
        await Connector(f"redis://narrow:p@{base}").open()
    server.admin.config_set("requirepass", "x")
    with pytest.raises(AuthenticationFailed, match="NOAUTH"):
        await Connector(f"redis://{base}").open()
    async with connect(f"redis://:x@{base}") as connector:
        assert await connector.call("PING") == b"PONG"


async def test_client_name_is_set_and_may_be_refused(own_server: OwnServer) -> None:
    """The connection carries its name; a user who may not run CLIENT connects all the same."""
    server = own_server()
    async with connect(server.url, name="echomq:emails") as connector:
        assert await connector.call("CLIENT", "GETNAME") == b"echomq:emails"
        server.admin.acl_setuser(
            "mute", enabled=True, nopass=True, keys=["*"], categories=["+@all"], commands=["-client"]
        )
        async with connect(f"redis://mute:@127.0.0.1:{server.port}") as mute:
            assert await mute.call("PING") == b"PONG"


async def test_databases(own_server: OwnServer) -> None:
    """The database of the URL is selected; one that does not exist is a ConfigError naming it."""
    server = own_server()
    async with connect(f"redis://127.0.0.1:{server.port}/3") as connector:
        assert b" db=3 " in await connector.call("CLIENT", "INFO")
    with pytest.raises(ConfigError, match="database 99 cannot be selected: ERR DB index is out of range"):
        await Connector(f"redis://127.0.0.1:{server.port}/99").open()


async def test_unix_socket(own_server: OwnServer) -> None:
    """A unix:// URL works as the others do, reconnect included."""
    server = own_server(unix_socket=True)
    async with connect(server.unix_url) as connector:
        assert await connector.call("PING") == b"PONG"
        server.admin.client_kill_filter(_type="normal", skipme=True)
        await wait_until(lambda: not connector.connected, "the connection is noticed as gone")
        assert await connector.call("PING") == b"PONG"
        assert connector.generation == 2


async def test_keepalive_is_on(url: str) -> None:
    """A peer that vanished without a word is noticed by the kernel, also while nothing is asked."""
    async with connect(url) as connector:
        assert connector._link is not None
        assert connector._link._transport is not None
        sock = connector._link._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0


async def test_a_client_library_that_opens_connections_otherwise_is_named(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of redis-py's connections one method is replaced that is not public. A version without it, which would open a
    connection of its own or none, is a ConfigError with the version, not a hang. user-needs 106.
    """
    assert callable(getattr(AbstractConnection, "_connect", None))

    async def otherwise(_self: object) -> None:
        """What a later version may do."""

    monkeypatch.setattr(AbstractConnection, "connect", otherwise)
    with pytest.raises(ConfigError, match=f"redis-py {re.escape(redis.__version__)}: it does not open connections"):
        await Connector(url).open()
