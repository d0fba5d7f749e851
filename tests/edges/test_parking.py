"""Parking: a wait that ends by a token, by its timeout, by an error or by cancellation, and no token lost."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
import redis.asyncio

from echomq_worker.connector import Connector, connect
from echomq_worker.errors import (
    CommandTimeout,
    ConnectionLost,
    EchoMQError,
    FenceRefused,
    InvalidArgument,
    Unavailable,
    Unreachable,
)
from echomq_worker.parking import Parking
from echomq_worker.seats import Token
from tests.support.proxy import Proxy
from tests.support.valkey import ValkeyServer
from tests.support.waiting import passes, wait_until

WAKE = "emq:{q}:wake"
READY = "emq:{q}:ready"


async def _parked(raw: redis.asyncio.Redis, count: int = 1) -> None:
    async def blocked() -> bool:
        return bool((await raw.info("clients"))["blocked_clients"] == count)

    await wait_until(blocked, f"{count} clients are parked on the server")


async def _cancelled(wait: asyncio.Future[bytes | None]) -> None:
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait


async def _pushed(connector: Connector, key: str = WAKE) -> None:
    await connector.call("LPUSH", key, "1")


async def test_a_token_ends_the_wait_and_names_its_key(url: str, raw: redis.asyncio.Redis) -> None:
    """A token that is there is taken at once, one that comes later wakes, on whichever key it is."""
    async with connect(url) as connector:
        parking = connector.parking()
        await _pushed(connector, READY)
        assert await parking.blpop([WAKE, READY], 5000) == READY.encode()
        wait = asyncio.ensure_future(parking.blpop([WAKE, READY], 5000))
        await _parked(raw)
        await _pushed(connector)
        assert await wait == WAKE.encode()
        assert await connector.call("EXISTS", WAKE, READY) == 0


async def test_commands_do_not_wait_for_a_parked_connection(url: str, raw: redis.asyncio.Redis) -> None:
    """While one connection is parked, commands of the same connector are answered."""
    async with connect(url, name="echomq:q") as connector:
        wait = asyncio.ensure_future(connector.parking().blpop([WAKE], 10_000))
        await _parked(raw)
        assert await connector.call("PING") == b"PONG"
        names = sorted(row["name"] for row in await raw.client_list() if row["name"].startswith("echomq"))
        assert names == ["echomq:q", "echomq:q:parking"]
        await _cancelled(wait)


async def test_without_a_token_the_wait_is_over_in_time(url: str) -> None:
    """None after the timeout, not before, and again and again on one connection."""
    async with connect(url) as connector:
        parking = connector.parking()
        for timeout_ms in (1, 20, 120):
            started = time.monotonic()
            assert await parking.blpop([WAKE], timeout_ms) is None
            assert time.monotonic() - started >= timeout_ms / 1000 - 0.002
        assert parking.connected


@pytest.mark.parametrize("seed", range(2))
async def test_no_token_is_lost_when_a_wait_is_cancelled(url: str, seed: int) -> None:
    """200 waits are cancelled around the moment a token comes: each token is taken by a wait or still in the list."""
    draw = random.Random(seed)
    pushed = taken = cancelled = 0
    async with connect(url) as connector:
        parking = connector.parking()
        while cancelled < 200:
            wait = asyncio.ensure_future(parking.blpop([WAKE], 1000))
            # Let it be parked, or not yet; then push and cancel in an order that differs each time.
            await passes(draw.choice([0, 1]), "it is parked, or not yet")
            push = asyncio.ensure_future(_pushed(connector))
            pushed += 1
            for _ in range(draw.randrange(8)):
                await passes(draw.choice([0, 0, 0.1]), "it is cancelled at any moment")
            wait.cancel()
            outcome = (await asyncio.gather(wait, push, return_exceptions=True))[0]
            taken += outcome == WAKE.encode()
            cancelled += isinstance(outcome, asyncio.CancelledError)
            # A list of tokens is cut at 64 where one is given back: on a slow machine it would come to that.
            while pushed - taken > 30 and await parking.blpop([WAKE], 500) is not None:
                taken += 1
        while taken < pushed and await parking.blpop([WAKE], 20_000) is not None:
            taken += 1
        assert taken == pushed
        assert await connector.call("EXISTS", WAKE) == 0


async def test_a_cancelled_wait_is_taken_up_by_the_next(
    server: ValkeyServer, url: str, raw: redis.asyncio.Redis
) -> None:
    """The BLPOP of a cancelled wait stands; the next wait sends none of its own and ends by its own timeout."""
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        parking = connector.parking()
        wait = asyncio.ensure_future(parking.blpop([WAKE], 60_000))
        await _parked(raw)
        await _cancelled(wait)
        started = time.monotonic()
        assert await parking.blpop([WAKE], 50) is None
        assert 0.045 <= time.monotonic() - started < 20
        await _pushed(connector)
        assert await parking.blpop([WAKE], 5000) == WAKE.encode()
        assert proxy.count(b"BLPOP") == 1


async def test_a_wait_that_outlives_the_one_it_took_up_parks_again(url: str, raw: redis.asyncio.Redis) -> None:
    """The BLPOP that was taken up ends early by its own timeout: the wait goes on for the rest of its time."""
    async with connect(url) as connector:
        parking = connector.parking()
        wait = asyncio.ensure_future(parking.blpop([WAKE], 150))
        await _parked(raw)
        await _cancelled(wait)
        longer = asyncio.ensure_future(parking.blpop([WAKE], 10_000))
        assert parking._link is not None
        parked = parking._answer
        await wait_until(lambda: parking._answer not in {parked, None}, "it has parked again")
        await _parked(raw)
        await _pushed(connector)
        assert await longer == WAKE.encode()


@pytest.mark.parametrize("already_there", [0, 1, 70])
async def test_closing_gives_back_a_token_that_nobody_took(
    url: str, raw: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch, *, already_there: int
) -> None:
    """A token popped for a wait that was cancelled goes back when the parking is closed; the list stays at most 64."""
    monkeypatch.setattr("echomq_worker.parking._OWED_S", 60)
    async with connect(url) as connector:
        parking = connector.parking()
        wait = asyncio.ensure_future(parking.blpop([WAKE, READY], 60_000))
        await _parked(raw)
        await _cancelled(wait)
        await _pushed(connector, READY)
        await wait_until(lambda: parking._answer is None, "the token has come")
        if already_there:
            await raw.rpush(READY, *["1"] * already_there)
            await raw.pexpire(READY, 60_000)
        await parking.aclose()
        await parking.aclose()
        assert await raw.llen(READY) == min(already_there + 1, 64)
        assert 0 < await raw.pttl(READY) <= 60_000, "it expires, as the scripts have it"


async def test_closing_ends_a_standing_wait_without_losing_a_token(
    url: str, raw: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A BLPOP that stands is ended on the server before the connection goes: a token pushed right then is kept."""
    # A server may stand still for longer than the second that it has.
    monkeypatch.setattr("echomq_worker.parking._GIVING_BACK_S", 60)
    async with connect(url) as connector:
        for _ in range(50):
            parking = connector.parking()
            wait = asyncio.ensure_future(parking.blpop([WAKE], 60_000))
            await _parked(raw)
            await _cancelled(wait)
            await asyncio.gather(parking.aclose(), _pushed(connector))
            await _parked(raw, 0)
            assert await connector.call("DEL", WAKE) == 1


async def test_closing_a_standing_wait_takes_no_time(
    url: str, raw: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is told to end the wait; closing does not sit it out, nor what it may take at most."""
    monkeypatch.setattr("echomq_worker.parking._GIVING_BACK_S", 60)
    async with connect(url) as connector:
        parking = connector.parking()
        wait = asyncio.ensure_future(parking.blpop([WAKE], 60_000))
        await _parked(raw)
        await _cancelled(wait)
        started = time.monotonic()
        await parking.aclose()
        assert time.monotonic() - started < 10


async def test_closing_a_standing_wait_on_a_silent_server_is_bounded(server: ValkeyServer, url: str) -> None:
    """Where the server says nothing any more, closing gives up after a second."""
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        parking = connector.parking()
        wait = asyncio.ensure_future(parking.blpop([WAKE], 60_000))
        await wait_until(lambda: proxy.count(b"BLPOP") == 1, "it is parked")
        await _cancelled(wait)
        proxy.stall()
        started = time.monotonic()
        await parking.aclose()
        assert time.monotonic() - started < 20
        proxy.flow()


async def test_who_leaves_waits_no_more_and_keeps_no_token(url: str, raw: redis.asyncio.Redis) -> None:
    """Left, a wait returns None and its BLPOP stands; a token that was handed out in the same turn is there for the
    next wait.
    """
    async with connect(url) as connector:
        parking = connector.parking()
        parking.leave([WAKE])
        wait = asyncio.ensure_future(parking.blpop([WAKE], 60_000))
        await _parked(raw)
        parking.leave([WAKE])
        assert await wait is None
        again = asyncio.ensure_future(parking.blpop([WAKE], 60_000))
        await asyncio.sleep(0)
        parking._seats[(WAKE,)].tell(Token(WAKE.encode(), b"1"))
        parking.leave([WAKE])
        assert await again is None
        assert await parking.blpop([WAKE], 60_000) == WAKE.encode()


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 8, 13])
async def test_closing_that_is_cancelled_leaves_nothing_open(url: str, raw: redis.asyncio.Redis, turns: int) -> None:
    """Cancelled at any moment after it began, closing has closed every connection; the fixture looks them up."""
    connector = Connector(url)
    waits = [asyncio.ensure_future(connector.parking().blpop([WAKE], 60_000)) for _ in range(3)]
    await _parked(raw, 3)
    await _cancelled(waits.pop())
    closing = asyncio.ensure_future(connector.aclose())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, *waits, return_exceptions=True)


async def test_a_silent_server_ends_the_wait_after_timeout_and_margin(
    server: ValkeyServer, url: str, raw: redis.asyncio.Redis
) -> None:
    """A connection that stalls while parked raises CommandTimeout, a ConnectionLost, in the wait that is on by then;
    the next wait reconnects.
    """
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        parking = connector.parking(margin_ms=150)
        assert await parking.blpop([WAKE], 1) is None
        proxy.stall()
        started = time.monotonic()
        with pytest.raises(CommandTimeout) as caught:  # noqa: PT012 - which of the waits it is that hears of it is open
            while time.monotonic() - started < 20:
                assert await parking.blpop([WAKE], 100) is None
        assert isinstance(caught.value, ConnectionLost)
        # Twice what it stands longer, which is more than this margin.
        assert 0.35 <= time.monotonic() - started < 15
        proxy.flow()
        await wait_until(lambda: proxy.open == 1, "the stalled connection is gone")
        await _parked(raw, 0)
        await _pushed(connector)
        assert await parking.blpop([WAKE], 20_000) == WAKE.encode()


async def test_a_long_wait_is_not_taken_for_a_silent_server(server: ValkeyServer, url: str) -> None:
    """The read timeout of a parked wait is its own timeout and the margin, not the command timeout."""
    async with Proxy(server.port) as proxy, connect(proxy.url, command_timeout_ms=800) as connector:
        parking = connector.parking(margin_ms=1_500)
        for timeout_ms in (1_200, 1, 1_000):
            assert await parking.blpop([WAKE], timeout_ms) is None
        assert proxy.opened == 2, "the connector's and the parking's: none was made again"


def _lost(parking: Parking) -> bool:
    """The connection is closed, and the BLPOP on it has been told so, which is a turn of the loop later."""
    return not parking.connected and parking._answer is None


async def test_a_broken_connection_ends_the_wait_and_the_next_one_parks_anew(
    server: ValkeyServer, url: str, raw: redis.asyncio.Redis
) -> None:
    """A reset raises ConnectionLost in the wait; the next wait makes a new connection, which passes the fence."""
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        parking = connector.parking()
        wait = asyncio.ensure_future(parking.blpop([WAKE], 10_000))
        await _parked(raw)
        proxy.reset()
        with pytest.raises(ConnectionLost):
            await wait
        await raw.set("{emq}:version", "echomq:0.0.1")
        with pytest.raises(FenceRefused):
            await parking.blpop([WAKE], 10)
        await raw.set("{emq}:version", "echomq:3.0.0")
        assert await parking.blpop([WAKE], 10) is None
        await proxy.refuse()
        proxy.reset()
        await wait_until(lambda: _lost(parking), "the loss is noticed")
        with pytest.raises(Unreachable):
            await parking.blpop([WAKE], 10)
        await proxy.accept()


async def test_a_connection_that_broke_while_nobody_waited_is_made_again(
    server: ValkeyServer, url: str, raw: redis.asyncio.Redis
) -> None:
    """A standing BLPOP whose connection went is forgotten: the next wait simply parks again."""
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        parking = connector.parking()
        wait = asyncio.ensure_future(parking.blpop([WAKE], 60_000))
        await _parked(raw)
        await _cancelled(wait)
        proxy.reset()
        await wait_until(lambda: _lost(parking), "the loss is noticed")
        assert await parking.blpop([WAKE], 10) is None


async def test_a_connection_that_breaks_while_it_is_made_ends_the_wait(server: ValkeyServer, url: str) -> None:
    """Lost between the fence and the BLPOP: ConnectionLost, and the next wait connects again."""
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        parking = connector.parking()
        proxy.swallow_reply(b"CLIENT\r\n$2\r\nID")
        with pytest.raises(ConnectionLost):
            await parking.blpop([WAKE], 10)
        assert await parking.blpop([WAKE], 10) is None


@pytest.mark.parametrize("code", ["UNBLOCKED", "READONLY", "LOADING", "MASTERDOWN"])
async def test_a_failover_answer_is_unavailable_and_parking_goes_on(server: ValkeyServer, url: str, code: str) -> None:
    """What a server answers to a BLPOP on failover raises Unavailable; the next wait is as any other."""
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        parking = connector.parking()
        proxy.answer(f"{code} instance state changed", pattern=b"BLPOP")
        with pytest.raises(Unavailable) as caught:
            await parking.blpop([WAKE], 1000)
        assert caught.value.code == code
        assert await parking.blpop([WAKE], 10) is None


async def test_one_who_unblocks_from_outside_is_heard(url: str, raw: redis.asyncio.Redis) -> None:
    """CLIENT UNBLOCK … ERROR by an operator raises Unavailable in the wait."""
    async with connect(url) as connector:
        parking = connector.parking()
        wait = asyncio.ensure_future(parking.blpop([WAKE], 10_000))
        await _parked(raw)
        assert await connector.call("CLIENT", "UNBLOCK", parking._client_id, "ERROR") == 1
        with pytest.raises(Unavailable, match="UNBLOCKED"):
            await wait


async def test_misuse_is_named(url: str, raw: redis.asyncio.Redis) -> None:
    """No timeout (0 would wait for ever), no keys, two waits at once, a margin of nothing, use after closing."""
    async with connect(url) as connector:
        parking = connector.parking()
        with pytest.raises(InvalidArgument, match="timeout_ms: 0, expected more than 0"):
            await parking.blpop([WAKE], 0)
        with pytest.raises(InvalidArgument, match="keys: none, expected at least one"):
            await parking.blpop([], 1)
        with pytest.raises(InvalidArgument, match="margin_ms: 0, expected 1 or more"):
            connector.parking(margin_ms=0)
        wait = asyncio.ensure_future(parking.blpop([WAKE], 10_000))
        await _parked(raw)
        with pytest.raises(EchoMQError, match="a wait on these keys is in progress, expected one at a time"):
            await parking.blpop([WAKE], 1)
        await _cancelled(wait)
        await parking.aclose()
        with pytest.raises(EchoMQError, match="parking: it is closed"):
            await parking.blpop([WAKE], 1)
        assert isinstance(parking, Parking)
        assert parking.closed


async def test_the_connector_closes_its_parkings(url: str, raw: redis.asyncio.Redis) -> None:
    """Leaving the connector's block closes every parking that it made, parked or not."""
    async with connect(url) as connector:
        parkings = [connector.parking() for _ in range(3)]
        waits = [asyncio.ensure_future(parking.blpop([WAKE], 60_000)) for parking in parkings]
        await _parked(raw, 3)
        for wait in waits[:2]:
            wait.cancel()
    outcomes = await asyncio.gather(*waits, return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes[:2]] == ["CancelledError"] * 2
    assert outcomes[2] is None or isinstance(outcomes[2], ConnectionLost)
    await _parked(raw, 0)
    assert not any(parking.connected for parking in parkings)
