"""Slots that change hands: what a connector does with MOVED, ASK and TRYAGAIN, with every kind of command and wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from echomq_worker.cluster import ClusterConnector
from echomq_worker.connector import connect
from echomq_worker.errors import CommandTimeout, Unavailable
from echomq_worker.keyspace import FENCE_KEY, Keys, slot
from echomq_worker.scan import keys_like
from echomq_worker.script import evaluate
from tests.support.cluster import ValkeyCluster, valkey_cluster
from tests.support.own import Own
from tests.support.plain import GROUP, job
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until

QUEUE = "jobs"
KEYS = Keys(QUEUE)
SLOT = slot(KEYS.pending)


@pytest.fixture(scope="module")
def three() -> Iterator[ValkeyCluster]:
    """Three primaries without replicas."""
    with valkey_cluster(replicas=0) as made:
        yield made


@pytest.fixture
def cluster(three: ValkeyCluster) -> ValkeyCluster:
    """Emptied; its slots may be anywhere."""
    three.clear()
    return three


@pytest.fixture
async def connector(cluster: ValkeyCluster) -> AsyncIterator[ClusterConnector]:
    """Connected, and with a map of how the slots are now."""
    async with connect(cluster.url) as made:
        assert isinstance(made, ClusterConnector)
        await made.call("EXISTS", KEYS.paused)
        yield made


def _admin(server: ValkeyServer) -> Any:
    return server.admin


async def _move(cluster: ValkeyCluster, number: int = SLOT) -> None:
    """To another primary, at once."""
    to = cluster.other_than(cluster.owner_of(number))
    await asyncio.to_thread(cluster.migrate_at_once, number, to)


class Half:
    """A slot on its way: `send` takes keys along, `end` the rest."""

    def __init__(self, cluster: ValkeyCluster) -> None:
        self.source = cluster.owner(QUEUE)
        self.target = cluster.other_than(self.source)
        self._steps = cluster.migrate_by_key(SLOT, self.target)
        next(self._steps)

    def send(self, *keys: str) -> None:
        """Take these keys along."""
        _admin(self.source).execute_command("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5_000, "KEYS", *keys)

    def sizes(self) -> list[int]:
        """How many keys of the slot are at the old node, and at the new one."""
        return [
            _admin(server).execute_command("CLUSTER COUNTKEYSINSLOT", SLOT) for server in (self.source, self.target)
        ]

    def end(self) -> None:
        """Take the rest along, and hand the slot over."""
        for _ in self._steps:
            pass


async def test_moved_is_followed_once_and_nothing_runs_twice(
    cluster: ValkeyCluster, connector: ClusterConnector
) -> None:
    """A call, a pipeline and a transaction, each with a map that is not right any more."""
    for number in range(1, 4):
        await _move(cluster)
        if number == 1:
            assert await connector.call("LPUSH", KEYS.ready, "x") == 1
        elif number == 2:
            assert await connector.pipeline([("LPUSH", KEYS.ready, "x"), ("LLEN", KEYS.ready)]) == [2, 2]
        else:
            done = await connector.pipeline([("MULTI",), ("LPUSH", KEYS.ready, "x"), ("EXEC",)])
            assert done == [b"OK", b"QUEUED", [3]]
    assert _admin(cluster.owner(QUEUE)).llen(KEYS.ready) == 3


async def test_a_script_waits_for_a_slot_that_is_half_moved(
    cluster: ValkeyCluster, connector: ClusterConnector
) -> None:
    """With the sets at the new node and the rows at the old one no verb writes or says anything: a verdict there would
    find its row gone, forget the job, and the row would follow into no set.
    """
    own = Own(connector, QUEUE)
    for number in (1, 2, 3, 4):
        await evaluate(connector, "enqueue", (KEYS.job(job(number)), KEYS.pending), (job(number), b"x"))
    (taken,) = (await own.claim_many(1)).jobs
    await connector.call("ZREM", KEYS.pending, job(2), job(3))
    await connector.call("ZADD", KEYS.schedule, 1 << 50, job(2))
    await connector.call("ZADD", KEYS.dead, 0, job(3))
    sets = (KEYS.active, KEYS.pending, KEYS.schedule, KEYS.dead)
    half = Half(cluster)
    half.send(*sets)
    before = half.sizes()
    verdict = ("r", taken.id, taken.held, "", 0, 3, "why")

    for name, keys, args in (
        ("settle", sets, (KEYS.base, *verdict)),
        ("keep", (KEYS.active,), (KEYS.base, 30_000, taken.id, taken.held)),
        ("reap", (KEYS.active, KEYS.pending), (KEYS.base,)),
        ("enqueue", (KEYS.job(job(9)), KEYS.pending), (job(9), b"x")),
        ("update_data", (KEYS.job(job(9)),), (b"y",)),
    ):
        with pytest.raises(Unavailable):
            await evaluate(connector, name, keys, args)
    assert half.sizes() == before
    half.end()

    assert await connector.call("ZRANGE", KEYS.active, 0, -1) == [taken.id.encode()]
    assert await evaluate(connector, "settle", sets, (KEYS.base, *verdict)) == [b"scheduled"]
    assert await connector.call("HGET", KEYS.job(taken.id), "state") == b"scheduled"


async def test_single_keys_are_found_wherever_they_are(cluster: ValkeyCluster, connector: ClusterConnector) -> None:
    """Of a slot that is half moved one key at the old node, one at the new, one at neither; alone and in a pipeline."""
    await connector.pipeline([("SADD", KEYS.paused, "here"), ("HSET", KEYS.glimit, GROUP, 7)])
    half = Half(cluster)
    half.send(KEYS.glimit)

    assert await connector.call("HGET", KEYS.glimit, GROUP) == b"7"
    assert await connector.pipeline(
        [
            ("SMEMBERS", KEYS.paused),
            ("HGET", KEYS.glimit, GROUP),
            ("EXISTS", Keys("other").paused),
            ("HGET", KEYS.gactive, GROUP),
        ]
    ) == [[b"here"], b"7", 0, None]
    with pytest.raises(Unavailable):
        await connector.call("EXISTS", KEYS.paused, KEYS.glimit)
    with pytest.raises(Unavailable):
        [page async for page in keys_like(connector, f"{KEYS.base}*")]
    half.end()
    assert await connector.call("EXISTS", KEYS.paused, KEYS.glimit) == 2


async def test_a_scan_begins_anew_where_its_slot_has_moved(cluster: ValkeyCluster, connector: ClusterConnector) -> None:
    """What is there all the time is told, though the second page is of another node than the first."""
    names = {f"{KEYS.base}de:{number}" for number in range(3_000)}
    await connector.pipeline([("SET", name, 1, "PX", 60_000) for name in names])
    found: set[str] = set()
    pages = 0
    async for page in keys_like(connector, f"{KEYS.base}*"):
        found.update(key.decode() for key in page)
        pages += 1
        if pages == 1:
            await _move(cluster)

    assert found == names


async def test_a_parked_wait_goes_along_with_its_slot(cluster: ValkeyCluster, connector: ClusterConnector) -> None:
    """The node that loses the slot ends the wait; it goes on at the new owner, and the token there ends it."""
    parking = connector.parking()
    for _ in range(2):
        wait = asyncio.ensure_future(parking.blpop((KEYS.wake, KEYS.ready), 10_000))
        await _is_parked(cluster)
        await _move(cluster)
        await _is_parked(cluster)
        await connector.call("LPUSH", KEYS.ready, "1")
        assert await wait == KEYS.ready.encode()
    # Moved while nobody waits: the first wait finds out.
    await _move(cluster)
    await connector.call("LPUSH", KEYS.ready, "1")
    assert await parking.blpop((KEYS.wake, KEYS.ready), 10_000) == KEYS.ready.encode()


async def test_a_wait_that_is_left_gives_its_token_back_where_it_stands(
    cluster: ValkeyCluster, connector: ClusterConnector
) -> None:
    """A BLPOP that stands on whichever node is ended there, and a token that it took meanwhile is there again."""
    parking = connector.parking()
    assert await parking.blpop((KEYS.wake,), 1, stands_ms=60_000) is None
    await _is_parked(cluster)
    await parking.aclose()
    await wait_until(lambda: _blocked(cluster) == 0, "nobody is parked")
    parking = connector.parking()
    assert await parking.blpop((KEYS.wake,), 1, stands_ms=60_000) is None
    await connector.call("LPUSH", KEYS.wake, "1")
    await parking.aclose()
    assert await connector.call("LLEN", KEYS.wake) == 1


async def test_the_slot_of_the_fence_moves(cluster: ValkeyCluster, connector: ClusterConnector) -> None:
    """Connections made afterwards ask the new owner, though the map of who makes them is the old one."""
    for _ in range(2):
        await _move(cluster, slot(FENCE_KEY))
        for server in cluster.servers:
            _admin(server).execute_command("CLIENT KILL TYPE normal")
        await wait_until(lambda: _all_cut(connector), "the connections are gone")
        commands = [("EXISTS", Keys(queue).paused) for queue in ("pool", "jobs", "other")]
        assert await connector.pipeline(commands) == [0, 0, 0]
        assert _admin(cluster.owner_of(slot(FENCE_KEY))).get(FENCE_KEY) == b"echomq:3.0.0"


async def test_a_frozen_node_is_waited_for_no_longer_than_a_command(cluster: ValkeyCluster) -> None:
    """It answers nothing and closes nothing: the call that was sent is CommandTimeout, and the next is not sent."""
    frozen = cluster.owner(QUEUE)
    async with connect(cluster.url, connect_timeout_ms=2_000, command_timeout_ms=1_000) as connector:
        await connector.call("EXISTS", KEYS.paused)
        frozen.pause()
        try:
            with pytest.raises(CommandTimeout):
                await connector.call("EXISTS", KEYS.paused)
        finally:
            frozen.resume()
        await asyncio.to_thread(cluster.settle)
        assert await connector.call("EXISTS", KEYS.paused) == 0


def _all_cut(connector: ClusterConnector) -> bool:
    return not any(node.connected for node in connector._nodes)


def _blocked(cluster: ValkeyCluster) -> int:
    return sum(_admin(server).info("clients")["blocked_clients"] for server in cluster.servers)


async def _is_parked(cluster: ValkeyCluster) -> None:
    await wait_until(lambda: _blocked(cluster) == 1, "one connection is parked")
