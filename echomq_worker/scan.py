"""Scan: every key of a pattern, and every member of a sorted set, in bounded steps.

Source: SCAN and ZSCAN. What is there from the beginning to the end is told at least once; what comes or goes meanwhile
may be told or not. A step is one command of about a thousand keys, so that others are served in between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from echomq_worker.connector import Wire

STEP = 1_000


async def keys_like(wire: Wire, pattern: str) -> AsyncIterator[list[bytes]]:
    """Pages of key names, empty where a step of the server found none. Raises what `Connector.call` raises."""
    cursor = b"0"
    while True:
        cursor, page = await wire.call("SCAN", cursor, "MATCH", pattern, "COUNT", STEP)
        yield page
        if cursor == b"0":
            return


async def members_of(wire: Wire, key: str | bytes) -> AsyncIterator[list[bytes]]:
    """Pages of a sorted set's members."""
    cursor = b"0"
    while True:
        cursor, flat = await wire.call("ZSCAN", key, cursor, "COUNT", STEP)
        yield flat[::2]
        if cursor == b"0":
            return
