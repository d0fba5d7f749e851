"""Scripts over a connector on a real server: EVALSHA first, the text only where the server does not know it."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.errors import (
    KindRefused,
    ServerError,
)
from echomq_worker.script import evaluate, evaluate_many, preload, scripts
from tests.support.proxy import Proxy
from tests.support.valkey import ValkeyServer

ID = "JOB0KHTOWnGLuC"
FOREIGN_ID = "USR0KHTOWnGLuC"
ROW = f"emq:{{q}}:job:{ID}"
PENDING = "emq:{q}:pending"


async def test_a_script_is_loaded_once_when_the_server_does_not_know_it(server: ValkeyServer, url: str) -> None:
    """EVALSHA first; after SCRIPT FLUSH one EVAL, then EVALSHA alone again; a refusal raises its class."""
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        await connector.call("SCRIPT", "FLUSH")
        assert await evaluate(connector, "enqueue", [ROW, PENDING], [ID, b"\x00"]) == 1
        assert await evaluate(connector, "enqueue", [ROW, PENDING], [ID, b"\x00"]) == 0
        assert (proxy.count(b"EVALSHA"), proxy.count(b"$4\r\nEVAL\r\n")) == (2, 1)
        with pytest.raises(KindRefused, match="EMQKIND job id must be JOB-namespaced"):
            await evaluate(connector, "enqueue", [ROW.replace(ID, FOREIGN_ID), PENDING], [FOREIGN_ID, ""])


async def test_a_script_that_fails_is_not_run_again(server: ValkeyServer, url: str) -> None:
    """An error in the script raises ServerError as it is: only NOSCRIPT says that it has not run."""
    keys = ["emq:{q}:schedule", PENDING]
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        await evaluate(connector, "promote", keys, ["emq:{q}:", 100])
        proxy.seen.clear()
        with pytest.raises(ServerError):
            await evaluate(connector, "promote", keys, ["emq:{q}:", "many"])
        replies = await evaluate_many(connector, [("promote", keys, ["emq:{q}:", "many"])])
        assert isinstance(replies[0], ServerError)
        assert (proxy.count(b"EVALSHA"), len(proxy.seen)) == (2, 2)


async def test_a_batch_of_scripts_repeats_only_what_the_server_did_not_know(server: ValkeyServer, url: str) -> None:
    """One round trip, replies in input order, refusals in place; NOSCRIPT ones alone go again, as text."""
    ids = [f"JOB0KHTOWnGLu{letter}" for letter in "CDEF"]
    calls: list[tuple[str, list[str | bytes], list[Any]]] = [
        ("enqueue", [f"emq:{{q}}:job:{id}", PENDING], [id, b"x"]) for id in (*ids, FOREIGN_ID, ids[0])
    ]
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        await connector.call("SCRIPT", "FLUSH")
        await evaluate(connector, "promote", ["emq:{q}:schedule", PENDING], ["emq:{q}:", 100])
        proxy.seen.clear()
        promote: tuple[str, list[str | bytes], list[Any]] = (
            "promote",
            ["emq:{q}:schedule", PENDING],
            ["emq:{q}:", 100],
        )
        first = await evaluate_many(connector, [promote, *calls])
        assert first[:5] == [0, 1, 1, 1, 1]
        assert isinstance(first[5], KindRefused)
        assert first[6] == 0
        assert (proxy.count(b"EVALSHA"), proxy.count(b"$4\r\nEVAL\r\n")) == (7, 6)
        proxy.seen.clear()
        assert (await evaluate_many(connector, calls))[:4] == [0, 0, 0, 0]
        assert proxy.count(b"$4\r\nEVAL\r\n") == 0
        assert await evaluate_many(connector, []) == []


async def test_plain_commands_beside_scripts_are_sent_once(server: ValkeyServer, url: str) -> None:
    """Their replies come first; where a script has to be sent again they are not."""
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        await connector.call("SCRIPT", "FLUSH")
        beside = [("SADD", "emq:{q}:paused", "a"), ("LLEN", PENDING)]
        for expected in ([1, 0], [0, 0]):
            proxy.seen.clear()
            keys: list[str | bytes] = ["emq:{q}:schedule", PENDING]
            replies = await evaluate_many(connector, [("promote", keys, ["emq:{q}:", 100])] * 2, beside=beside)
            assert replies == [*expected, 0, 0]
            assert proxy.count(b"SADD") == 1
            assert proxy.count(b"$4\r\nEVAL\r\n") == (2 if expected == [1, 0] else 0)


async def test_every_script_can_be_known_before_its_first_call(url: str, raw: Redis) -> None:
    """A preload is one round trip after which no call meets NOSCRIPT; an empty or forgetful server is no trouble."""
    await raw.script_flush()
    async with connect(url) as connector:
        assert await preload(connector) == len(scripts())
        known = await raw.script_exists(*(script.sha for script in scripts().values()))

    assert all(known)
