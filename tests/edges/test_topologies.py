"""What stands around a worker, on a cluster and behind sentinels: dashboard, `top`, `health`, probes and metrics, the
producer without an event loop, tracing. What a page of the docs says of each is tried here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from echomq_worker import sync
from echomq_worker.cli import main
from echomq_worker.connector import Connector, connect
from echomq_worker.errors import FenceRefused
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.keyspace import Keys, slot
from echomq_worker.lanes import Lanes
from echomq_worker.metrics import Metrics
from echomq_worker.repeat import Repeat
from echomq_worker.tracing import instrument, traced
from echomq_worker.verdict import Reject
from echomq_worker.worker import Worker
from tests.edges.test_cli_ping import costs_little, heavy_imports
from tests.support.cluster import ValkeyCluster, valkey_cluster
from tests.support.http import green, one, scrape, scraped
from tests.support.running import running
from tests.support.sentinel import Watched, watched
from tests.support.telemetry import Kept
from tests.support.valkey import free_port
from tests.support.waiting import wait_until
from tests.support.web import Browser, browsing

# One with each of three primaries that share the slots evenly.
QUEUES = ("pool", "jobs", "other")
PAGES = ("", "/waiting", "/active", "/scheduled", "/repeats", "/dead", "/lanes", "/add")


@pytest.fixture(scope="module", params=["cluster", "sentinel"])
def topology(request: pytest.FixtureRequest) -> Iterator[ValkeyCluster | Watched]:
    """Three primaries, or one and a sentinel that names it; for all tests here."""
    made: Any = valkey_cluster(replicas=0) if request.param == "cluster" else watched(replicas=0, sentinels=1)
    with made as servers:
        yield servers


@pytest.fixture
def where(topology: ValkeyCluster | Watched) -> Iterator[str]:
    """Their URL; what was put there is gone afterwards."""
    yield topology.url

    async def clear() -> None:
        async with connect(topology.url) as connector:
            for node in await connector.nodes():
                await node.call("FLUSHALL")

    asyncio.run(clear())


def a_worker() -> Worker:
    """Every queue; a job that says so is dead."""
    worker = Worker()

    async def work(job: Job) -> None:
        if job.payload == b"dies":
            raise Reject("never")

    for queue in QUEUES:
        worker.handler(queue)(work)
    return worker


async def work_off(connector: Connector, url: str, *payloads: bytes) -> None:
    """Enqueue these to every queue, and have all worked off."""
    for queue in QUEUES:
        await Jobs(connector).enqueue_many(queue, payloads)
    async with running(a_worker(), url, options={"burst": True}) as run:
        await run.task


async def test_the_dashboard_shows_and_does_everything(where: str) -> None:
    """Every page of every queue, the live stream's numbers, and the way through an incident."""
    async with connect(where) as connector:
        await work_off(connector, where, b"ends", b"dies", b"dies")
        jobs, group = Jobs(connector), Lanes.group_for("tenant")
        for queue in QUEUES:
            await jobs.enqueue(queue, b"waits")
            await jobs.enqueue_in(queue, b"later", 3_600_000)
            await Lanes(connector).enqueue(queue, group, b"in a lane")
            await Repeat(connector).register(queue, "nightly", 3_600_000, b"x")
        async with browsing(where) as browser:
            assert browser.dash.label.startswith(where.partition("://")[0])
            await wait_until(lambda: _lists_all(browser), "every queue is listed")
            for queue in QUEUES:
                for name in PAGES:
                    await browser.read(f"/q/{queue}{name}")
                await _incident(browser, connector, queue, group)


async def _lists_all(browser: Browser) -> bool:
    text = await browser.read("/")
    return all(queue in text for queue in QUEUES)


async def _incident(browser: Browser, connector: Connector, queue: str, group: str) -> None:
    """Look at the dead, requeue one, then all; pause, a lane too; add one; cancel the repeat."""
    metrics, base = Metrics(connector), f"/q/{queue}"
    first, _ = await metrics.browse(queue, "dead")
    assert "never" in await browser.read(f"{base}/job/{first.id}")
    await browser.do(f"{base}/dead/requeue", ("id", first.id))
    operation = await browser.do(f"{base}/dead/requeue", ("which", "all"), ("confirmed", "yes"))
    await wait_until(lambda: _is_done(browser, operation), "all are requeued")
    await browser.do(f"{base}/pause")
    await browser.do(f"{base}/lanes/pause", ("lane", group))
    await browser.do(f"{base}/add", ("payload", "by hand"))
    await browser.do(f"{base}/repeats/cancel", ("name", "nightly"), ("confirmed", "yes"))
    stats = await metrics.stats(queue)
    assert stats.counts.paused
    assert (stats.counts.pending, stats.counts.dead) == (4, 0)
    await browser.do(f"{base}/resume")


async def _is_done(browser: Browser, operation: str) -> bool:
    return "of 1" not in await browser.read(operation)


def test_top_and_health(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Queues of every primary in one picture; and a container's probe, which a worker without a port may have."""

    async def fill() -> None:
        async with connect(where) as connector:
            for queue in QUEUES:
                await Jobs(connector).enqueue(queue, b"x")

    asyncio.run(fill())
    assert main(["top", "--once", "--json", "--interval-ms", "100", "--url", where]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {queue["queue"]: queue["ready"] for queue in facts["queues"]} == dict.fromkeys(QUEUES, 1)
    assert main(["top", "--once", "--interval-ms", "100", "--url", where, *QUEUES]) == 0
    for command in ("health", "ping"):
        assert main([command, "--url", where]) == 0, capsys.readouterr().err
    scheme, _, hosts = where.partition("://")
    nobody = hosts.replace(hosts.partition("/")[0], "127.0.0.1:1")
    assert main(["health", "--url", f"{scheme}://{nobody}"]) == 1


def test_a_probe_of_the_server_is_cheap(
    topology: ValkeyCluster | Watched, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client library and less than 100 ms of CPU; who is away is passed over, and what is wrong is one line."""
    scheme, _, hosts = topology.url.partition("://")
    assert heavy_imports("health", "--url", topology.url) == []
    assert costs_little("health", "--url", topology.url, times=8)
    assert main(["health", "--url", f"{scheme}://127.0.0.1:1,{hosts}"]) == 0
    if isinstance(topology, ValkeyCluster):
        one_by_one = [f"redis+cluster://127.0.0.1:{server.port}" for server in topology.servers]
        assert [main(["health", "--url", one]) for one in one_by_one] == [0] * len(one_by_one)
    capsys.readouterr()
    monkeypatch.setenv("ECHOMQ_WIRE_VERSION", "echomq:9")
    asyncio.run(_fenced(topology.url))
    assert main(["ping", "--url", topology.url]) == 4
    assert main(["ping", "--url", topology.url.replace("://", "://who:secret@")]) == 3
    assert "secret" not in capsys.readouterr().err


async def _fenced(url: str) -> None:
    async with connect(url):
        pass


async def test_a_workers_port_tells_of_every_queue(where: str) -> None:
    """Ready, with the numbers of queues on several primaries, and the connections that they take."""
    worker, port = a_worker(), free_port()
    async with connect(where) as connector:
        await work_off(connector, where, b"ends", b"dies")
        async with running(worker, where, http=f"127.0.0.1:{port}"):
            ready = await wait_until(lambda: green(port), "it is ready")
            assert ready is not None
            assert {beat["queue"] for beat in ready.json["queues"]} == set(QUEUES)
            await wait_until(lambda: scraped(port, "echomq_server_up", 1), "the queues are read")
            found = await scrape(port)
            for queue in QUEUES:
                assert one(found, "echomq_queue_jobs", queue=queue, state="dead") == 1
                assert one(found, "echomq_queue_completed_total", queue=queue) == 1
            assert one(found, "echomq_connections", purpose="commands") == len(await connector.nodes())


def test_the_producer_without_an_event_loop(where: str) -> None:
    """Jobs of every kind, and the read plane; a worker does the rest."""
    with sync.connect(where) as connector:
        jobs = sync.Jobs(connector)
        group = sync.Lanes.group_for("tenant")
        for queue in QUEUES:
            assert not jobs.enqueue(queue, b"x").duplicate
            jobs.enqueue_many(queue, [b"y"] * 3)
            jobs.enqueue_in(queue, b"later", 3_600_000)
            sync.Lanes(connector).enqueue(queue, group, b"z")
        assert sorted(sync.Metrics(connector).queues()) == sorted(QUEUES)
        assert sync.Metrics(connector).stats("pool").counts.ready == 5
        with ThreadPoolExecutor(8) as pool:
            made = [pool.submit(jobs.enqueue, queue, b"x") for queue in QUEUES * 40]
            assert len({one.result(60).id for one in made}) == 3 * 40
        # Of one shot, in the pieces of each primary.
        assert connector.pipeline([("EXISTS", Keys(queue).pending) for queue in QUEUES]) == [1, 1, 1]
    assert connector.connections == 0


def test_the_producer_without_an_event_loop_follows_a_slot_that_moves(
    topology: ValkeyCluster | Watched, where: str
) -> None:
    """There and back: what is refused is sent once more, to the node that has the slot now."""
    if not isinstance(topology, ValkeyCluster):
        pytest.skip("nothing moves there")
    with sync.connect(where) as connector:
        jobs = sync.Jobs(connector)
        for queue in QUEUES:
            jobs.enqueue(queue, b"x")
        mine = slot(Keys("pool").pending)
        owner = topology.owner("pool")
        topology.migrate_at_once(mine, topology.other_than(owner))
        assert jobs.enqueue("pool", b"y").admitted
        assert jobs.counts("pool").pending == 2
        topology.migrate_at_once(mine, owner)
        assert jobs.enqueue("pool", b"z").admitted
        assert topology.owner("pool") is owner


def test_the_fence_of_a_cluster_holds_for_the_producer_too(where: str) -> None:
    """Asked of its owner before the first command to any node."""
    with sync.connect(where):
        pass
    with pytest.raises(FenceRefused, match="echomq:9"), sync.connect(where, wire_version="echomq:9"):
        pass


async def test_traces_lead_from_a_producer_to_the_run(where: str) -> None:
    """The context goes with the row, to whichever primary."""
    kept, worker = Kept(), a_worker()
    async with connect(where) as connector:
        for queue in QUEUES:
            await Jobs(traced(connector, **kept.providers)).enqueue(queue, b"x")
    instrument(worker, **kept.providers)
    async with running(worker, where, options={"burst": True}) as run:
        await run.task
    for queue in QUEUES:
        (sent,), (done,) = kept.spans(f"enqueue {queue}"), kept.spans(f"process {queue}")
        assert sent.context is not None
        assert [link.context.span_id for link in done.links] == [sent.context.span_id]
