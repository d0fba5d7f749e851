"""The connector that a URL asks for: one server's, or that of a cluster.

Source: issue "The five promises, kept under every fault, on every topology" (Topologies).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from echomq_worker.address import Kind
from echomq_worker.clock import Clock
from echomq_worker.endpoint import Endpoint
from echomq_worker.single import Connector, Wire
from echomq_worker.twins import SCRIPTS, Spoken

__all__ = ["Connector", "Spoken", "Wire", "connect", "make_connector"]


def make_connector(
    url: str,
    *,
    wire_version: str = "echomq:3.0.0",
    connect_timeout_ms: int = 5000,
    command_timeout_ms: int = 5000,
    clock: Clock | None = None,
    name: str = "echomq",
    wire: int | str = SCRIPTS,
) -> Connector:
    """A connector for the servers that `url` names, not connected yet.

    Raises ConfigError for a URL, timeout or wire that cannot be used.
    """
    endpoint = Endpoint.parse(url)
    return _kind(endpoint.address.kind)(
        endpoint,
        wire_version=wire_version,
        connect_timeout_ms=connect_timeout_ms,
        command_timeout_ms=command_timeout_ms,
        clock=clock,
        name=name,
        wire=wire,
    )


def _kind(kind: Kind) -> type[Connector]:
    if kind is not Kind.CLUSTER:
        return Connector
    # A worker's memory is counted, and most have one server.
    from echomq_worker.cluster import ClusterConnector

    return ClusterConnector


@asynccontextmanager
async def connect(
    url: str,
    *,
    wire_version: str = "echomq:3.0.0",
    connect_timeout_ms: int = 5000,
    command_timeout_ms: int = 5000,
    clock: Clock | None = None,
    name: str = "echomq",
    wire: int | str = SCRIPTS,
) -> AsyncIterator[Connector]:
    """Open a Connector for the length of a block.

    `url` has one of the schemes of docs/topologies.md; `wire_version` is what the fence `{emq}:version` must hold.
    `wire` is 4 (scripts), 6 (commands of the module `emq`) or auto (commands where the server has them).
    Raises ConfigError, Unreachable, AuthenticationFailed, FenceRefused or Unavailable before the block begins.
    """
    async with make_connector(
        url,
        wire_version=wire_version,
        connect_timeout_ms=connect_timeout_ms,
        command_timeout_ms=command_timeout_ms,
        clock=clock,
        name=name,
        wire=wire,
    ) as connector:
        yield connector
