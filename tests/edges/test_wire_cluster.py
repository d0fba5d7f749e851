"""Commands in a cluster, and what a user of one queue can reach with them.

Source: issue "The native twins: a Valkey module, and wire 6" (Done when: Cluster).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from echomq_worker.acl import rules
from echomq_worker.address import Host
from echomq_worker.cluster import ClusterConnector
from echomq_worker.connector import connect
from echomq_worker.errors import EchoMQError
from echomq_worker.jobs import Jobs
from echomq_worker.keyspace import FENCE_KEY, Keys, slot
from echomq_worker.script import scripts
from echomq_worker.twins import TWINS
from tests.support.cluster import ValkeyCluster, valkey_cluster
from tests.support.native import load_options, module
from tests.support.plain import job
from tests.support.valkey import ValkeyServer

# One with each of three primaries that share the slots evenly.
QUEUES = ("pool", "jobs", "other")
ID = job(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    """Three primaries, of which the one that has the queue `other` is without the module."""
    with valkey_cluster(replicas=0, args=("--enable-module-command", "yes")) as made:
        for queue in QUEUES[:2]:
            _admin(made.owner(queue)).execute_command("MODULE", "LOAD", str(module()))
        yield made


def _admin(server: ValkeyServer) -> Any:
    return server.admin


async def test_each_node_has_its_own_commands(cluster: ValkeyCluster) -> None:
    """On auto a node with the module gets commands, one without scripts, also in one pipeline; the least is told."""
    for server in cluster.servers:
        _admin(server).config_resetstat()
    async with connect(cluster.url, wire="auto") as connector:
        jobs = Jobs(connector)
        for queue in QUEUES:
            assert (await jobs.enqueue(queue, b"x")).admitted
        assert str(connector.spoken) == "auto (scripts: the server has no module emq)"
    called = [set(_admin(cluster.owner(queue)).info("commandstats")) for queue in QUEUES]
    assert ["cmdstat_EMQ.ENQUEUE" in names for names in called] == [True, True, False]
    assert ["cmdstat_evalsha" in names for names in called] == [False, False, True]


async def test_keys_of_two_slots_are_refused(cluster: ValkeyCluster) -> None:
    """By the server, before the command runs; nothing is written anywhere."""
    cluster.clear()
    mine, other = Keys(QUEUES[0]), Keys(QUEUES[1])
    async with connect(cluster.url, wire="auto") as connector:
        with pytest.raises(EchoMQError, match="CROSSSLOT"):
            await connector.call("EMQ.ENQUEUE", 2, mine.job(ID), other.pending, ID, b"x")
        assert await connector.call("DBSIZE") == 1


async def test_a_node_that_has_lost_a_slot_sends_on(cluster: ValkeyCluster) -> None:
    """A command at the wrong node is told MOVED like any other, and is carried out where it was sent on to."""
    cluster.clear()
    mine = Keys(QUEUES[0])
    wrong = cluster.owner(QUEUES[1])
    with pytest.raises(redis.exceptions.MovedError):
        _admin(wrong).execute_command("EMQ.ENQUEUE", 2, mine.job(ID), mine.pending, ID, b"x")
    async with connect(cluster.url, wire="auto") as connector:
        assert isinstance(connector, ClusterConnector)
        await connector.call("PING")
        shown = connector._nodes._map
        assert shown is not None
        # As it was before a failover that nobody has told us of.
        connector._nodes._map = shown.moved(slot(mine.pending), Host("127.0.0.1", wrong.port))
        assert (await Jobs(connector).enqueue(QUEUES[0], b"x")).admitted
    assert _admin(cluster.owner(QUEUES[0])).zcard(mine.pending) == 1


async def test_a_base_of_another_slot_is_refused(cluster: ValkeyCluster) -> None:
    """What a command derives keys from is the queue of its keys: another one never gets as far as a key."""
    cluster.clear()
    mine, other = Keys(QUEUES[0]), Keys(QUEUES[1])
    async with connect(cluster.url, wire="auto") as connector:
        with pytest.raises(EchoMQError, match=r"ERR EMQ\.ENQUEUE\.MANY"):
            await connector.call("EMQ.ENQUEUE.MANY", 1, mine.pending, other.base, ID, b"x")
        assert await connector.call("DBSIZE") == 1


# ------------------------------------------------------------------------------------- a user of one queue


@pytest.fixture(scope="module")
def limited() -> Iterator[ValkeyServer]:
    """A server with the module, and a user of all roles whose queue is `a`."""
    server = ValkeyServer(args=load_options()).start()
    admin = _admin(server)
    admin.set(FENCE_KEY, "echomq:3.0.0")
    words = rules(("producer", "worker", "operator"), ("a",), also=("native",), password="pass")
    admin.execute_command("ACL", "SETUSER", "limited", *words)
    yield server
    server.close()


def _keys(verb: str, keys: Keys) -> list[str]:
    """The keys of a verb as its header declares them, of the queue and the job `ID` in the lane `GRP…`."""
    group = "GRP00000000001"
    source = scripts()[verb].source.splitlines()
    names = [line.split()[2] for line in source if line.startswith("-- KEYS[") and "..." not in line]
    short = {"<id>": ID, "<group>": group, "<consumer>": "c", "{q}": f"{{{keys.queue}}}"}
    for old, new in short.items():
        names = [name.replace(old, new) for name in names]
    return names


def _arguments(verb: str, keys: Keys) -> list[str]:
    """As many arguments as the verb takes, the first words of which are right."""
    right = {"id": ID, "emq:{q}:": keys.base, "emq:{q}:job:": f"{keys.base}job:", "group": "GRP00000000001"}
    source = scripts()[verb].source.splitlines()
    words = [line.split()[2] for line in source if line.startswith("-- ARGV[") and "..." not in line]
    return [right.get(word.strip("`"), "1") for word in words]


@pytest.mark.parametrize("verb", TWINS)
async def test_a_user_of_one_queue_cannot_touch_another(limited: ValkeyServer, verb: str) -> None:
    """Neither with the other queue's keys, nor with keys of its own and the base of the other one."""
    mine, other = Keys("a"), Keys("b")
    admin = _admin(limited)
    admin.zadd(other.active, {ID: 1})
    admin.hset(other.job(ID), mapping={"state": "active", "attempts": "1", "payload": "secret"})
    before = {key: admin.dump(key) for key in admin.keys("emq:{b}:*")}
    async with connect(f"redis://limited:pass@127.0.0.1:{limited.port}/0", wire="6") as connector:
        names, words = _keys(verb, other), _arguments(verb, other)
        with pytest.raises(EchoMQError, match="NOPERM"):
            await connector.call(TWINS[verb], len(names), *names, *words)
        names = _keys(verb, mine)
        if other.base in words or f"{other.base}job:" in words:
            with pytest.raises(EchoMQError, match=rf"^ERR {TWINS[verb].replace('.', '[.]')} ") as caught:
                await connector.call(TWINS[verb], len(names), *names, *words)
            assert "secret" not in str(caught.value)
        mixed = [*names[:-1], _keys(verb, other)[-1]]
        with pytest.raises(EchoMQError, match="NOPERM"):
            await connector.call(TWINS[verb], len(mixed), *mixed, *words)

    assert {key: admin.dump(key) for key in admin.keys("emq:{b}:*")} == before


async def test_the_user_of_a_queue_has_all_that_it_needs_there(limited: ValkeyServer) -> None:
    """The published rules with `--also native`: the verbs of producer and worker are permitted by commands alone."""
    async with connect(f"redis://limited:pass@127.0.0.1:{limited.port}/0", wire="6") as connector:
        assert len(connector.spoken.commands) > 20
        jobs = Jobs(connector)
        assert (await jobs.enqueue("a", b"x")).admitted
        taken = await jobs.claim("a", 1_000)
        assert taken is not None
        assert await jobs.complete("a", taken.id, taken.token)
