"""Answering: a worker's probe is asked while it runs: on a port of its own, or over a socket by its supervisor.

Source: issue "Made for the people who run it". It begins before the worker connects and ends when it has closed its
connections: a server that is away at the start, a long start of the application, and a drain are seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from echomq_worker.probes.channel import telling
from echomq_worker.probes.probe import Probe


@asynccontextmanager
async def answering(probe: Probe, *, http: str | None, reports: int | None) -> AsyncIterator[None]:
    """Answer while inside: to the supervisor where `reports` is its socket, else on `http`. Raises ConfigError."""
    async with AsyncExitStack() as stack:
        if reports is not None:
            await stack.enter_async_context(telling(probe, reports))
        elif http is not None:
            from echomq_worker.probes.http import serving

            await stack.enter_async_context(serving(http, probe))
        lag = asyncio.create_task(probe.meter.watch_lag(), name="lag")
        try:
            yield
        finally:
            probe.close()
            lag.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({lag})
