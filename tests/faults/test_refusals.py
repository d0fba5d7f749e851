"""A server that answers and cannot serve: full, loading, a replica, without its disk, busy, or with rights taken away.

Each is an outage like any other: one line when it begins and one when it is over, never a trace, readiness red and
green again by itself, and no job lost.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import pytest
import redis

from echomq_worker.connector import connect
from echomq_worker.degraded import SCRIPT_ERRORS
from echomq_worker.errors import AuthenticationFailed, Unavailable
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.metrics import Metrics
from echomq_worker.repeat import Repeat
from echomq_worker.verdict import Retry
from echomq_worker.worker import Worker
from tests.support.proxy import Proxy, Rule
from tests.support.running import running
from tests.support.stations import FastClock, stand
from tests.support.valkey import OwnServer, ValkeyServer
from tests.support.waiting import wait_until

JOBS = 9
QUEUES = ("flat", "pool", "asks")
# Connections are greeted, nothing else.
_LEAST = ("-@all", "+auth", "+hello", "+client", "+get")


def a_worker(go_on: asyncio.Event) -> Worker:
    """Handlers that wait for `go_on`, then end well, want a retry, or call the server themselves."""
    worker = Worker()
    many = 1_000

    @worker.handler("flat", max_attempts=many, retry=1)
    async def flat(job: Job) -> None:
        await go_on.wait()
        if job.payload == b"fails" and not job.failures:
            raise Retry(1)

    @worker.handler("pool", consumers=2, concurrency=4, max_attempts=many, retry=1)
    async def pool(job: Job) -> None:
        await flat(job)

    @worker.handler("asks", max_attempts=many, retry=100)
    async def asks(job: Job) -> None:
        await go_on.wait()
        await job.log("a line for its row")

    return worker


class Always(Rule):
    """Every command with the pattern, as long as it is among a proxy's rules."""

    def hits(self, command: bytes) -> bool:
        """Whether the pattern is in it."""
        return self.pattern in command


class Broken:
    """What is done to a server, and undone: two methods for each code."""

    def __init__(self, server: ValkeyServer, proxy: Proxy) -> None:
        self.admin: Any = server.admin
        self.server = server
        self.proxy = proxy
        self.rule: Rule | None = None

    @contextmanager
    def oom(self) -> Iterator[None]:
        """No byte more."""
        self.admin.config_set("maxmemory", 1)
        yield
        self.admin.config_set("maxmemory", 0)

    @contextmanager
    def noreplicas(self) -> Iterator[None]:
        """Its replicas have left it."""
        self.admin.config_set("min-replicas-to-write", 1)
        yield
        self.admin.config_set("min-replicas-to-write", 0)

    @contextmanager
    def readonly(self) -> Iterator[None]:
        """It has become a replica."""
        self.admin.replicaof("127.0.0.1", "1")
        yield
        self.admin.replicaof("NO", "ONE")

    @contextmanager
    def masterdown(self) -> Iterator[None]:
        """The same, and it tells nothing that may be old."""
        self.admin.config_set("replica-serve-stale-data", "no")
        with self.readonly():
            yield

    @contextmanager
    def misconf(self) -> Iterator[None]:
        """It cannot write its file."""
        in_the_way = self.server.directory / "dump.rdb"
        in_the_way.mkdir()
        self.admin.config_set("save", "3600 1")
        self.admin.bgsave()
        yield
        in_the_way.rmdir()
        self.admin.config_set("save", "")

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Somebody's script does not end."""
        self.admin.config_set("busy-reply-threshold", 1)

        def endless() -> None:
            with suppress(redis.ResponseError), redis.Redis(port=self.server.port) as client:
                client.eval("while true do end", 0)

        somebody = threading.Thread(target=endless)
        somebody.start()
        yield
        self.admin.script_kill()
        somebody.join()

    @contextmanager
    def noperm(self) -> Iterator[None]:
        """Rights that were taken away."""
        self.admin.execute_command("ACL", "SETUSER", "worker", *_LEAST)
        yield
        self.admin.execute_command("ACL", "SETUSER", "worker", "+@all")

    @contextmanager
    def wrongpass(self) -> Iterator[None]:
        """A user that is not there for a while, as on a replica that has taken over."""
        self.admin.execute_command("ACL", "DELUSER", "worker")
        yield
        a_user(self.server)

    @contextmanager
    def answers(self, line: str) -> Iterator[None]:
        """What cannot be had from a server at will."""
        rule = self.rule = Always(b"", 1, answer=f"-{line}\r\n".encode())
        self.proxy.rules.append(rule)
        yield
        self.proxy.rules.remove(rule)

    def by(self, code: str) -> Any:
        """The one that makes the server answer with this code."""
        own = getattr(self, code.lower(), None)
        return self.answers(f"{code} as asked") if own is None else own()


def a_user(server: ValkeyServer) -> None:
    """The worker's."""
    admin: Any = server.admin
    admin.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~*", "&*", "+@all")


def traces(records: list[logging.LogRecord]) -> list[str]:
    """Lines with a trace, of whatever logger."""
    return [one.getMessage() for one in records if one.exc_info or one.stack_info or "Traceback" in one.getMessage()]


CODES = (
    *("OOM", "READONLY", "MASTERDOWN", "NOREPLICAS", "MISCONF", "BUSY", "NOPERM", "WRONGPASS"),
    *("LOADING", "CLUSTERDOWN", "TRYAGAIN"),
)


@pytest.mark.parametrize("code", CODES)
async def test_it_is_an_outage_without_a_trace(
    own_server: OwnServer, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    """Red while it lasts, green by itself, a line at each end; handlers that end and that ask meanwhile lose no job."""
    server, go_on = own_server(), asyncio.Event()
    a_user(server)
    worker = a_worker(go_on)
    async with connect(server.url) as connector, Proxy(server.port) as proxy:
        url = proxy.url.replace("://", "://worker:secret@")
        broken = Broken(server, proxy)
        for queue in QUEUES:
            await Jobs(connector).enqueue_many(queue, [b"fails", b"ends", b"ends"] * (JOBS // 3))
        # A full server refuses what needs room: what would fire.
        await Repeat(connector).register("pool", "often", 300, b"ends")
        with caplog.at_level(logging.INFO):
            async with running(worker, url, beat_ms=50, lease_ms=30_000, log_level="info"):
                await wait_until(lambda: all_run(connector), "all that have a slot run")
                by = broken.by(code)
                await asyncio.to_thread(by.__enter__)
                go_on.set()
                await wait_until(lambda: not worker.readiness().ready, "it is red")
                await wait_until(lambda: has_met(caplog, broken, code), "it has met the refusal")
                await wait_until(lambda: worker.readiness().degraded, "that is what it is red for")
                await asyncio.to_thread(by.__exit__, None, None, None)
                await wait_until(lambda: worker.readiness().ready, "it is green again")
                await wait_until(lambda: done(connector), "every job is done")
        told = [one.message.split()[0] for one in caplog.records if one.message.split()[0] in {"degraded", "recovered"}]
    assert traces(caplog.records) == []
    assert told == ["degraded", "recovered"] * (len(told) // 2)


async def all_run(connector: Any) -> bool:
    """Whether what fits is in hand."""
    seen = [await Metrics(connector).stats(queue) for queue in QUEUES]
    return [one.counts.active for one in seen] == [JOBS, 4, JOBS]


async def done(connector: Any) -> bool:
    """Whether the server has counted all of them as completed, and nothing waits."""
    seen = [await Metrics(connector).stats(queue) for queue in QUEUES]
    return min(one.totals.completed for one in seen) >= JOBS and not any(one.counts.ready for one in seen)


def has_met(caplog: pytest.LogCaptureFixture, broken: Broken, code: str) -> bool:
    """Whether it was refused so: a line has it, or another refusal has the line and the server, or who answered in its
    place, has counted this one.
    """
    if any(code in one.getMessage() for one in caplog.records):
        return True
    if broken.rule is not None:
        return broken.rule.done
    with suppress(redis.ResponseError):
        return f"errorstat_{code}" in broken.admin.info("errorstats")
    return False


async def test_a_login_that_is_refused_for_good_ends_the_process(own_server: OwnServer) -> None:
    """After ten refusals in a row, as for a script: the password has changed, and whoever starts it again knows it."""
    server = own_server()
    a_user(server)
    tries = list[int]()

    async def run() -> None:
        async with stand(server.url.replace("://", "://worker:secret@"), clock=FastClock()) as made:
            assert (await made.consumer.beat()).swept is not None
            await asyncio.to_thread(change_password)
            made.shared.tasks.start_soon(made.consumer.run)
            await anyio.sleep_forever()

    def change_password() -> None:
        admin: Any = server.admin
        admin.execute_command("ACL", "SETUSER", "worker", "resetpass", ">another")
        admin.execute_command("CLIENT", "KILL", "USER", "worker")

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(run(), 20)
    assert caught.group_contains(AuthenticationFailed, match="WRONGPASS")
    tries.append(int(server.admin.info("stats")["acl_access_denied_auth"]))
    assert tries[0] >= SCRIPT_ERRORS


async def test_a_hook_that_meets_it_leaves_no_trace(
    server: ValkeyServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What it was called for, and why it could not; its trace would say nothing more."""
    worker = Worker()

    @worker.handler("q")
    async def ends(job: Job) -> None:
        pass

    @worker.on_complete
    async def tell(job: Job) -> None:
        raise Unavailable("OOM command not allowed when used memory > 'maxmemory'.")

    async with connect(url) as connector:
        await Jobs(connector).enqueue("q", b"x")
        async with running(worker, url):
            await wait_until(lambda: [one for one in caplog.records if "on_complete raised" in one.message], "told")
    assert traces(caplog.records) == []
    assert "OOM command" in caplog.text
