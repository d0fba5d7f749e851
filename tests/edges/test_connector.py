"""The connector on a real server: replies, errors, event loops, closing, the pool."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio
import uvloop

from echomq_worker.connection import reply_error
from echomq_worker.connector import Connector, connect
from echomq_worker.errors import (
    ConfigError,
    ConnectionLost,
    EchoMQError,
    Gone,
    InvalidArgument,
    KindRefused,
    ServerError,
    Unavailable,
)
from echomq_worker.pool import Pool, connect_pool
from tests.support.clock import ManualClock
from tests.support.proxy import Proxy
from tests.support.valkey import ValkeyServer
from tests.support.waiting import in_time, wait_until

PAUSED = "emq:{q}:paused"


async def test_replies_come_as_the_server_gives_them(url: str) -> None:
    """Bytes for text, int for integers, None for nothing, lists nested; arguments of every kind that is allowed."""
    async with connect(url) as connector:
        assert await connector.call("SADD", PAUSED, b"\x00\xff\r\n", "é", 7, 1.5, memoryview(b"view")) == 5
        assert sorted(await connector.call("SMEMBERS", PAUSED)) == [
            b"\x00\xff\r\n",
            b"1.5",
            b"7",
            b"view",
            "é".encode(),
        ]
        assert await connector.call("GET", "absent") is None
        assert await connector.call("EVAL", "return {1, {'a', false}}", 0) == [1, [b"a", None]]


async def test_a_pipeline_answers_in_order_with_errors_in_place(url: str) -> None:
    """Each command has its reply at its place; an error reply is an exception instance there and nothing raises."""
    async with connect(url) as connector:
        replies = await connector.pipeline(
            [
                ("SADD", PAUSED, "a"),
                ["GET", PAUSED],
                ("EVAL", "return redis.error_reply('EMQSTALE job gone')", 0),
                ("SCARD", PAUSED),
            ]
        )
        assert await connector.pipeline([]) == []
    assert [replies[0], replies[3]] == [1, 1]
    assert isinstance(replies[1], ServerError)
    assert replies[1].code == "WRONGTYPE"
    assert isinstance(replies[2], Gone)


async def test_a_transaction_in_one_pipeline_is_not_torn(url: str) -> None:
    """Between MULTI and EXEC of one pipeline no command of another caller comes, however many call at once."""
    async with connect(url) as connector:

        async def transaction(i: int) -> Any:
            return (await connector.pipeline([("MULTI",), ("SADD", PAUSED, i), ("SADD", PAUSED, i), ("EXEC",)]))[-1]

        results = await asyncio.gather(*(transaction(i) for i in range(200)))
    assert results == [[1, 0]] * 200


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("SADD", PAUSED, None), "command SADD: argument 2 is NoneType, expected bytes, text"),
        (("SADD", PAUSED, True), "command SADD: argument 2 is bool, expected"),
        (("SADD", PAUSED, ["x"]), "command SADD: argument 2 is list, expected"),
        (
            ("SADD", PAUSED, "secret\ud800"),
            "command SADD: argument 2 is str, expected bytes, text that encodes as UTF-8",
        ),
        ((), "command: it is empty"),
    ],
)
async def test_what_cannot_be_sent_is_refused_before_it_is(
    url: str, arguments: tuple[Any, ...], complaint: str
) -> None:
    """A value of a wrong type raises InvalidArgument naming its place, not its content; the connection goes on."""
    async with connect(url) as connector:
        for send in (connector.call(*arguments), connector.pipeline([("PING",), arguments])):
            with pytest.raises(InvalidArgument) as caught:
                await send
            assert str(caught.value).startswith(complaint)
            assert "secret" not in str(caught.value)
        assert await connector.call("PING") == b"PONG"
        assert connector.generation == 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("LOADING Valkey is loading the dataset in memory", Unavailable),
        ("READONLY You can't write against a read only replica.", Unavailable),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", Unavailable),
        ("UNBLOCKED client unblocked via CLIENT UNBLOCK", Unavailable),
        ("CLUSTERDOWN The cluster is down", Unavailable),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable),
        ("OOM command not allowed when used memory > 'maxmemory'. script: abc, on @user_script:3.", Unavailable),
        ("NOREPLICAS Not enough good replicas to write.", Unavailable),
        ("BUSY Valkey is busy running a script.", Unavailable),
        ("MISCONF Errors writing to the AOF file", Unavailable),
        ("ASK 3999 127.0.0.1:6381", Unavailable),
        ("MOVED 3999 127.0.0.1:6381", Unavailable),
        ("EMQKIND job id must be JOB-namespaced", KindRefused),
        ("EMQSTALE job gone", Gone),
        ("NOPERM User w has no permissions to run the 'get' command", ServerError),
        ("ERR max number of clients reached", ServerError),
        ("NOSCRIPT No matching script.", ServerError),
        ("BUSYGROUP Consumer Group name already exists", ServerError),
        ("ERR", ServerError),
        ("", ServerError),
    ],
)
def test_each_error_reply_has_its_class(text: str, kind: type[EchoMQError]) -> None:
    """What the server cannot do now, a script's refusal, and any other error are told apart by the first word."""
    error = reply_error(text)
    assert type(error) is kind
    assert str(error) == text


def test_arguments_that_the_server_repeats_are_cut_off() -> None:
    """`unknown command` repeats the arguments, which may be payloads: they do not get into the error."""
    error = reply_error("ERR unknown command 'EMQ.CLAIM', with args beginning with: 'secret' 'more' ")
    assert str(error) == "ERR unknown command 'EMQ.CLAIM'"


NO_PRIMARY = ("READONLY", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED")


@pytest.mark.parametrize(
    "code",
    [*NO_PRIMARY, "LOADING", "CLUSTERDOWN", "NOAUTH", "ERR max number of clients"],
)
async def test_an_error_reply_ends_one_command_and_not_the_connection(
    server: ValkeyServer, url: str, code: str
) -> None:
    """redis-py takes some error replies for a broken connection; here each raises for its own command only. After one
    that says that the server is no primary the next call connects anew: the name may stand for another server by then.
    """
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        proxy.answer(f"{code} not now", pattern=b"two")
        calls = [connector.call("ECHO", word) for word in ("one", "two", "three")]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [outcomes[0], outcomes[2]] == [b"one", b"three"]
        assert isinstance(outcomes[1], Unavailable | ServerError)
        assert str(outcomes[1]) == f"{code} not now"
        assert await connector.call("PING") == b"PONG"
        assert proxy.opened == connector.generation == (2 if code in NO_PRIMARY else 1)


async def test_skew_is_told_with_half_the_round_trip_taken_off(url: str) -> None:
    """A host clock that is an hour ahead shows as an hour; a clock that is right as nearly nothing.

    Report 78 (celery/celery#1802).
    """
    async with connect(url) as connector:
        assert abs(await connector.skew_ms()) < 5_000
        server_ms = int((await connector.call("TIME"))[0]) * 1000
    clock = ManualClock()
    clock.set(server_ms + 3_600_000)
    async with connect(url, clock=clock) as connector:
        assert 3_590_000 <= await connector.skew_ms() <= 3_605_000


async def _in_one_loop(url: str) -> tuple[int, bytes]:
    async with connect(url) as connector:
        await connector.pipeline([("SADD", PAUSED, i) for i in range(1000)])
        replies = await asyncio.gather(*(connector.call("ECHO", i) for i in range(1000)))
        assert replies == [str(i).encode() for i in range(1000)]
        parking = connector.parking()
        assert await parking.blpop(["emq:{q}:wake"], 10) is None
        big = b"x" * 5_000_000
        assert await connector.call("ECHO", big) == big
        return await connector.call("SCARD", PAUSED), await connector.call("PING")


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("debug", [False, True])
def test_each_event_loop(url: str, run: Callable[..., tuple[int, bytes]], *, debug: bool) -> None:
    """On asyncio and uvloop, debug mode or not: the same replies, and nothing is left when the loop ends."""
    assert run(in_time(_in_one_loop(url)), debug=debug) == (1000, b"PONG")
    gc.collect()


def test_another_event_loop_is_told_apart(url: str) -> None:
    """A connector belongs to the loop that used it first; from another one every method says so."""

    async def first(connector: Connector) -> None:
        assert await connector.call("PING") == b"PONG"

    async def second(connector: Connector) -> None:
        for use in (connector.call("PING"), connector.pipeline([("PING",)]), connector.open(), connector.aclose()):
            with pytest.raises(EchoMQError, match="it belongs to another event loop"):
                await use

    connector = Connector(url)
    with asyncio.Runner() as one:
        one.run(first(connector))
        asyncio.run(second(connector))
        one.run(connector.aclose())


async def test_a_closed_connector_says_so(url: str) -> None:
    """Closing twice is fine, also at once and before anything was opened; then every use is refused in words."""
    connector = Connector(url)
    await connector.aclose()
    connector = Connector(url)
    await connector.open()
    assert connector.connected
    await asyncio.gather(connector.aclose(), connector.aclose())
    await connector.aclose()
    assert not connector.connected
    assert connector.pending == 0
    for use in (connector.call("PING"), connector.pipeline([("PING",)]), connector.open()):
        with pytest.raises(EchoMQError, match="it is closed"):
            await use
    with pytest.raises(EchoMQError, match="it is closed"):
        connector.parking()


async def test_closing_ends_what_is_unanswered(server: ValkeyServer, url: str) -> None:
    """Calls in flight end as ConnectionLost when the connector is closed, those that wait for the connection too."""
    async with Proxy(server.port) as proxy:
        connector = Connector(proxy.url)
        await connector.open()
        proxy.stall()
        calls = [asyncio.ensure_future(connector.call("ECHO", i)) for i in range(3)]
        await wait_until(lambda: connector.pending == 3, "the calls are in flight")
        await connector.aclose()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, ConnectionLost)
            assert "the connection was closed" in str(outcome)
        waiting = Connector(proxy.url)
        call = asyncio.ensure_future(waiting.call("PING"))
        await wait_until(lambda: proxy.opened == 2, "it is connecting")
        await waiting.aclose()
        with pytest.raises(EchoMQError, match="it is closed"):
            await call


async def test_what_was_queued_is_sent_before_closing(url: str, raw: redis.asyncio.Redis) -> None:
    """A command whose caller was cancelled in the very turn of closing still goes out."""
    async with connect(url) as connector:
        call = asyncio.ensure_future(connector.call("SADD", PAUSED, "x"))
        await asyncio.sleep(0)
        call.cancel()
    await wait_until(lambda: raw.scard(PAUSED), "the command has run")


async def _cut_short(connector: Connector, turns: int) -> None:
    call = asyncio.ensure_future(connector.call("PING"))
    for _ in range(turns):
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def _opening_cut_short(url: str, turns: int) -> None:
    async def block() -> None:
        async with connect(url):
            pass

    task = asyncio.ensure_future(block())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _refused() -> None:
    connector = Connector("redis://127.0.0.1:1")
    outcomes = await asyncio.gather(*(connector.call("PING") for _ in range(5)), return_exceptions=True)
    assert all(isinstance(outcome, EchoMQError) for outcome in outcomes)
    await _cut_short(connector, 1)
    await wait_until(lambda: connector._opening is None, "the attempt that nobody waits for ends")
    await connector.aclose()


async def test_nothing_is_left_behind(url: str) -> None:
    """Connecting, failing, cancelling and closing leave no ResourceWarning and no unread exception."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for turns in range(20):
            connector = Connector(url)
            await _cut_short(connector, turns)
            await connector.aclose()
            await _opening_cut_short(url, turns)
        await _refused()
        gc.collect()
        await asyncio.sleep(0)
    assert complaints == []


@pytest.mark.parametrize("closer", ["call", "pipeline"])
async def test_a_pool_spreads_over_its_connections(url: str, closer: str) -> None:
    """Each call goes to the connection with the fewest unanswered ones; the interface is a connector's."""
    async with connect_pool(url, size=3, name="producer") as pool:
        assert pool.connected
        assert pool.url_safe == url
        calls: list[Awaitable[Any]] = [
            pool.call("CLIENT", "ID") if closer == "call" else pool.pipeline([("CLIENT", "ID")]) for _ in range(30)
        ]
        ids = [str(reply) for reply in await asyncio.gather(*calls)]
        assert sorted(ids.count(each) for each in set(ids)) == [10, 10, 10]
        assert pool.pending == 0
    assert not pool.connected


async def test_a_pool_that_cannot_open_leaves_nothing(url: str) -> None:
    """When one connection fails the block does not begin and all are closed; a size below 1 is refused."""
    with pytest.raises(EchoMQError):
        async with connect_pool("redis://127.0.0.1:1", size=2):
            raise AssertionError("the block must not run")
    with pytest.raises(ConfigError, match="size of the pool: 0, expected an integer from 1 to 1000"):
        Pool(url, size=0)
