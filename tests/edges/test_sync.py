"""The synchronous producer: the same verbs, answers and errors as the asynchronous one, for threads and forks."""

from __future__ import annotations

import asyncio
import inspect
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import echomq_worker
from echomq_worker import sync
from echomq_worker.blocking import finished
from echomq_worker.errors import (
    ConfigError,
    EchoMQError,
    FenceRefused,
    InvalidArgument,
    KindRefused,
    Unreachable,
)
from echomq_worker.identity import Mint
from echomq_worker.jobs import New
from tests.support.clock import ManualClock
from tests.support.plain import GROUP, QUEUE
from tests.support.sentinel import SERVICE, Sentinel
from tests.support.tls import MISSING, Authority, as_arguments, redis_server, server_tls
from tests.support.valkey import OwnServer, ValkeyServer, free_port

NOUNS = ("Admin", "Cancel", "Flows", "Jobs", "Lanes", "Metrics", "Repeat")
# Of Jobs and the others what belongs to a worker, to a test, or to a program that waits for events.
LEFT_OUT = {
    "Admin": set[str](),
    "Cancel": set[str](),
    "Flows": set[str](),
    "Jobs": {
        *("claim", "claim_batch", "complete", "retry", "delay", "promote", "reap", "extend_lock", "extend_locks"),
        *("add_log", "update_progress"),
    },
    "Lanes": {"claim", "claim_weighted", "reap_group"},
    "Metrics": {"browse", "counts", "depths", "expired_leases", "get_job", "metrics", "next_due_ms", "repeats"},
    "Repeat": {"advance", "due", "fire"},
}


@pytest.fixture
def connector(url: str) -> Iterator[sync.Connector]:
    """A connector to the session's server, closed at the end."""
    with sync.connect(url) as made:
        yield made


@pytest.fixture
def jobs(connector: sync.Connector) -> sync.Jobs:
    """Jobs with a mint of its own."""
    return sync.Jobs(connector, mint=Mint(ManualClock(), 1))


def verbs(noun: type[object]) -> dict[str, Any]:
    """The public methods of a class, inherited ones too."""
    return {name: verb for name, verb in inspect.getmembers(noun, callable) if not name.startswith("_")}


@pytest.mark.parametrize("noun", NOUNS)
def test_verbs_read_as_the_asynchronous_ones(noun: str) -> None:
    """Every verb has the arguments and the text of the coroutine of that name, and none is forgotten in silence."""
    theirs, ours = verbs(getattr(echomq_worker, noun)), verbs(getattr(sync, noun))

    assert set(theirs) - set(ours) == LEFT_OUT[noun]
    for name, verb in ours.items():
        assert inspect.signature(verb) == inspect.signature(theirs[name])
        assert verb.__doc__ == theirs[name].__doc__
        assert not inspect.iscoroutinefunction(verb)


def test_a_day_of_a_producer(connector: sync.Connector, jobs: sync.Jobs) -> None:
    """Now, later, many, with a dedup key, in a lane, as a flow, repeated; counted; cancelled."""
    first = jobs.enqueue(QUEUE, {"to": "ada"}, dedup="one")
    assert first.admitted
    assert jobs.enqueue(QUEUE, {"to": "ada"}, dedup="one").id == first.id
    assert jobs.enqueue_in(QUEUE, b"later", 60_000).admitted
    assert jobs.enqueue_at(QUEUE, b"then", 1).admitted
    assert [one.admitted for one in jobs.enqueue_many(QUEUE, [b"a", New(b"b", in_ms=60_000)])] == [True, True]
    assert jobs.enqueue_many(QUEUE, []) == []
    assert sync.Lanes(connector).enqueue(QUEUE, GROUP, b"x").admitted
    assert sync.Lanes(connector).depth(QUEUE, GROUP) == 1
    assert sync.Flows(connector).add(sync.Node("other", b"p", [sync.Node(QUEUE, b"c")])).admitted
    assert sync.Repeat(connector).register(QUEUE, "daily", 86_400_000, b"r") == "registered"

    counts = jobs.counts(QUEUE)
    assert (counts.pending, counts.scheduled, counts.lanes, counts.repeats) == (3, 3, {GROUP: 1}, 1)
    assert sync.Cancel(connector).request(QUEUE, first.id, "no more") == "removed"
    assert jobs.get(QUEUE, first.id) is None
    sync.Admin(connector).pause(QUEUE)
    assert sync.Metrics(connector).stats(QUEUE).counts.paused
    assert connector.connections == 1


def test_many_more_than_a_trip(jobs: sync.Jobs) -> None:
    """Seven thousand jobs take two trips and some; receipts come in the order of the items."""
    receipts = jobs.enqueue_many(QUEUE, (str(number) for number in range(7_000)))

    assert [one.id for one in receipts] == sorted({one.id for one in receipts})
    assert all(one.admitted for one in receipts)
    found = jobs.get(QUEUE, receipts[4_321].id)
    assert found is not None
    assert found.payload == b"4321"


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (lambda jobs: jobs.enqueue(QUEUE, b"", id=GROUP), KindRefused),
        (lambda jobs: jobs.enqueue_in(QUEUE, b"", -1), InvalidArgument),
        (lambda jobs: jobs.enqueue("no queue", b""), ValueError),
    ],
)
def test_refusals_have_their_classes(jobs: sync.Jobs, refused: Callable[[sync.Jobs], object], kind: type) -> None:
    """What is refused before the wire, and what a script refuses; the connection is as good as before."""
    with pytest.raises(kind):
        refused(jobs)

    assert jobs.enqueue(QUEUE, b"x").admitted


def test_a_server_that_cannot_be_used(url: str, own_server: OwnServer) -> None:
    """Nobody there, a wrong password, another wire version, no such database: typed, one line, no secret in it."""
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1"), sync.connect(f"redis://127.0.0.1:{free_port()}"):
        pass
    with sync.connect(url):
        pass
    with pytest.raises(FenceRefused, match="echomq:9"), sync.connect(url, wire_version="echomq:9"):
        pass
    with pytest.raises(ConfigError, match="database 999999"), sync.connect(url.replace("/0", "/999999")):
        pass
    port = own_server(args=("--requirepass", "right")).port
    with pytest.raises(EchoMQError, match="credentials") as wrong, sync.connect(f"redis://:wrong@127.0.0.1:{port}"):
        pass
    assert "wrong@" not in str(wrong.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+cluster://host:6379/1", "database"),
        ("http://host", "expected a scheme"),
    ],
)
def test_urls_that_are_refused(url: str, said: str) -> None:
    """One line when the connector is made, before anything is opened."""
    with pytest.raises(ConfigError, match=said):
        sync.Connector(url)


def test_a_closed_connector_says_so(url: str) -> None:
    """It opens nothing again."""
    with sync.connect(url) as connector:
        pass

    with pytest.raises(EchoMQError, match="it is closed"):
        sync.Jobs(connector).counts(QUEUE)


def test_threads_share_a_connector(connector: sync.Connector, jobs: sync.Jobs) -> None:
    """Eight threads at a time: every job is admitted once under an id of its own, over eight connections at most."""
    barrier = threading.Barrier(8)

    def produce(_: int) -> list[str]:
        barrier.wait(10)
        return [jobs.enqueue(QUEUE, b"x").id for _ in range(50)]

    with ThreadPoolExecutor(8) as pool:
        ids = [id for some in pool.map(produce, range(8)) for id in some]

    assert len(set(ids)) == 400
    assert jobs.counts(QUEUE).pending == 400
    assert 1 <= connector.connections <= 8


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_connections_and_ids_of_its_own(url: str, server: ValkeyServer) -> None:
    """A parent that has produced forks twice, as a prefork server does: no reply is mixed up, no id is made twice, and
    the parent's connection stands.
    """
    with sync.connect(url) as connector:
        jobs = sync.Jobs(connector)
        jobs.enqueue(QUEUE, b"parent")
        before = {client["id"] for client in server.admin.client_list() if client["name"] == "echomq"}
        children = [_forked(lambda: [jobs.enqueue(QUEUE, b"child") for _ in range(200)]) for _ in range(2)]
        for _ in range(200):
            jobs.enqueue(QUEUE, b"parent")
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]

        assert jobs.counts(QUEUE).pending == 601
        assert before == {client["id"] for client in server.admin.client_list() if client["name"] == "echomq"}


def _forked(work: Callable[[], object]) -> int:
    """The pid of a child that does some work and is gone, with 1 where that raised."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def test_a_process_that_python_did_not_fork_draws_other_ids(
    connector: sync.Connector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers written in C fork without telling Python: the process id alone tells, before an id is made."""
    jobs = sync.Jobs(connector)
    jobs.enqueue(QUEUE, b"x")
    drawn: list[None] = []
    monkeypatch.setattr("echomq_worker.identity.forked", lambda: drawn.append(None))
    monkeypatch.setattr(os, "getpid", lambda: -1)

    assert jobs.enqueue(QUEUE, b"x").admitted
    assert drawn == [None]
    assert connector.connections == 1


@pytest.mark.skipif(bool(MISSING), reason="openssl and a server with TLS")
def test_tls(tmp_path: Any, own_server: OwnServer) -> None:
    """With the authority in the URL it connects, and reconnects; with another one it is one line."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    port = free_port()
    settings = {**server_tls(authority, authority.sign("server")), "tls-port": str(port)}
    own_server(binary=redis_server(), args=tuple(as_arguments(settings)))
    address = f"rediss://localhost:{port}/0?ssl_ca_certs="

    with sync.connect(f"{address}{authority.certificate}") as connector:
        assert sync.Jobs(connector).enqueue(QUEUE, b"x" * 100_000).admitted
        assert len(connector.call("LRANGE", "emq:{q}:nothing", 0, -1)) == 0
        assert connector.connections == 1
    with pytest.raises(Unreachable, match="certificate") as refused, sync.connect(f"{address}{other.certificate}"):
        pass
    assert isinstance(refused.value.__cause__, ssl.SSLError)


def test_sentinels_name_the_primary(own_server: OwnServer) -> None:
    """One sentinel is not there, the other one names the server; a service that it does not know is one line."""
    server, sentinel, gone = own_server(), Sentinel(), free_port()
    try:
        sentinel.start([f"sentinel monitor {SERVICE} 127.0.0.1 {server.port} 1"])
        sentinel.listens_sync()
        hosts = f"127.0.0.1:{gone},127.0.0.1:{sentinel.port}"
        with sync.connect(f"redis+sentinel://{hosts}/{SERVICE}") as connector:
            assert sync.Jobs(connector).enqueue(QUEUE, b"x").admitted
            server.admin.client_kill_filter(_type="normal", skipme=True)
            assert sync.Jobs(connector).counts(QUEUE).pending == 1
        with (
            pytest.raises(Unreachable, match="knows no service 'other'"),
            sync.connect(f"redis+sentinel://{hosts}/other"),
        ):
            pass
        server.stop()
        with pytest.raises(Unreachable, match=str(server.port)), sync.connect(f"redis+sentinel://{hosts}/{SERVICE}"):
            pass
    finally:
        sentinel.close()


def test_a_verb_that_waits_for_a_loop_is_refused() -> None:
    """Nothing here may suspend: one line, instead of a verb that is half done."""

    async def sleeps() -> None:
        await asyncio.sleep(0)

    with pytest.raises(ConfigError, match="sleeps: it waits for an event loop"):
        finished(sleeps())
