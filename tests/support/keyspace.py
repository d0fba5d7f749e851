"""The whole keyspace as plain values, so that a test states it before and after; and the key table as a check.

Source: protocol section 1 (names, types, what expires); style anchor 15.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import redis
from redis.asyncio import Redis

Value = str | list[str] | set[str] | dict[str, str] | dict[str, float]

_BRANDED = r"[A-Z]{3}[0-9A-Za-z]{11}"
_JOB = rf"job:{_BRANDED}"

# Suffix behind emq:{q}: -> type; the last says whether it must have a time to live.
_TABLE: tuple[tuple[str, str, bool], ...] = (
    (_JOB, "hash", False),
    (rf"{_JOB}:logs", "list", False),
    (rf"{_JOB}:lock", "string", True),
    (rf"{_JOB}:dependencies", "string", False),
    (rf"{_JOB}:(processed|failed|unsuccessful)", "hash", False),
    (r"pending|active|schedule|dead|repeat|cron", "zset", False),
    (rf"g:{_BRANDED}:pending", "zset", False),
    (r"ring|wake", "list", False),
    (r"ready", "list", True),
    (r"claimed:[^:]+", "string", True),
    (r"paused", "set", False),
    (r"glimit|gactive|gweight|meta", "hash", False),
    (r"metrics:(completed|failed)", "hash", False),
    (r"de:.+", "string", False),
    (r"repeat:.+", "hash", False),
    (r"limiter|kept", "string", True),
    (r"flow:outbox(:malformed)?", "list", False),
)
_QUEUE_KEY = re.compile(r"emq:\{(?!emq\})[A-Za-z0-9._-]{1,128}\}:(?P<suffix>.+)", re.DOTALL)
_FENCE_KEY = "{emq}:version"


def text(value: bytes | str) -> str:
    """Bytes of the wire as text that can be compared and printed, whatever they hold."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class KeyFact:
    """One key of the server: its name, its type as TYPE says, its time to live in ms (-1: none)."""

    name: str
    type: str
    ttl_ms: int


def key_facts(client: redis.Redis) -> list[KeyFact]:
    """Every key of the server, in order of the names; two round trips for a hundred thousand of them as for one."""
    keys = sorted(client.keys())
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.type(key)
        pipeline.pttl(key)
    replies: list[Any] = pipeline.execute()
    facts = zip(keys, replies[::2], replies[1::2], strict=True)
    # -2: it has expired since it was listed.
    return [KeyFact(text(key), text(kind), ttl_ms) for key, kind, ttl_ms in facts if ttl_ms != -2]


def complaints(facts: Iterable[KeyFact]) -> list[str]:
    """One sentence for each key that is not in the protocol's table, has another type, or lacks its time to live."""
    found = []
    for fact in facts:
        if fact.name == _FENCE_KEY:
            expected = ("string", False)
        else:
            match = _QUEUE_KEY.fullmatch(fact.name)
            row = match and next((row for row in _TABLE if re.fullmatch(row[0], match["suffix"], re.DOTALL)), None)
            if not row:
                found.append(f"{fact.name}: not in the protocol's key table")
                continue
            expected = row[1:]
        if fact.type != expected[0]:
            found.append(f"{fact.name}: a {fact.type}, expected a {expected[0]}")
        elif expected[1] and fact.ttl_ms < 0:
            found.append(f"{fact.name}: no time to live, expected one")
    return found


def is_passing(name: str) -> bool:
    """Whether a key goes by itself, as a receipt, a lock and its mark do; or is a token, which who idles takes.

    How many of these a fleet leaves depends on how quick it was.
    """
    match = _QUEUE_KEY.fullmatch(name)
    suffix = match["suffix"] if match else ""
    return suffix == "wake" or any(passes and re.fullmatch(pattern, suffix, re.DOTALL) for pattern, _, passes in _TABLE)


async def _value_of(client: Redis, key: bytes, kind: str) -> Value | None:
    if kind == "string":
        content = await client.get(key)
        return None if content is None else text(content)
    if kind == "hash":
        return {text(field): text(value) for field, value in (await client.hgetall(key)).items()}
    if kind == "zset":
        pairs: Any = await client.zrange(key, 0, -1, withscores=True)
        return {text(member): score for member, score in pairs}
    if kind == "list":
        return [text(item) for item in await client.lrange(key, 0, -1)]
    if kind == "set":
        return {text(member) for member in await client.smembers(key)}
    return None


async def keyspace_of(raw: Redis) -> dict[str, Value]:
    """Every key of the server and its value: str, list, set, hash as dict, zset as {member: score}.

    Not a snapshot: nothing else may write meanwhile.
    """
    found: dict[str, Value] = {}
    for key in sorted([key async for key in raw.scan_iter(count=1000)]):
        value = await _value_of(raw, key, text(await raw.type(key)))
        # None and empty: it has expired since the scan.
        if value is not None and value not in ([], {}, set()):
            found[text(key)] = value
    return found


async def expiring_of(raw: Redis) -> dict[str, int]:
    """The keys that have a time to live, and how many milliseconds are left."""
    ttls = {text(key): int(await raw.pttl(key)) async for key in raw.scan_iter(count=1000)}
    return {name: ttl for name, ttl in sorted(ttls.items()) if ttl >= 0}
