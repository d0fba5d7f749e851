"""Several connectors behind the interface of one, for producers (the seeds' `:via`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any

from echomq_worker import bounds
from echomq_worker.bounds import checked
from echomq_worker.clock import Clock
from echomq_worker.connector import make_connector
from echomq_worker.twins import SCRIPTS, Spoken, least

_PENDING = attrgetter("pending")


class Pool:
    """`size` connectors; each call goes to the one with the fewest unanswered calls."""

    def __init__(
        self,
        url: str,
        *,
        size: int = 4,
        wire_version: str = "echomq:3.0.0",
        connect_timeout_ms: int = 5000,
        command_timeout_ms: int = 5000,
        clock: Clock | None = None,
        name: str = "echomq",
        wire: int | str = SCRIPTS,
    ) -> None:
        """Raise ConfigError for a size, URL, timeout or wire that cannot be used; nothing is connected yet."""
        checked("size of the pool", size, bounds.POOL_SIZE)
        self._connectors = [
            make_connector(
                url,
                wire_version=wire_version,
                connect_timeout_ms=connect_timeout_ms,
                command_timeout_ms=command_timeout_ms,
                clock=clock,
                name=name,
                wire=wire,
            )
            for _ in range(size)
        ]

    @property
    def url_safe(self) -> str:
        """The URL with its secrets masked."""
        return self._connectors[0].url_safe

    @property
    def pending(self) -> int:
        """Unanswered calls and pipelines of all connectors."""
        return sum(map(_PENDING, self._connectors))

    @property
    def spoken(self) -> Spoken:
        """What its connections speak; where they differ, as after a restart of the server, the least."""
        return least(connector.spoken for connector in self._connectors)

    @property
    def connected(self) -> bool:
        """Whether every connection stands, as far as is known."""
        return all(connector.connected for connector in self._connectors)

    async def open(self) -> None:
        """Connect all; raises what the first one that fails raises (see Connector.open)."""
        outcomes = await asyncio.gather(*(connector.open() for connector in self._connectors), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def call(self, *args: Any) -> Any:
        """Send one command over the least busy connection; see Connector.call."""
        return await min(self._connectors, key=_PENDING).call(*args)

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send a pipeline over the least busy connection; see Connector.pipeline."""
        return await min(self._connectors, key=_PENDING).pipeline(commands)

    async def aclose(self) -> None:
        """Close all connections; may be called again."""
        await asyncio.gather(*(connector.aclose() for connector in self._connectors))


@asynccontextmanager
async def connect_pool(
    url: str,
    *,
    size: int = 4,
    wire_version: str = "echomq:3.0.0",
    connect_timeout_ms: int = 5000,
    command_timeout_ms: int = 5000,
    clock: Clock | None = None,
    name: str = "echomq",
    wire: int | str = SCRIPTS,
) -> AsyncIterator[Pool]:
    """Open a Pool for the length of a block; arguments and errors as in `connect`, `size` connections."""
    pool = Pool(
        url,
        size=size,
        wire_version=wire_version,
        connect_timeout_ms=connect_timeout_ms,
        command_timeout_ms=command_timeout_ms,
        clock=clock,
        name=name,
        wire=wire,
    )
    try:
        await pool.open()
        yield pool
    finally:
        await pool.aclose()
