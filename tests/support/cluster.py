"""A real cluster for tests: three primaries and three replicas, failed over, and its slots migrated in both ways.

Source: issue "The five promises", Topologies. The servers are those of `tests.support.valkey` in cluster mode.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import redis

from echomq_worker.keyspace import SLOTS, Keys, slot
from tests.support.valkey import ValkeyServer, free_port
from tests.support.waiting import wait_until_sync

# A node that is silent for so long has failed: not one that a shared machine holds up. Without replicas nobody is there
# to take its place, and the others would only answer CLUSTERDOWN.
NODE_TIMEOUT_MS = 2_000
_ALONE_TIMEOUT_MS = 20_000
_MEETING_S = 60.0
_PAGE = 100


class ValkeyCluster:
    """Servers of one cluster; every method blocks until what it says is true.

    The first half of `servers` begins as primaries, the other half as the replica of each.
    """

    def __init__(self, *, primaries: int = 3, replicas: int = 3, args: Sequence[str] = ()) -> None:
        self._primaries = primaries
        timeout_ms = NODE_TIMEOUT_MS if replicas else _ALONE_TIMEOUT_MS
        self.servers = [_server(timeout_ms, args) for _ in range(primaries + replicas)]

    def start(self) -> ValkeyCluster:
        """Start all, let them meet, and wait until every node says that the cluster is ok."""
        with ThreadPoolExecutor(len(self.servers)) as pool:
            list(pool.map(ValkeyServer.start, self.servers))
        bounds = [SLOTS * n // self._primaries for n in range(self._primaries + 1)]
        first = self.servers[0]
        for number, (server, (low, high)) in enumerate(zip(self.servers, itertools.pairwise(bounds), strict=False), 1):
            _ask(server, "CLUSTER SET-CONFIG-EPOCH", number)
            _ask(server, "CLUSTER ADDSLOTSRANGE", low, high - 1)
        for server in self.servers[1:]:
            _ask(server, "CLUSTER MEET", "127.0.0.1", first.port, _bus_port(first))
        self._wait(lambda: all(len(_nodes(one)) == len(self.servers) for one in self.servers), "every node knows all")
        for primary, replica in zip(self.servers, self.servers[self._primaries :], strict=False):
            _ask(replica, "CLUSTER REPLICATE", _id(primary))
        self.settle()
        return self

    @property
    def url(self) -> str:
        """`redis+cluster://…` with the addresses of all servers."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def settle(self) -> None:
        """Wait until every living node says that the cluster is ok, and every replica follows its primary."""
        self._wait(lambda: all(map(_is_settled, self.living)), "the cluster is ok for all of its nodes")

    @property
    def living(self) -> list[ValkeyServer]:
        """The servers that run."""
        return [server for server in self.servers if server.alive]

    @property
    def primaries(self) -> list[ValkeyServer]:
        """The servers that own slots, as a majority of one another sees it."""
        return [server for server in self.living if _owns(server)]

    def owner(self, queue: str) -> ValkeyServer:
        """The server that owns a queue's slot now."""
        return self.owner_of(slot(Keys(queue).pending))

    def owner_of(self, number: int) -> ValkeyServer:
        """The server that owns a slot now, as it says itself."""
        return _first((one for one in self.living if _has(one, number)), f"owner of slot {number}")

    def replica_of(self, primary: ValkeyServer) -> ValkeyServer:
        """A living replica of a primary."""
        id = _id(primary)
        return _first((one for one in self.living if _myself(one)["master_id"] == id), f"replica of {primary.port}")

    def other_than(self, server: ValkeyServer) -> ValkeyServer:
        """Another primary."""
        return _first((one for one in self.primaries if one is not server), "other primary")

    def kill_primary(self, server: ValkeyServer) -> ValkeyServer:
        """SIGKILL a primary; answers its replica at once, which takes over about two node timeouts later."""
        replica = self.replica_of(server)
        server.kill()
        return replica

    def revive(self, server: ValkeyServer) -> None:
        """Start a server again that was killed, and wait until it has its place."""
        server.start()
        self.settle()

    def wait_primary(self, server: ValkeyServer) -> None:
        """Wait until `server` owns slots and every living node knows it."""
        number = wait_until_sync(lambda: _owns(server), "the replica has taken over", _MEETING_S)[0][0]
        address = ("127.0.0.1", server.port)
        self._wait(lambda: all(_owner_seen_by(one, number) == address for one in self.living), "all know the primary")

    def failover(self, primary: ValkeyServer) -> ValkeyServer:
        """`CLUSTER FAILOVER` on the replica of a primary; answers the new primary when all know it."""
        replica = self.replica_of(primary)
        _ask(replica, "CLUSTER FAILOVER")
        self.wait_primary(replica)
        self.settle()
        return replica

    def migrate_by_key(self, number: int, to: ValkeyServer, *, page: int = _PAGE) -> Iterator[int]:
        """Migrate a slot key by key; yields how many keys have moved, after each `page` of them, and before any.

        The slot has changed hands when the iterator is exhausted.
        """
        source = self.owner_of(number)
        _ask(to, "CLUSTER SETSLOT", number, "IMPORTING", _id(source))
        _ask(source, "CLUSTER SETSLOT", number, "MIGRATING", _id(to))
        moved = 0
        yield moved
        while keys := _ask(source, "CLUSTER GETKEYSINSLOT", number, page):
            _ask(source, "MIGRATE", "127.0.0.1", to.port, "", 0, 5_000, "KEYS", *keys)
            moved += len(keys)
            yield moved
        # The new owner first, so that there is one at any moment.
        for server in (to, source, *self.primaries):
            _ask(server, "CLUSTER SETSLOT", number, "NODE", _id(to))

    def migrate_at_once(self, number: int, to: ValkeyServer) -> None:
        """Migrate a slot atomically (Valkey 9)."""
        source = self.owner_of(number)
        _ask(source, "CLUSTER MIGRATESLOTS", "SLOTSRANGE", number, number, "NODE", _id(to))
        self._wait(lambda: _has(to, number) and not _has(source, number), "the slot has changed hands")

    def clear(self) -> None:
        """Delete every key."""
        for server in self.primaries:
            server.admin.flushall()

    def close(self) -> None:
        """Kill all and remove their directories."""
        for server in self.servers:
            server.close()

    @staticmethod
    def _wait(condition: Callable[[], bool], sentence: str) -> None:
        def met() -> bool:
            try:
                return condition()
            except (redis.RedisError, LookupError):
                return False

        wait_until_sync(met, sentence, _MEETING_S)


@contextmanager
def valkey_cluster(**options: Any) -> Iterator[ValkeyCluster]:
    """A cluster for the length of a block; the arguments of ValkeyCluster."""
    cluster = ValkeyCluster(**options)
    try:
        yield cluster.start()
    finally:
        cluster.close()


def _server(timeout_ms: int, args: Sequence[str]) -> ValkeyServer:
    return ValkeyServer(
        args=(
            *("--cluster-enabled", "yes", "--cluster-port", str(free_port())),
            *("--cluster-node-timeout", str(timeout_ms), "--cluster-allow-replica-migration", "no"),
            *("--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0"),
            *args,
        )
    )


def _ask(server: ValkeyServer, *words: str | int) -> Any:
    """The reply to a command that the client library has no types for."""
    send: Any = server.admin.execute_command
    return send(*words)


def _first(found: Iterator[ValkeyServer], what: str) -> ValkeyServer:
    """LookupError where there is none: a StopIteration would be lost on its way out of a thread."""
    for one in found:
        return one
    raise LookupError(f"no {what} among the nodes that live")


def _bus_port(server: ValkeyServer) -> int:
    return int(server.admin.config_get("cluster-port")["cluster-port"] or 0)


def _id(server: ValkeyServer) -> str:
    return str(_ask(server, "CLUSTER MYID").decode())


def _nodes(server: ValkeyServer) -> list[dict[str, Any]]:
    """What a node knows of all: id, address, flags, whose replica, whether the link stands, slots."""
    told: Any = _ask(server, "CLUSTER NODES")
    return [{"address": address, **facts} for address, facts in told.items()]


def _myself(server: ValkeyServer) -> dict[str, Any]:
    return next(one for one in _nodes(server) if "myself" in one["flags"])


def _owns(server: ValkeyServer) -> list[tuple[int, int]]:
    mine = _myself(server)
    if "master" not in mine["flags"]:
        return []
    return [(int(part[0]), int(part[-1])) for part in mine["slots"]]


def _has(server: ValkeyServer, number: int) -> bool:
    return any(low <= number <= high for low, high in _owns(server))


def _owner_seen_by(server: ValkeyServer, number: int) -> tuple[str, int]:
    for low, high, primary, *_ in _ask(server, "CLUSTER SLOTS"):
        if low <= number <= high:
            return (primary[0].decode(), primary[1])
    raise LookupError(f"no owner of slot {number}")


def _is_settled(server: ValkeyServer) -> bool:
    state = _ask(server, "CLUSTER INFO")["cluster_state"]
    role: dict[str, Any] = server.admin.info("replication")
    return bool(state == "ok") and role.get("master_link_status", "up") == "up"
