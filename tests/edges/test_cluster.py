"""The connector of a cluster, on three primaries: where commands go, what is told of a wrong URL, and the fence."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from echomq_worker.address import Host
from echomq_worker.cli import main
from echomq_worker.cluster import ClusterConnector
from echomq_worker.conformance import Target, run, scenarios
from echomq_worker.connector import Connector, connect
from echomq_worker.errors import (
    AuthenticationFailed,
    ConfigError,
    FenceRefused,
    InvalidArgument,
    ServerError,
    Unavailable,
    Unreachable,
)
from echomq_worker.events import Events
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.keyspace import FENCE_KEY, Keys, slot
from echomq_worker.metrics import Metrics
from echomq_worker.pool import connect_pool
from echomq_worker.scan import keys_like
from echomq_worker.script import scripts
from echomq_worker.worker import Worker
from tests.support import guards
from tests.support.cluster import ValkeyCluster, valkey_cluster
from tests.support.running import running
from tests.support.tls import MISSING, Authority, as_arguments, redis_server, server_tls
from tests.support.valkey import OwnServer, ValkeyServer, free_port
from tests.support.waiting import wait_until

# One with each of three primaries that share the slots evenly.
QUEUES = ("pool", "jobs", "other")


@pytest.fixture(scope="module")
def three() -> Iterator[ValkeyCluster]:
    """Three primaries without replicas."""
    with valkey_cluster(replicas=0) as made:
        yield made


@pytest.fixture
def cluster(three: ValkeyCluster) -> Iterator[ValkeyCluster]:
    """Emptied, and afterwards without a connection that was not there before."""
    three.settle()
    three.clear()
    with ExitStack() as stack:
        for server in three.servers:
            stack.enter_context(guards.no_connections_left(server.admin))
        yield three


def _admin(server: ValkeyServer) -> Any:
    return server.admin


def _names(cluster: ValkeyCluster) -> list[str]:
    """The names of all connections to all nodes, but the tests' own."""
    rows = [row for server in cluster.servers for row in _admin(server).client_list()]
    return sorted(row["name"] for row in rows if row["name"] not in {"tests-admin", ""})


async def test_every_scenario(cluster: ValkeyCluster) -> None:
    """The protocol's scenarios, all of them, on a cluster.

    Report 47 (taskiq-python/taskiq-redis#130). Report 102 (Bogdanp/dramatiq#754).
    """
    found = [one async for one in run(Target(cluster.url), list(scenarios().values()))]

    assert {one.name: one.said for one in found if one.result != "ok"} == {}
    left = {key for server in cluster.servers for key in _admin(server).scan_iter()}
    assert left == {FENCE_KEY.encode()}


async def test_a_command_goes_to_the_owner_of_its_slot(cluster: ValkeyCluster) -> None:
    """One connection per primary that is in use, made when it is; what concerns all keys is asked of all."""
    async with connect(cluster.url) as connector:
        assert isinstance(connector, ClusterConnector)
        assert _names(cluster) == ["echomq"]
        for queue in QUEUES:
            await connector.call("SADD", Keys(queue).paused, queue)
            assert _admin(cluster.owner(queue)).smembers(Keys(queue).paused) == {queue.encode()}
        assert _names(cluster) == ["echomq"] * 3
        assert connector.connected
        assert connector.standing == {"commands": 3}
        assert connector.generation == 3
        assert await connector.call("DBSIZE") == 3 + 1
        assert await connector.call("PING") == b"PONG"
        assert len(await connector.nodes()) == 3
        source = scripts()["enqueue"].source
        sha = await connector.call("SCRIPT", "LOAD", source)
        assert [_admin(server).script_exists(sha) for server in cluster.servers] == [[True]] * 3
    assert not connector.connected


async def test_a_pipeline_is_split_and_put_together(cluster: ValkeyCluster) -> None:
    """Replies in the order of the commands, errors in place, whatever node each came from; a transaction on one."""
    async with connect(cluster.url) as connector:
        keys = [Keys(queue).paused for queue in QUEUES]
        replies = await connector.pipeline(
            [
                *(("SADD", key, number) for number, key in enumerate(keys)),
                ("DBSIZE",),
                ("GET", keys[1]),
                *(("SMEMBERS", key) for key in reversed(keys)),
            ]
        )
        assert replies[:3] == [1, 1, 1]
        assert replies[3] in range(1, 5)
        assert isinstance(replies[4], ServerError)
        assert replies[5:] == [[b"2"], [b"1"], [b"0"]]
        assert await connector.pipeline([]) == []
        done = await connector.pipeline([("MULTI",), ("SADD", keys[0], "x"), ("SCARD", keys[0]), ("EXEC",)])
        assert done == [b"OK", b"QUEUED", b"QUEUED", [1, 2]]
        with pytest.raises(InvalidArgument, match="MULTI"):
            await connector.pipeline([("MULTI",), ("SADD", keys[0], "x"), ("SADD", keys[1], "x"), ("EXEC",)])
        with pytest.raises(InvalidArgument, match="FLUSHALL"):
            await connector.call("FLUSHALL")
        with pytest.raises(ServerError, match="WRONGTYPE"):
            await connector.call("GET", keys[0])


async def test_one_node_that_is_away(cluster: ValkeyCluster) -> None:
    """Of a pipeline over several nodes the replies of the others stand; alone it raises; the others are served."""
    away = cluster.owner("other")
    async with connect(cluster.url, connect_timeout_ms=1_000, command_timeout_ms=1_000) as connector:
        commands = [("EXISTS", Keys(queue).paused) for queue in QUEUES]
        assert await connector.pipeline(commands) == [0, 0, 0]
        away.pause()
        try:
            first, second, lost = await connector.pipeline(commands)
            assert (first, second, type(lost).__name__) == (0, 0, "CommandTimeout")
            with pytest.raises(Unreachable):
                await connector.call(*commands[2])
            assert await connector.call(*commands[0]) == 0
        finally:
            away.resume()
        cluster.settle()
        assert await connector.pipeline(commands) == [0, 0, 0]


async def test_a_scan_goes_over_all_nodes_or_over_one(cluster: ValkeyCluster) -> None:
    """Every key of the pattern, from all primaries, each page of one; of one queue from the owner of its slot."""
    names = {f"emq:{{{queue}}}:de:{n}" for queue in QUEUES for n in range(700)}
    async with connect(cluster.url) as connector:
        await connector.pipeline([("SET", name, 1, "PX", 60_000) for name in names])

        everything = [key.decode() async for page in keys_like(connector, "emq:{*}:de:*") for key in page]
        mine = [key.decode() async for page in keys_like(connector, "emq:{jobs}:de:*") for key in page]

        assert sorted(everything) == sorted(names)
        assert sorted(mine) == sorted(name for name in names if "{jobs}" in name)
        assert await Metrics(connector).queues() == sorted(QUEUES)
        with pytest.raises(InvalidArgument, match="cursor"):
            await connector.call("SCAN", "17", "MATCH", "*")


async def test_what_is_published_on_one_node_is_heard_on_another(cluster: ValkeyCluster) -> None:
    """A worker's events of every queue reach one stream, also where the publisher is not connected to the channel's."""
    async with connect(cluster.url) as connector, Events(connector).subscribe(*QUEUES) as stream:
        for queue in QUEUES:
            id = (await Jobs(connector).enqueue(queue, b"x")).id
            await Jobs(connector).update_progress(queue, id, "half")
            assert (await anext(stream)).queue == queue
    async with (
        connect(cluster.url) as hearing,
        Events(hearing).subscribe("pool") as stream,
        # It is connected to the owner of the fence, not to that of the channel's slot.
        connect(cluster.url) as publishing,
    ):
        answer = publishing.publish(Keys("pool").events, ['{"event":"progress","job":"x"}'])
        assert answer is not None
        assert (await anext(stream)).job == "x"
        await answer


async def test_connections_are_what_the_formula_says(cluster: ValkeyCluster) -> None:
    """Commands and leases: one per primary in use; parking: one per queue; requests to cancel: one. And so again after
    all of them were cut.
    """
    worker, done = Worker(), asyncio.Event()

    async def work(job: Job) -> None:
        await done.wait()

    for queue in QUEUES:
        worker.handler(queue)(work)
    expected = sorted(
        [*(["echomq-worker", "echomq-worker:parking", "echomq-leases"] * len(QUEUES)), "echomq-worker:cancel", "echomq"]
    )
    async with connect(cluster.url) as connector, running(worker, cluster.url, lease_ms=400):
        for queue in QUEUES:
            await Jobs(connector).enqueue(queue, b"x")
        await wait_until(lambda: _names(cluster) == sorted([*expected, "echomq", "echomq"]), "all are connected")
        nodes = list(await connector.nodes())
        for server in cluster.servers:
            _admin(server).execute_command("CLIENT KILL TYPE normal")
            _admin(server).execute_command("CLIENT KILL TYPE pubsub")
        await wait_until(lambda: not any(node.connected for node in nodes), "the connections are gone")
        await connector.pipeline([("EXISTS", Keys(queue).paused) for queue in QUEUES])
        await wait_until(lambda: _names(cluster) == sorted([*expected, "echomq", "echomq"]), "all are connected again")
        done.set()


async def test_a_pool_and_the_commands(
    cluster: ValkeyCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pool of cluster connectors; enqueue, stats, audit, ping and check on the command line."""
    async with connect_pool(cluster.url, size=2) as pool:
        await asyncio.gather(*(Jobs(pool).enqueue(queue, b"x") for queue in QUEUES * 2))
    monkeypatch.setenv("ECHOMQ_URL", cluster.url)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def said(*arguments: str) -> str:
        code = main(arguments)
        printed = capsys.readouterr()
        assert (code, printed.err) == (0, ""), printed
        return printed.out

    for queue in QUEUES:
        await asyncio.to_thread(said, "enqueue", queue, "{}")
        assert "3" in await asyncio.to_thread(said, "queue", "stats", queue)
        await asyncio.to_thread(said, "queue", "audit", queue)
    assert (await asyncio.to_thread(said, "ping")).startswith("pong from redis+cluster://")
    last = cluster.owner("other")
    _admin(last).config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert await asyncio.to_thread(main, ["check", "tests.support.app:worker"]) == 0
        assert "maxmemory-policy is allkeys-lru" in capsys.readouterr().err
    finally:
        _admin(last).config_set("maxmemory-policy", "noeviction")


async def test_the_fence_is_asked_of_its_owner_for_every_node(cluster: ValkeyCluster) -> None:
    """Another version refuses every node; a connection that is made again asks again, on whichever node it is."""
    fence = cluster.owner_of(slot(FENCE_KEY))
    async with connect(cluster.url) as connector:
        assert _admin(fence).get(FENCE_KEY) == b"echomq:3.0.0"
        await connector.pipeline([("EXISTS", Keys(queue).paused) for queue in QUEUES])
        _admin(fence).set(FENCE_KEY, "echomq:9.9.9")
        with pytest.raises(FenceRefused, match=r"echomq:9\.9\.9"):
            await ClusterConnector(cluster.url).open()
        assert await connector.call("EXISTS", Keys("other").paused) == 0
        other = cluster.owner("other")
        assert other is not fence
        _admin(other).execute_command("CLIENT KILL TYPE normal")
        await wait_until(lambda: not connector.connected, "the connection is gone")
        with pytest.raises(FenceRefused):
            await connector.call("EXISTS", Keys("other").paused)
        _admin(fence).delete(FENCE_KEY)
        assert await connector.call("EXISTS", Keys("other").paused) == 0
        assert _admin(fence).get(FENCE_KEY) == b"echomq:3.0.0"


@pytest.mark.parametrize(
    ("url", "said", "code"),
    [
        ("redis+cluster://127.0.0.1:{plain}", "this is not a node of a cluster, expected a URL of redis:// for it", 2),
        ("redis://127.0.0.1:{node}", "this is a node of a cluster, expected a URL of redis+cluster:// for it", 2),
        ("redis://127.0.0.1:{node}/1", "this is a node of a cluster, expected a URL of redis+cluster:// for it", 2),
        ("redis+cluster://127.0.0.1:{node}/1", "database 1, a cluster has database 0 only", 2),
        ("redis+cluster://127.0.0.1:{nobody}", "Connect call failed", 3),
        ("redis+cluster://127.0.0.1:{nobody},127.0.0.1:{nobody2}", "nor any of 1 others", 3),
        ("redis+cluster://127.0.0.1:{node},", "no host", 2),
        ("redis+cluster://ada:secret@127.0.0.1:{node}", "refused the credentials", 3),
    ],
)
def test_a_wrong_url_is_one_line(
    cluster: ValkeyCluster,
    server: ValkeyServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    said: str,
    code: int,
) -> None:
    """What, where, what was expected; no secret in it; and the exit code of its kind, whichever node it names."""
    for node in cluster.servers if code == 2 and "{node}" in url else cluster.servers[:1]:
        ports = {"plain": server.port, "node": node.port, "nobody": free_port(), "nobody2": free_port()}
        monkeypatch.setenv("ECHOMQ_URL", url.format(**ports))
        assert main(["queue", "stats", "jobs"]) == code
        told = capsys.readouterr().err
        assert said in told
        assert told.count("\n") == 1
        assert "secret" not in told


async def test_one_living_seed_is_enough(cluster: ValkeyCluster) -> None:
    """Those that do not answer are passed over; and what no connector for one server can do is said."""
    nobody = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    async with connect(f"redis+cluster://{nobody},127.0.0.1:{cluster.servers[0].port}") as connector:
        assert await connector.call("EXISTS", Keys("other").paused) == 0
    with pytest.raises(ConfigError, match="ClusterConnector"):
        Connector(cluster.url)


async def test_a_cluster_without_slots_is_unavailable(own_server: OwnServer) -> None:
    """A node that has joined nobody: the loops wait for it, as for one that is loading."""
    server = own_server(args=["--cluster-enabled", "yes", "--cluster-port", str(free_port())])
    with pytest.raises(Unavailable, match="CLUSTERDOWN"):
        await ClusterConnector(f"redis+cluster://127.0.0.1:{server.port}").open()


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
async def test_tls_and_a_login(own_server: OwnServer, tmp_path: Path) -> None:
    """`rediss+cluster://` with a user: the nodes that it names are reached over TLS with the same login."""
    authority = Authority(tmp_path)
    port = free_port()
    settings = server_tls(authority, authority.sign("server")) | {"tls-port": str(port), "tls-cluster": "yes"}
    cluster = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    user = ["--user", "work", "on", ">p@ss", "~*", "&*", "+@all"]
    node = own_server(binary=redis_server(), args=[*as_arguments(settings | cluster), *user])
    _admin(node).execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)
    url = f"rediss+cluster://work:p%40ss@127.0.0.1:{port}?ssl_ca_certs={authority.certificate}"

    async def served() -> bool:
        try:
            async with connect(url) as connector:
                return bool(await connector.call("SADD", Keys("jobs").paused, "a") in {0, 1})
        except Unavailable:
            return False

    await wait_until(served, "the node serves its slots")
    with pytest.raises(AuthenticationFailed):
        await ClusterConnector(url.replace("p%40ss", "wrong")).open()


def test_addresses_of_the_url() -> None:
    """What a URL of several hosts names; IPv6 in brackets."""
    connector = ClusterConnector("redis+cluster://ada:secret@[::1]:7000,valkey-2")
    assert connector.url_safe == "redis+cluster://ada:***@[::1]:7000,valkey-2"
    assert connector._endpoint.address.hosts == (Host("::1", 7000), Host("valkey-2", 6379))
