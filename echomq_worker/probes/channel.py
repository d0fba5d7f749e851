"""Channel: a worker process of several answers its supervisor, over a socket that it was started with.

Source: issue "Made for the people who run it" (with `--processes N` one port answers for all), user-needs 110; decision
0030. A line of JSON each way. The supervisor asks `{"n": 7, "what": "own"}`; the answer has the same number. At its end
a process tells its numbers once more, unasked and with the number 0.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio

from echomq_worker.probes.probe import Probe, Said

LINE_BYTES = 64 * 1024 * 1024
LAST = 0
_LAST_S = 1.0


@asynccontextmanager
async def telling(probe: Probe, number: int) -> AsyncIterator[None]:
    """Answer over the socket with this number while inside."""
    os.set_inheritable(number, False)
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=number), limit=LINE_BYTES)
    task = asyncio.create_task(_answer(probe, reader, writer), name="reports")
    try:
        yield
    finally:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task})
            # A supervisor that is gone, or that does not read, holds nobody up.
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_LAST_S):
                    await _send(writer, {"n": LAST, "rows": probe.own().rows})
            writer.close()


async def _answer(probe: Probe, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while line := await reader.readline():
            asked = json.loads(line)
            await _send(writer, {"n": asked["n"], **await said(probe, asked["what"])})


async def said(probe: Probe, what: str) -> dict[str, Any]:
    """The answer to one question: live, ready, own, shared."""
    if what == "own":
        return {"rows": probe.own().rows}
    if what == "shared":
        return {"rows": (await probe.shared()).rows}
    one: Said = await (probe.ready() if what == "ready" else probe.live())
    return {"ok": one.ok, "body": one.body}


async def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()
