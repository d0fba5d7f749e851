"""The copies of the primary, its replica and what its append-only file gives back: whether they hold the same keyspace.

Keys that expire (receipts, locks, tokens, windows) may be gone from one and still be in another; where both have such a
key its value is compared too.
"""

from __future__ import annotations

import time
from typing import Any

import redis

from tests.support.valkey import ValkeyServer

_CAUGHT_UP_S = 30.0
_LOOK_S = 0.05
_SHOWN = 5

Keyspace = dict[bytes, tuple[bytes, bool]]
"""The digest of a key's value, whatever the order in which it is stored, and whether it expires."""


def compare(primary: ValkeyServer, replica: ValkeyServer | None) -> tuple[list[str], int]:
    """A line for each copy that differs, and how many keys were compared. Kills the primary and starts it again.

    Nobody may write any more. Blocks.
    """
    before = keyspace(primary.admin)
    found = [] if replica is None else _differences("the replica", before, _caught_up(primary, replica))
    primary.kill()
    primary.start()
    return found + _differences("the append-only file", before, keyspace(primary.admin)), len(before)


def keyspace(client: redis.Redis) -> Keyspace:
    """Every key; in chunks, of a server that nobody writes to."""
    names = sorted(name.encode() if isinstance(name, str) else name for name in client.keys("*"))
    found: Keyspace = {}
    for at in range(0, len(names), 1_000):
        chunk = names[at : at + 1_000]
        pipeline: Any = client.pipeline(transaction=False)
        pipeline.execute_command("DEBUG", "DIGEST-VALUE", *chunk)
        for name in chunk:
            pipeline.pttl(name)
        digests, *ttls_ms = pipeline.execute()
        found |= {
            # -2: it has expired meanwhile.
            name: (digest, ttl_ms >= 0)
            for name, digest, ttl_ms in zip(chunk, digests, ttls_ms, strict=True)
            if ttl_ms != -2
        }
    return found


def _caught_up(primary: ValkeyServer, replica: ValkeyServer) -> Keyspace:
    until = time.monotonic() + _CAUGHT_UP_S
    while time.monotonic() < until:
        ours, theirs = primary.admin.info("replication"), replica.admin.info("replication")
        if theirs.get("master_link_status") == "up" and (
            ours["master_repl_offset"] <= theirs.get("slave_repl_offset", -1)
        ):
            return keyspace(replica.admin)
        time.sleep(_LOOK_S)
    raise RuntimeError(f"the replica did not catch up within {_CAUGHT_UP_S:.0f} s")


def _differences(where: str, before: Keyspace, after: Keyspace) -> list[str]:
    def lasts(name: bytes) -> bool:
        return not (before.get(name) or after[name])[1]

    wrong = [
        name
        for name in sorted(before.keys() | after.keys())
        if (name in before and name in after and before[name] != after[name])
        or ((name in before) != (name in after) and lasts(name))
    ]
    shown = ", ".join(name.decode("utf-8", "backslashreplace") for name in wrong[:_SHOWN])
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return [f"{where} differs from the primary in {len(wrong)} keys: {shown}{more}"] if wrong else []
