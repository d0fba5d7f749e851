"""The dump of the keyspace and the key table that guards it."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from tests.support.keyspace import KeyFact, complaints, expiring_of, is_passing, key_facts, keyspace_of
from tests.support.valkey import ValkeyServer

ID = "JOB0KHTOWnGLuC"


@pytest.mark.leaves_keys("plants one key of every type, also of other owners")
async def test_keyspace_of_holds_every_type(raw: Redis) -> None:
    """Strings, hashes, lists, sets and sorted sets come back as plain values, binary ones included."""
    await raw.set("text", b"\xff")
    await raw.hset("hash", mapping={"a": "1"})
    await raw.rpush("list", "x", "y")
    await raw.sadd("set", "m")
    await raw.zadd("zset", {"m": 1.5})
    await raw.xadd("stream", {"a": "1"})
    assert await keyspace_of(raw) == {
        "text": "\udcff",
        "hash": {"a": "1"},
        "list": ["x", "y"],
        "set": {"m"},
        "zset": {"m": 1.5},
    }


async def test_expiring_of_holds_what_is_left(raw: Redis) -> None:
    """Only keys with a time to live are in it, with their milliseconds."""
    await raw.set("emq:{q}:limiter", "1", px=60_000)
    await raw.set("emq:{q}:de:k", ID)
    left = await expiring_of(raw)
    assert list(left) == ["emq:{q}:limiter"]
    assert 0 < left["emq:{q}:limiter"] <= 60_000


async def test_key_facts_are_what_the_server_says(raw: Redis, server: ValkeyServer) -> None:
    """Name, type and time to live of each key, in order of the names."""
    await raw.zadd("emq:{q}:pending", {ID: 0})
    await raw.lpush("emq:{q}:wake", "1")
    assert key_facts(server.admin) == [
        KeyFact("emq:{q}:pending", "zset", -1),
        KeyFact("emq:{q}:wake", "list", -1),
    ]


@pytest.mark.parametrize(
    ("name", "kind", "ttl_ms"),
    [
        ("{emq}:version", "string", -1),
        (f"emq:{{q}}:job:{ID}", "hash", -1),
        (f"emq:{{a.b_c-9}}:job:{ID}:logs", "list", -1),
        (f"emq:{{q}}:job:{ID}:lock", "string", 5),
        (f"emq:{{q}}:job:{ID}:unsuccessful", "hash", -1),
        (f"emq:{{q}}:g:{ID}:pending", "zset", -1),
        ("emq:{q}:ready", "list", 5),
        ("emq:{q}:wake", "list", -1),
        ("emq:{q}:claimed:host-1-abc", "string", 5),
        ("emq:{q}:metrics:failed", "hash", -1),
        ("emq:{q}:de:any thing: at\nall", "string", -1),
        ("emq:{q}:repeat:nightly", "hash", -1),
        ("emq:{q}:flow:outbox", "list", -1),
    ],
)
def test_keys_of_the_protocol_are_accepted(name: str, kind: str, ttl_ms: int) -> None:
    """Every key of the table, with its type, is nobody's mistake."""
    assert complaints([KeyFact(name, kind, ttl_ms)]) == []


@pytest.mark.parametrize(
    ("name", "kind", "ttl_ms", "complaint"),
    [
        ("stray", "string", -1, "not in the protocol's key table"),
        ("emq:{emq}:pending", "zset", -1, "not in the protocol's key table"),
        ("emq:{q}:job:short", "hash", -1, "not in the protocol's key table"),
        ("emq:{q}:pendings", "zset", -1, "not in the protocol's key table"),
        ("emq:{q}:g:eu:pending", "zset", -1, "not in the protocol's key table"),
        ("emq:{q}:pending", "list", -1, "a list, expected a zset"),
        ("{emq}:version", "hash", -1, "a hash, expected a string"),
        ("emq:{q}:ready", "list", -1, "no time to live, expected one"),
        ("emq:{q}:claimed:c", "string", -1, "no time to live, expected one"),
        (f"emq:{{q}}:job:{ID}:lock", "string", -1, "no time to live, expected one"),
    ],
)
def test_other_keys_are_named(name: str, kind: str, ttl_ms: int, complaint: str) -> None:
    """A stray key, a wrong type and a missing time to live are each told by name."""
    assert complaints([KeyFact(name, kind, ttl_ms)]) == [f"{name}: {complaint}"]


@pytest.mark.parametrize(
    ("name", "passing"),
    [
        *((f"emq:{{q}}:{name}", True) for name in ("ready", "wake", "kept", "limiter", "claimed:h", f"job:{ID}:lock")),
        *((f"emq:{{q}}:{name}", False) for name in ("pending", "meta", f"job:{ID}", "metrics:failed", "stray")),
        ("{emq}:version", False),
        ("kept", False),
    ],
)
def test_what_goes_by_itself(name: str, passing: bool) -> None:
    """By the table: what has a time to live, and tokens; nothing of a job that is still there, and nothing stray."""
    assert is_passing(name) is passing
