"""What the server holds when everything has drained: where ids stand, and what should not be there any more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.chaos.evidence import Evidence
from bench.chaos.roles import QUEUES
from echomq_worker.audit import Audit
from echomq_worker.connector import Connector
from echomq_worker.keyspace import Keys
from echomq_worker.scan import keys_like, members_of

Places = dict[str, tuple[str, str]]

# What stays by definition: counters, limits, tokens, receipts and marks that expire, the dead with their rows.
_STAYS = re.compile(r"meta|limiter|metrics:(completed|failed)|glimit|gweight|dead|ready|wake|kept|claimed:.+|repeat")
_ROW = re.compile(r"job:([^:]+)(:.+)?")
_SETS = ("pending", "active", "schedule", "dead")


async def waiting(connector: Connector) -> int:
    """How many jobs are neither done nor dead, reports of flows that are not delivered included."""
    count = 0
    for queue in QUEUES:
        keys = Keys(queue)
        plain = [("ZCARD", keys.pending), ("ZCARD", keys.active), ("ZCARD", keys.schedule), ("LLEN", keys.outbox)]
        count += sum(int(number) for number in await connector.pipeline([*plain, ("LLEN", keys.ring)]))
        async for names in keys_like(connector, f"{keys.base}g:*:pending"):
            count += len(names)
    count += await _held_parents(connector)
    return count


Stands = dict[tuple[str, str], int]


async def counts(connector: Connector) -> Stands:
    """What the metrics say of the server, counted in its keys: by queue and name."""
    made: Stands = {}
    for queue in QUEUES:
        keys = Keys(queue)
        sets = {"pending": keys.pending, "active": keys.active, "scheduled": keys.schedule, "dead": keys.dead}
        totals = {"completed": keys.completed, "died": keys.failed}
        commands = [
            *(("ZCARD", key) for key in (*sets.values(), keys.repeat)),
            *(("HGET", key, "count") for key in totals.values()),
        ]
        names = (*sets, "repeats", *totals)
        replies = await connector.pipeline(commands)
        made |= {(queue, name): int(reply or 0) for name, reply in zip(names, replies, strict=True)}
        waiting = made[queue, "pending"]
        async for lanes in keys_like(connector, f"{keys.base}g:*:pending"):
            waiting += sum(await connector.pipeline([("ZCARD", lane) for lane in lanes])) if lanes else 0
        made[queue, "ready"] = waiting
        # When all has drained nobody holds a lease, nor has lost one.
        made[queue, "expired"] = await connector.call("ZCOUNT", keys.active, "-inf", "+inf")
    return made


async def look(connector: Connector) -> tuple[list[str], Places, dict[str, int]]:
    """What is left over, where every id stands, and how many completions the server has counted by queue."""
    left: list[str] = []
    places: Places = {}
    completed: dict[str, int] = {}
    for queue in QUEUES:
        keys = Keys(queue)
        await _places(connector, keys, places)
        left += [f"{queue}: {one.kind} {one.name} {one.detail}" for one in await Audit(connector).audit(queue)]
        left += await _strays(connector, keys, places)
        left += [
            f"{queue}: gactive of {group.decode()} is {count.decode()}"
            for group, count in _pairs(await connector.call("HGETALL", keys.gactive))
            if count != b"0"
        ]
        completed[queue] = int(await connector.call("HGET", f"{keys.base}metrics:completed", "count") or 0)
    return left, places, completed


def added(
    seen: Evidence, left: list[str], places: Places, completed: Mapping[str, int], stands: Mapping[tuple[str, str], int]
) -> Evidence:
    """The evidence with what was found on the server."""
    return replace(seen, leftovers=left, places=places, completed=completed, stands=stands)


async def _places(connector: Connector, keys: Keys, places: Places) -> None:
    for name in _SETS:
        async for members in members_of(connector, f"{keys.base}{name}"):
            rows = [("HGET", keys.job(id.decode()), "last_error") for id in members]
            errors = await connector.pipeline(rows)
            places |= {
                id.decode(): (name, (error or b"").decode("utf-8", "replace"))
                for id, error in zip(members, errors, strict=True)
            }
    async for lanes in keys_like(connector, f"{keys.base}g:*:pending"):
        for lane in lanes:
            async for members in members_of(connector, lane.decode()):
                places |= {id.decode(): ("lane", "") for id in members}


async def _strays(connector: Connector, keys: Keys, places: Places) -> list[str]:
    """Keys that should be gone: rows of nobody, lanes, the ring, the outbox, what hangs on rows."""
    strays: list[str] = []
    async for names in keys_like(connector, f"{keys.base}*"):
        for key in names:
            name = key.decode("utf-8", "replace")[len(keys.base) :]
            if row := _ROW.fullmatch(name):
                id = row[1]
                if id in places:
                    continue
                state = await connector.call("HGET", keys.job(id), "state")
                if state is not None:
                    places[id] = (state.decode(), "")
                    continue
            if not _STAYS.fullmatch(name) and name != "gactive":
                strays.append(f"{keys.queue}: the key {name}")
    return strays


async def _held_parents(connector: Connector) -> int:
    count = 0
    for queue in QUEUES:
        async for names in keys_like(connector, f"{Keys(queue).base}job:*"):
            rows = [("HGET", name, "state") for name in names if name.count(b":") == 3]
            count += sum(
                1 for state in (await connector.pipeline(rows) if rows else ()) if state == b"awaiting_children"
            )
    return count


def _pairs(flat: list[Any] | dict[Any, Any]) -> list[tuple[Any, Any]]:
    if isinstance(flat, dict):
        return list(flat.items())
    return list(zip(flat[::2], flat[1::2], strict=True))
