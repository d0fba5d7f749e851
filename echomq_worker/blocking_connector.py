"""The blocking connector that a URL asks for: one server's, that of sentinels, or that of a cluster.

Source: issue "Made for the people who run it", For handler authors (a synchronous producer), Topologies.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Self

from echomq_worker.address import Kind
from echomq_worker.blocking import BlockingServer
from echomq_worker.endpoint import Endpoint


class BlockingConnector(BlockingServer):
    """Commands for the threads of a process, over as many connections as threads call at the same time.

    Making one opens nothing: the first call connects, in its own process and thread. A connection that
    the server has closed meanwhile is replaced before anything is sent; nothing is ever sent twice, but for what a node
    of a cluster has refused and sent on.
    """

    def __new__(cls, url: str | Endpoint, **_options: Any) -> Self:
        """That of a cluster where the URL is one's. Raises ConfigError for a URL that cannot be used."""
        endpoint = url if isinstance(url, Endpoint) else Endpoint.parse(url)
        kind: Any = cls
        made: Self = object.__new__(_of_cluster(kind) if endpoint.address.kind is Kind.CLUSTER else kind)
        return made


@cache
def _of_cluster(kind: Any) -> Any:
    # Most have one server.
    from echomq_worker.blocking_cluster import BlockingCluster

    return type(kind.__name__, (BlockingCluster, kind), {})
