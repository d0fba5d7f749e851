"""Many waits on one parking: one BLPOP for all, each woken by its own token, and none lost or kept from others."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import aclosing
from typing import Any

import pytest
import redis.asyncio

from echomq_worker.connector import Connector, connect
from echomq_worker.errors import ConnectionLost, Unavailable
from echomq_worker.parking import Parking
from echomq_worker.seats import Berth
from tests.support.proxy import Proxy
from tests.support.valkey import ValkeyServer
from tests.support.waiting import passes, wait_until

WAKE = "emq:{q}:wake"
READY = "emq:{q}:ready"


async def _cancelled(wait: asyncio.Future[bytes | None]) -> None:
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait


async def _pushed(connector: Connector, key: str = WAKE) -> None:
    await connector.call("LPUSH", key, "1")


async def _parked(raw: redis.asyncio.Redis) -> None:
    async def blocked() -> bool:
        return bool((await raw.info("clients"))["blocked_clients"] == 1)

    await wait_until(blocked, "one client is parked on the server")


async def _unblocks(raw: redis.asyncio.Redis) -> int:
    """How often the server was asked to end a wait."""
    return int((await raw.info("commandstats")).get("cmdstat_client|unblock", {}).get("calls", 0))


async def test_other_keys_join_the_wait_that_stands(url: str, raw: redis.asyncio.Redis) -> None:
    """A wait on other keys than the standing one's has it ended and made anew, and hears its token at once; a third one
    too. All of it on one connection.
    """
    async with connect(url) as connector:
        parking = connector.parking()
        first = asyncio.ensure_future(parking.blpop([WAKE], 60_000))
        await _parked(raw)
        others = [asyncio.ensure_future(parking.blpop([key], 60_000)) for key in (READY, "emq:{p}:ready")]
        await wait_until(lambda: len(parking._standing) == 3, "it stands for all of them")
        started = time.monotonic()
        await _pushed(connector, READY)
        assert await others[0] == READY.encode()
        await _pushed(connector, "emq:{p}:ready")
        assert await others[1] == b"emq:{p}:ready"
        assert time.monotonic() - started < 20
        assert not first.done()
        await _pushed(connector)
        assert await first == WAKE.encode()
        assert (await raw.info("clients"))["blocked_clients"] == 0


async def test_an_end_that_overtakes_its_wait_is_asked_for_again(
    server: ValkeyServer, url: str, raw: redis.asyncio.Redis
) -> None:
    """The server hears of the new keys before it has the BLPOP that is to be ended for them: there was nothing to end.
    It is ended once it stands, and its new keys are heard at once, not when the wait on the old ones is over.
    """
    async with Proxy(server.port) as proxy, connect(proxy.url) as far, connect(url) as home:

        async def dial(key: str | bytes, sent_on: Unavailable | None) -> Berth:
            return Berth((await far._berth(key, sent_on)).link, home)

        async with aclosing(Parking(dial)) as parking:
            first = asyncio.ensure_future(parking.blpop([WAKE], 60_000))
            await _parked(raw)
            await _pushed(home)
            assert await first == WAKE.encode()
            proxy.stall()
            first = asyncio.ensure_future(parking.blpop([WAKE], 60_000))
            await wait_until(lambda: len(parking._standing) == 1, "a BLPOP is on its way")
            asked = await _unblocks(raw)
            second = asyncio.ensure_future(parking.blpop([READY], 60_000))

            async def answered() -> bool:
                return await _unblocks(raw) > asked

            await wait_until(answered, "the server was asked to end what it does not have")
            proxy.flow()
            await wait_until(lambda: len(parking._standing) == 2, "it stands for both")
            await _pushed(home, READY)
            assert await second == READY.encode()
            assert await _unblocks(raw) - asked < 100, "it is not asked as fast as it answers"
            await _cancelled(first)


@pytest.mark.parametrize("refused", ["id", "unblock"])
async def test_other_keys_are_heard_where_no_wait_can_be_ended(server: ValkeyServer, url: str, refused: str) -> None:
    """A server that tells no id, or may not be asked to end a wait: a BLPOP without the keys of somebody who waited
    once is a short one, one with the keys of all is not.
    """
    admin: Any = server.admin
    admin.execute_command("ACL", "SETUSER", "blind", "on", ">p", "~*", "&*", "+@all", f"-client|{refused}")
    try:
        async with (
            Proxy(server.port) as proxy,
            connect(proxy.url.replace("//", "//blind:p@")) as connector,
            connect(url) as pushing,
        ):
            parking = connector.parking()
            # Of whom it does not know yet, or that UNBLOCK is refused, it hears at the end of the first wait.
            first = asyncio.ensure_future(parking.blpop([WAKE], 1_500))
            await wait_until(lambda: parking._answer is not None, "it is parked")
            second = asyncio.ensure_future(parking.blpop([READY], 60_000))
            await pushing.call("LPUSH", READY, "1")
            assert await second == READY.encode()
            await asyncio.wait({first})
            parking._seats[WAKE,].listed = parking._seats[READY,].listed = False
            assert parking._client_id is None
            waits = [asyncio.ensure_future(parking.blpop([WAKE], 60_000))]
            await wait_until(lambda: len(parking._standing) == 1, "it stands for one")
            started = time.monotonic()
            waits.append(asyncio.ensure_future(parking.blpop([READY], 60_000)))
            await wait_until(lambda: len(parking._standing) == 2, "it stands for both")
            assert time.monotonic() - started < 10
            await wait_until(lambda: admin.info("clients")["total_blocking_keys"] == 2, "the server has that BLPOP")
            calls = proxy.count(b"BLPOP")
            await passes(300, "a BLPOP that stands is not sent again")
            assert proxy.count(b"BLPOP") == calls
            for wait in waits:
                await _cancelled(wait)
    finally:
        admin.execute_command("ACL", "DELUSER", "blind")


async def test_who_is_handed_a_token_and_comes_back_costs_no_second_call(
    server: ValkeyServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two waits, and one of them takes 20 tokens: a BLPOP for each of them, none without it in between, and the other
    wait is in all of them.
    """
    # It is a millisecond otherwise, which a machine that is held up may miss.
    monkeypatch.setattr("echomq_worker.parking._BACK_S", 10)
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector, connect(url) as pushing:
        parking = connector.parking()
        other = asyncio.ensure_future(parking.blpop([READY], 60_000))
        await wait_until(lambda: parking._answer is not None, "it is parked")
        for _ in range(20):
            wait = asyncio.ensure_future(parking.blpop([WAKE], 60_000))
            await wait_until(lambda: len(parking._standing) == 2, "it stands for both")
            await _pushed(pushing)
            assert await wait == WAKE.encode()
        # The first took the place of one for the other alone; behind the last one nobody has come back yet.
        assert proxy.count(b"BLPOP") == 21
        await _cancelled(other)


async def test_a_token_that_nobody_waits_for_any_more_goes_back(url: str, raw: redis.asyncio.Redis) -> None:
    """Whoever has left for something else does not keep a token from others: it is in its list again within moments,
    though a wait on other keys stands all the time; and the next BLPOP leaves these keys out.
    """
    async with connect(url) as connector:
        parking = connector.parking()
        waits = [asyncio.ensure_future(parking.blpop([key], 60_000)) for key in (WAKE, READY)]
        await wait_until(lambda: len(parking._standing) == 2, "it stands for both")
        await _cancelled(waits[0])
        await _pushed(connector)
        await wait_until(lambda: raw.llen(WAKE), "the token is given back")
        await wait_until(lambda: len(parking._standing) == 1, "it stands for the other")
        await _pushed(connector)
        assert await connector.call("LLEN", WAKE) == 2
        assert await raw.pttl(WAKE) > 0, "it expires, as the scripts have it"
        assert await parking.blpop([WAKE], 5_000) == WAKE.encode()
        await _cancelled(waits[1])


async def test_one_that_is_never_short_of_tokens_does_not_starve_the_others(url: str) -> None:
    """Three lists full of tokens, taken in turn: whoever had one comes last."""
    keys = [f"emq:{{{name}}}:ready" for name in "abc"]
    async with connect(url) as connector:
        parking, taken = connector.parking(), list[bytes | None]()
        for key in keys:
            await connector.call("LPUSH", key, *["1"] * 20)

        async def take(key: str) -> None:
            for _ in range(20):
                taken.append(await parking.blpop([key], 10_000))

        await asyncio.gather(*map(take, keys))
        assert await connector.call("EXISTS", *keys) == 0
    assert all(len(set(taken[at : at + 3])) >= 2 for at in range(0, 60, 3))


@pytest.mark.parametrize("seed", range(2))
async def test_no_token_is_lost_among_many_waits(url: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes, eight queues, waits that end, are cancelled or begin at any moment: each token is taken once or is
    still in its list when both have left.
    """
    # A server may stand still for longer than the second that it has.
    monkeypatch.setattr("echomq_worker.parking._GIVING_BACK_S", 60)
    draw = random.Random(seed)
    keys = [f"emq:{{{name}}}:wake" for name in "abcdefgh"]
    pushed = taken = 0
    async with connect(url) as connector, connect(url) as one, connect(url) as other:

        async def wait(parking: Parking, key: str) -> None:
            nonlocal taken
            for _ in range(40):
                wait = asyncio.ensure_future(parking.blpop([key], draw.choice([1, 20, 1_000])))
                if draw.random() < 0.5:
                    await asyncio.wait({wait}, timeout=draw.choice([0, 0.001, 0.005]))
                    wait.cancel()
                (outcome,) = await asyncio.gather(wait, return_exceptions=True)
                taken += outcome == key.encode()

        async def push() -> None:
            nonlocal pushed
            while True:
                key = draw.choice(keys)
                # A list is cut at 64 tokens by whoever gives one back.
                if await connector.call("LLEN", key) < 50:
                    pushed += 1
                    await _pushed(connector, key)
                await passes(draw.choice([0, 0.5]), "tokens come at any moment")

        pushing = asyncio.ensure_future(push())
        parkings = [one.parking(), other.parking()]
        await asyncio.gather(*(wait(parking, key) for parking in parkings for key in keys))
        pushing.cancel()
        await asyncio.wait({pushing})
        for parking in parkings:
            await parking.aclose()
        left = sum(await connector.pipeline([("LLEN", key) for key in keys]))
    assert taken > 100
    # The last push may have been counted and not sent.
    assert taken + left in {pushed, pushed - 1}


async def test_what_ends_the_connection_is_told_to_everybody(
    server: ValkeyServer, url: str, raw: redis.asyncio.Redis
) -> None:
    """Every wait raises it, and one new connection serves all of them again."""
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        parking = connector.parking()
        keys = [WAKE, READY, "emq:{p}:ready"]
        waits = [asyncio.ensure_future(parking.blpop([key], 60_000)) for key in keys]
        await _parked(raw)
        proxy.reset()
        outcomes = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 3
        opened = proxy.opened
        waits = [asyncio.ensure_future(parking.blpop([key], 60_000)) for key in keys]
        await wait_until(lambda: len(parking._standing) == 3, "it stands for all of them")
        assert proxy.opened == opened + 1
        for key, wait in zip(keys, waits, strict=True):
            await raw.lpush(key, "1")
            assert await wait == key.encode()


async def test_in_a_crowd_nobody_is_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of several queues at once: the next BLPOP does not wait for whoever had the last one, and who comes back
    is in one that is made soon.
    """
    keys = [f"emq:{{{name}}}:wake" for name in "abcd"]
    async with connect(url) as connector:
        parking = connector.parking()
        waits = [asyncio.ensure_future(parking.blpop([key], 60_000)) for key in keys]
        await wait_until(lambda: len(parking._standing) == 4, "it stands for all")
        await _pushed(connector, keys[0])
        assert await waits[0] == keys[0].encode()
        await wait_until(lambda: len(parking._standing) == 3, "it stands for the others")
        # Whoever had a token would be waited for until the test is over.
        monkeypatch.setattr("echomq_worker.parking._CROWD_S", 60)
        monkeypatch.setattr("echomq_worker.parking._BACK_S", 60)
        for key, wait in zip(keys[1:3], waits[1:3], strict=True):
            await _pushed(connector, key)
            assert await asyncio.wait_for(wait, 20) == key.encode()
        monkeypatch.setattr("echomq_worker.parking._BACK_S", 0.01)
        again = asyncio.ensure_future(parking.blpop([keys[0]], 60_000))
        await wait_until(lambda: len(parking._standing) == 2, "it stands for who has come back and who has waited on")
        for key, wait in ((keys[0], again), (keys[3], waits[3])):
            await _pushed(connector, key)
            assert await asyncio.wait_for(wait, 20) == key.encode()


async def test_a_token_is_told_of_before_the_wait_is_over(url: str, raw: redis.asyncio.Redis) -> None:
    """A turn of the loop earlier; once for each token that ends a wait, never where none does."""
    told: list[bool] = []
    async with connect(url) as connector:
        parking = connector.parking()
        assert await parking.blpop([WAKE], 1, told=lambda: told.append(True)) is None
        wait = asyncio.ensure_future(parking.blpop([WAKE], 60_000, told=lambda: told.append(wait.done())))
        await _parked(raw)
        await _pushed(connector)
        assert await wait == WAKE.encode()
        assert told == [False]
        wait = asyncio.ensure_future(parking.blpop([WAKE], 60_000))
        await _parked(raw)
        await _pushed(connector)
        assert await wait == WAKE.encode()
    assert told == [False], "who does not ask to be told is not"
