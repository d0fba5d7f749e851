"""What a worker looks at when it starts: worth a line, never a reason not to start."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from echomq_worker.connector import connect
from echomq_worker.errors import AuthenticationFailed
from echomq_worker.jobs import Jobs
from echomq_worker.logs import get_logger
from echomq_worker.metrics import Metrics
from echomq_worker.survey import survey
from echomq_worker.worker import Worker
from tests.support.fleet import fleet
from tests.support.process import WorkerProcess
from tests.support.proxy import Proxy
from tests.support.running import quick, running
from tests.support.sentinel import FAST_SYNC
from tests.support.tls import redis_server
from tests.support.valkey import OwnServer, ValkeyServer
from tests.support.waiting import wait_until

REFUSED = ("-config", "-client", "-info", "-script", "-command", "-acl", "-latency", "-slowlog")


async def _starts_and_works(url: str) -> WorkerProcess:
    """A worker process that has run a job; its log stays."""
    with fleet(url) as workers:
        worker = workers.start("--queue", "jobs")
        await worker.saw("worker started")
        async with connect(url) as connector:
            id = (await Jobs(connector).enqueue("jobs", {})).id
        await wait_until(lambda: workers.ended() == {id}, "a job runs")
        await worker.saw("job completed")
    return worker


async def test_a_server_that_may_evict_is_warned_about(own_server: OwnServer) -> None:
    """Once, at the start, with the policy that it has and the one that keeps jobs; the worker works.

    Report 85 (taskforcesh/bullmq#419).
    """
    server = own_server()
    server.admin.config_set("maxmemory-policy", "allkeys-lru")

    worker = await _starts_and_works(server.url)

    (warned,) = worker.records("eviction policy")
    assert (warned["level"], warned["policy"], warned["expected"]) == ("warning", "allkeys-lru", "noeviction")


async def test_a_managed_server_that_refuses_to_be_looked_at_is_worked_on(own_server: OwnServer) -> None:
    """CONFIG, CLIENT, INFO, SCRIPT and others are not permitted: scripts go as text where they are not known, what
    could not be looked at is one line, nothing is an outage.

    Report 85 (taskforcesh/bullmq#419).
    """
    server: Any = own_server()
    server.admin.execute_command("ACL", "SETUSER", "managed", "on", ">secret", "~*", "&*", "+@all", *REFUSED)

    worker = await _starts_and_works(server.url.replace("redis://", "redis://managed:secret@"))

    skipped = {record["check"]: record["reason"] for record in worker.records("server check skipped")}
    assert len(worker.records("server check skipped")) == len(skipped) == 2
    assert "SCRIPT LOAD is refused" in skipped["scripts"]
    assert "'info' command" in skipped["eviction policy"]
    assert not worker.records("degraded")
    assert "secret@" not in worker.log_text()


@pytest.mark.parametrize(
    ("refused", "skipped"),
    [
        ("-client", []),
        ("-config", []),
        ("-info", []),
        ("-script|load", ["scripts"]),
        ("-role", ["role"]),
        ("-hello", []),
    ],
)
async def test_what_one_refusal_costs(own_server: OwnServer, refused: str, skipped: list[str]) -> None:
    """Each of them alone: the check that needs it is one line, no other is; the eviction policy is read elsewhere where
    CONFIG is refused; jobs are enqueued and run.
    """
    server: Any = own_server()
    server.admin.config_set("maxmemory-policy", "volatile-lru")
    server.admin.execute_command("ACL", "SETUSER", "managed", "on", ">p", "~*", "&*", "+@all", refused)
    url = server.url.replace("redis://", "redis://managed:p@")
    worker, ran = Worker(), asyncio.Event()

    @worker.handler("a")
    async def handle() -> None:
        ran.set()

    with capture_logs() as told:
        async with connect(url) as connector, running(worker, url):
            await Jobs(connector).enqueue("a", b"x")
            await asyncio.wait_for(ran.wait(), 20)
    assert [one["check"] for one in told if one["event"] == "server check skipped"] == skipped
    assert [one["policy"] for one in told if one["event"] == "eviction policy"] == ["volatile-lru"]
    assert not [one for one in told if one["event"] == "degraded"]


async def test_a_replica_is_warned_about(own_server: OwnServer) -> None:
    """A worker that was given a replica's address says so, before every claim of it is refused."""
    primary, replica = own_server(args=FAST_SYNC), own_server()
    async with connect(primary.url):
        replica.admin.replicaof("127.0.0.1", str(primary.port))
        await wait_until(lambda: replica.admin.get("{emq}:version"), "the replica has the fence")
    with capture_logs() as told:
        async with connect(replica.url) as connector:
            await survey(connector, get_logger("test"))
    assert [(one["event"], one["role"]) for one in told] == [("not a primary", "slave")]


async def test_who_may_run_no_script_is_told_at_the_start(own_server: OwnServer) -> None:
    """EVALSHA is not permitted: one error that says so, instead of a worker that fails at every claim."""
    server: Any = own_server()
    server.admin.execute_command("ACL", "SETUSER", "managed", "on", ">p", "~*", "&*", "+@all", "-evalsha")
    worker = Worker()

    @worker.handler("a")
    async def handle() -> None:
        """Never called."""

    with pytest.raises(AuthenticationFailed, match=r"no script can be run: NOPERM .*evalsha"):
        await worker.run(quick(server.url.replace("redis://", "redis://managed:p@")), signals=False)


async def test_a_server_without_these_commands_is_worked_on(own_server: OwnServer) -> None:
    """A Redis 7.0 on which they have been renamed, as some offerings do: unknown commands cost no more than refused
    ones, for worker, producer and an operator.
    """
    gone = ("CONFIG", "INFO", "SCRIPT", "ROLE")
    renamed = [word for name in gone for word in ("--rename-command", name, "")]
    server = own_server(binary=redis_server(), args=renamed)
    worker, ran = Worker(), asyncio.Event()

    @worker.handler("a")
    async def handle() -> None:
        ran.set()

    with capture_logs() as told:
        async with connect(server.url) as connector, running(worker, server.url):
            await Jobs(connector).enqueue("a", b"x")
            await asyncio.wait_for(ran.wait(), 20)
            assert (await Metrics(connector).counts("a")).pending == 0
    skipped = [one["check"] for one in told if one["event"] == "server check skipped"]
    assert skipped == ["scripts", "role", "eviction policy"]
    assert not [one for one in told if one["event"] == "degraded"]


@pytest.mark.parametrize("command", [b"SCRIPT", b"TIME", b"CONFIG"])
async def test_a_connection_that_is_lost_meanwhile_is_an_outage_like_any_other(
    server: ValkeyServer, url: str, command: bytes
) -> None:
    """Whichever look it is: the server was reached, so the worker starts and goes on by itself.

    Report 2 (python-arq/arq#498).
    """
    worker, ran = Worker(), asyncio.Event()

    @worker.handler("a")
    async def handle() -> None:
        ran.set()

    async with connect(url) as connector, Proxy(server.port) as proxy:
        lost = proxy.swallow_reply(command)
        async with running(worker, proxy.url):
            await Jobs(connector).enqueue("a", b"x")
            await asyncio.wait_for(ran.wait(), 20)
        assert lost.done
