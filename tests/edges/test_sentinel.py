"""Sentinels: how they are asked, what they may say, and a server that is no primary any more.

Source: issue "The five promises", Topologies. Failovers under load are in `tests/faults/test_sentinel.py`.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from echomq_worker.cli import main
from echomq_worker.connector import Connector, connect
from echomq_worker.errors import AuthenticationFailed, ConfigError, Unavailable, Unreachable
from tests.support.proxy import Proxy
from tests.support.sentinel import FAST_SYNC, Sentinel
from tests.support.valkey import OwnServer, ValkeyServer, free_port
from tests.support.waiting import wait_until

# Connections of a sentinel to a server that it watches: for commands, and to hear of the other sentinels.
OF_A_SENTINEL = 2

Watch = Callable[..., Sentinel]


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Starts a sentinel that watches a port as `main`, with more lines of configuration; it is the only one."""
    with ExitStack() as stack:

        def make(port: int, *lines: str) -> Sentinel:
            made = Sentinel()
            stack.callback(made.close)
            made.start([f"sentinel monitor main 127.0.0.1 {port} 1", *lines])
            made.listens_sync()
            return made

        yield make


def _url(*sentinels: Sentinel, login: str = "", service: str = "main", options: str = "") -> str:
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in sentinels)
    return f"redis+sentinel://{login}{hosts}/{service}{options}"


def _swap(old: ValkeyServer, new: ValkeyServer, sentinel: Sentinel) -> None:
    """What a failover changes, at once, and without anybody being hung up on."""
    new.admin.replicaof("NO", "ONE")
    _name(sentinel, new.port)
    old.admin.replicaof("127.0.0.1", str(new.port))


def _name(sentinel: Sentinel, port: int) -> None:
    """Have a sentinel name another server."""
    sentinel.ask("SENTINEL", "REMOVE", "main")
    sentinel.ask("SENTINEL", "MONITOR", "main", "127.0.0.1", port, 1)


async def test_a_server_that_became_a_replica_is_left(own_server: OwnServer, watch: Watch) -> None:
    """The primary becomes a replica and hangs up on nobody: the first write is refused as Unavailable, nothing was
    done, what was sent with it is answered too, and the next one goes to the new primary. A wait that the server ends,
    and the next one, do the same.
    """
    old, new = own_server(args=FAST_SYNC), own_server()
    new.admin.replicaof("127.0.0.1", str(old.port))
    await wait_until(lambda: new.admin.info("replication")["master_link_status"] == "up", "the replica follows")
    sentinel = watch(old.port)
    async with connect(_url(sentinel)) as connector:
        parking = connector.parking()
        waiting = asyncio.create_task(parking.blpop(["emq:{q}:wake"], 60_000))
        await wait_until(lambda: old.admin.info("clients")["blocked_clients"], "a wait stands on the old primary")

        _swap(old, new, sentinel)
        with pytest.raises(Unavailable, match="UNBLOCKED"):
            await waiting
        outcomes = await asyncio.gather(
            connector.call("ECHO", "before"),
            connector.call("SET", "emq:{q}:meta", "x"),
            connector.call("ECHO", "behind"),
            return_exceptions=True,
        )
        assert (outcomes[0], outcomes[2]) == (b"before", b"behind")
        assert isinstance(outcomes[1], Unavailable)
        assert outcomes[1].code == "READONLY"
        assert await connector.call("LPUSH", "emq:{q}:wake", "1") == 1
        assert await parking.blpop(["emq:{q}:wake"], 20_000) == b"emq:{q}:wake"
        assert connector.generation == 2
    assert old.admin.info("replication")["role"] == "slave"


async def test_both_have_a_login_of_their_own(own_server: OwnServer, watch: Watch) -> None:
    """User and password of the URL are the server's, `sentinel_username` and `sentinel_password` the sentinels', each
    escaped; a database is chosen on the server alone.

    Report 103 (celery/celery#8016).
    """
    server = own_server()
    rights: dict[str, Any] = {"keys": ["*"], "channels": ["*"], "categories": ["+@all"]}
    server.admin.acl_setuser("wo@rk", enabled=True, passwords="+p@s:s/#%", **rights)
    sentinel = watch(server.port, "user ask on >w@tch/? +@all", "user default off")
    login = "wo%40rk:p%40s%3As%2F%23%25@"
    asking = "?sentinel_username=ask&sentinel_password=w%40tch%2F%3F"
    url = _url(sentinel, login=login, service="main/3", options=asking)
    async with connect(url) as connector:
        assert await connector.call("ACL", "WHOAMI") == b"wo@rk"
        assert b" db=3 " in await connector.call("CLIENT", "INFO")
        shown = connector.url_safe
    assert shown == url.replace("p%40s%3As%2F%23%25", "***").replace("w%40tch%2F%3F", "***")

    for bad, words in (
        (_url(sentinel, login=login), "the sentinel refuses the login: NOAUTH"),
        (_url(sentinel, login=login, options=asking + "x"), "the sentinel refuses the login: WRONGPASS"),
        (_url(sentinel, login="who:p@", options=asking), "the server refused the credentials: WRONGPASS"),
        (_url(sentinel, options=asking.replace("w%40tch", "s3cr3t")), "the sentinel refuses the login: WRONGPASS"),
    ):
        with pytest.raises(AuthenticationFailed, match=words) as caught:
            await Connector(bad).open()
        assert "\n" not in str(caught.value)
        assert "s3cr3t" not in str(caught.value)


async def test_what_is_wrong_is_one_line_each(own_server: OwnServer, watch: Watch) -> None:
    """Sentinels that are down, that do not know the service, that name a server which is down, frozen, or a replica; a
    server in the place of a sentinel, and the reverse.
    """
    server, replica, frozen = own_server(), own_server(), own_server()
    replica.admin.replicaof("127.0.0.1", str(server.port))
    sentinel, of_nothing, of_replica = watch(server.port), watch(free_port()), watch(replica.port)
    of_frozen = watch(frozen.port)
    frozen.pause()
    nobody = free_port()
    for url, words in (
        (
            f"redis+sentinel://127.0.0.1:{nobody},localhost:{nobody}/main",
            rf"primary: 127\.0\.0\.1:{nobody}: .*; localhost",
        ),
        (_url(sentinel, service="other"), "it knows no service 'other'"),
        (_url(of_nothing), r"127\.0\.0\.1:\d+: Error 111 connecting to"),
        (_url(of_replica), "a sentinel names it as the primary, its role is slave"),
        (_url(of_frozen), "no connection within 500 ms"),
        (f"redis+sentinel://127.0.0.1:{server.port}/main", "unknown command .*is it a server, and no sentinel"),
    ):
        with pytest.raises(Unreachable, match=words) as caught:
            await Connector(url, connect_timeout_ms=500 if "500 ms" in words else 5_000).open()
        assert "\n" not in str(caught.value)
    with pytest.raises(
        ConfigError, match=rf"this is a sentinel, expected redis\+sentinel://127\.0\.0\.1:{sentinel.port}/"
    ):
        await Connector(f"redis://127.0.0.1:{sentinel.port}").open()


def test_the_command_line_says_it_in_one_line(
    own_server: OwnServer, watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service that nobody knows ends with code 3, a URL without one with code 2."""
    sentinel = watch(own_server().port)
    for service, code, words in (("other", 3, "it knows no service 'other'"), ("", 2, "no service, expected the name")):
        assert main(("enqueue", "q", "{}", "--url", _url(sentinel, service=service))) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
    assert main(("enqueue", "q", "{}", "--url", _url(sentinel))) == 0


async def test_a_sentinel_that_hangs_or_is_wrong_is_asked_last_the_next_time(
    own_server: OwnServer, watch: Watch
) -> None:
    """The first one is frozen: the second is asked after a short while, and first from then on. One that names a server
    which is none is passed over at the next attempt.
    """
    server = own_server()
    hangs, knows, wrong = watch(server.port), watch(server.port), watch(free_port())
    hangs.send(signal.SIGSTOP)
    connector = Connector(_url(hangs, knows), connect_timeout_ms=3_000)
    await connector.open()
    assert [one.peer for one in connector._endpoint.sentinels] == [f"127.0.0.1:{one.port}" for one in (knows, hangs)]
    await connector.aclose()

    connector = Connector(_url(wrong, knows))
    with pytest.raises(Unreachable, match="Error 111"):
        await connector.open()
    assert await connector.call("PING") == b"PONG"
    await connector.aclose()


async def test_a_primary_that_was_replaced_while_it_answered_is_not_used(own_server: OwnServer, watch: Watch) -> None:
    """The server that was named hangs, another one becomes the primary meanwhile, and then the first answers, still as
    a primary: the connection is not used, the next attempt finds the other one.
    """
    old, new = own_server(), own_server()
    async with Proxy(old.port) as hanging:
        sentinel = watch(hanging.port)
        await wait_until(lambda: hanging.open == OF_A_SENTINEL, "the sentinel has connected")
        connector = Connector(_url(sentinel))
        hanging.stall()
        opening = asyncio.create_task(connector.open())
        await wait_until(lambda: hanging.open > OF_A_SENTINEL, "we have connected")
        _name(sentinel, new.port)
        hanging.flow()
        with pytest.raises(Unreachable, match=rf"the sentinels name 127\.0\.0\.1:{new.port} as the primary by now"):
            await opening
        await connector.call("SET", "emq:{q}:meta", "x")
        await connector.aclose()
    assert new.admin.get("emq:{q}:meta") == b"x"
