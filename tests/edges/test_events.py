"""Events on a real server: what a worker publishes, what a stream hears, and what both do while the server is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from echomq_worker.clock import SystemClock
from echomq_worker.codec import event_text
from echomq_worker.connector import Connector, connect
from echomq_worker.errors import (
    ConnectionLost,
    EchoMQError,
    FenceRefused,
    InvalidArgument,
    InvalidQueueName,
    Unreachable,
)
from echomq_worker.events import Event, Events, Stream, read_event
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.keyspace import Keys
from echomq_worker.publisher import Publisher
from echomq_worker.subscription import Subscription
from echomq_worker.verdict import Delay, Reject
from echomq_worker.worker import Worker
from tests.support.proxy import Proxy
from tests.support.running import quick, running
from tests.support.stations import Lines
from tests.support.valkey import OwnServer, ValkeyServer
from tests.support.waiting import wait_until

CHANNEL = "emq:{a}:events"


@asynccontextmanager
async def hearing(url: str, *queues: str, **options: Any) -> AsyncIterator[tuple[Connector, Stream]]:
    """A connector, and a stream of the queues."""
    async with connect(url, **options) as connector, Events(connector).subscribe(*queues or ("a",)) as stream:
        yield connector, stream


async def next_of(stream: Stream, count: int = 1) -> list[Event]:
    """The next events."""
    async with asyncio.timeout(30):
        return [await anext(stream) for _ in range(count)]


# ------------------------------------------------------------------------------------------------ what a worker says


async def test_what_becomes_of_a_job_is_told(url: str) -> None:
    """Each verdict once the server has answered it, with values that are JSON strings."""
    worker = Worker()

    @worker.handler("a", max_attempts=2)
    async def work(job: Job) -> None:
        if job.payload == b"fails":
            raise ValueError('said "no"')
        if job.payload == b"waits" and job.attempts == 1:
            raise Delay(0)
        if job.payload == b"rejected":
            raise Reject("never")

    said: dict[str, list[Event]] = {}
    async with hearing(url) as (connector, stream), running(worker, url):
        jobs = Jobs(connector)
        ids = {name: (await jobs.enqueue("a", name)).id for name in ("done", "fails", "waits", "rejected")}
        for event in await next_of(stream, 6):
            said.setdefault(event.job, []).append(event)

    told = {name: [(event.name, dict(event.fields)) for event in said[id]] for name, id in ids.items()}
    error = {"error": 'ValueError: said "no"'}
    assert told == {
        "done": [("completed", {"attempts": "1"})],
        "fails": [
            ("scheduled", {"attempts": "1", "failures": "1", **error}),
            ("dead", {"attempts": "2", "failures": "2", **error}),
        ],
        "waits": [("delayed", {"attempts": "1"}), ("completed", {"attempts": "2"})],
        "rejected": [("dead", {"attempts": "1", "failures": "1", "error": "never"})],
    }


async def test_the_row_is_written_before_the_event(url: str) -> None:
    """Who hears of a completion finds no row any more; who hears of a death finds it with its reason.

    Report 118 (sidekiq/sidekiq#4859).
    """
    worker = Worker()

    @worker.handler("a", max_attempts=1)
    async def work(job: Job) -> None:
        if job.payload == b"fails":
            raise ValueError("x")

    async with hearing(url) as (connector, stream), running(worker, url):
        jobs = Jobs(connector)
        for payload in (b"done", b"fails"):
            id = (await jobs.enqueue("a", payload)).id
            (event,) = await next_of(stream)
            view = await jobs.get("a", id)
            assert (event.name, None if view is None else view.last_error) in {
                ("completed", None),
                ("dead", "ValueError: x"),
            }


async def test_a_buried_and_a_stalled_job_are_told(url: str, raw: Redis) -> None:
    """By the claim that gave it up, or by the sweep where the worker counts lost leases."""
    worker = Worker()

    @worker.handler("a")
    async def work(job: Job) -> None: ...

    ids = ["JOB00000000001", "JOB00000000002", "JOB00000000003"]
    fields: list[dict[str, str]] = [{"cancel": "why"}, {"stalled": "1"}, {}]
    for id, more in zip(ids, fields, strict=True):
        mapping: Any = {"state": "active", "attempts": "1", "payload": "x", **more}
        await raw.hset(f"emq:{{a}}:job:{id}", mapping=mapping)
    await raw.zadd("emq:{a}:pending", {ids[0]: 0})
    await raw.zadd("emq:{a}:active", {ids[1]: 1, ids[2]: 1})
    async with hearing(url) as (_, stream), running(worker, url, stalled=2):
        told = {(event.name, event.job, event.fields.get("error")) for event in await next_of(stream, 4)}

    assert told == {
        ("dead", ids[0], "cancelled: why"),
        ("dead", ids[1], "stalled"),
        ("stalled", ids[2], None),
        ("completed", ids[2], None),
    }


async def test_progress_is_heard_in_the_same_way(url: str) -> None:
    """What a handler says of itself comes by the same channel."""
    worker = Worker()

    @worker.handler("a")
    async def work(job: Job) -> None:
        await job.progress(50)

    async with hearing(url) as (connector, stream), running(worker, url):
        id = (await Jobs(connector).enqueue("a", b"x")).id
        first, second = await next_of(stream, 2)

    assert first == Event("a", "progress", id, {"progress": "50"})
    assert second.name == "completed"


async def test_events_can_be_turned_off(url: str, server: ValkeyServer) -> None:
    """Then nothing is published."""
    worker = Worker()

    @worker.handler("a")
    async def work(job: Job) -> None: ...

    server.admin.config_resetstat()
    async with connect(url) as connector:
        await Jobs(connector).enqueue_many("a", [b"x"] * 10)
        async with running(worker, url, events=False):
            await wait_until(lambda: server.admin.hget("emq:{a}:metrics:completed", "count") == b"10", "all are done")
    stats: Any = server.admin.info("commandstats")
    assert "cmdstat_publish" not in stats


async def test_events_cost_no_round_trip(url: str, server: ValkeyServer) -> None:
    """They go out with other commands, many at a time: the server reads the socket no more often than without."""
    reads = []
    for events in (False, True):
        worker, done = Worker(), 0

        @worker.handler("a", concurrency=50)
        async def work(job: Job) -> None:
            nonlocal done
            done += 1

        async with connect(url) as connector:
            await Jobs(connector).enqueue_many("a", [b"x"] * 2_000)
            server.admin.config_resetstat()
            # Without beats, of which a slow machine would have more.
            settings = quick(url, events=events, pump=False, beat_ms=60_000, lease_ms=120_000)
            report = await worker.run(settings, burst=True, signals=False)
        info: Any = server.admin.info("stats")
        reads.append(info["total_reads_processed"])
        assert report.completed == done == 2_000
    without, with_events = reads
    assert with_events < without * 1.5 + 20, reads


async def test_a_server_that_refuses_the_channel_stops_no_worker(
    own_server: OwnServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is warned about, once."""
    server, worker = own_server(), Worker()
    server.admin.acl_setuser("mute", enabled=True, nopass=True, keys=["*"], categories=["+@all"], reset=True)

    @worker.handler("a", concurrency=1)
    async def work(job: Job) -> None: ...

    url = f"redis://mute:x@127.0.0.1:{server.port}/0"
    async with connect(url) as connector, running(worker, url):
        await Jobs(connector).enqueue_many("a", [b"x"] * 5)
        await wait_until(lambda: server.admin.hget("emq:{a}:metrics:completed", "count") == b"5", "all are done")

    assert sum("events refused" in line.message for line in caplog.records) == 1


async def test_events_whose_fate_nobody_knows_are_counted() -> None:
    """They left, and the connection went before the answer came: each of them may have been heard by nobody."""
    answer = asyncio.get_running_loop().create_future()

    class Connection:
        def publish(self, _channel: str, _texts: object) -> object:
            return answer

    publisher = Publisher(cast("Connector", Connection()), Keys("a"), log=Lines())
    publisher.stalled(["JOB1", "JOB2"])
    answer.set_result(ConnectionLost("cut"))
    await asyncio.sleep(0)

    assert publisher.dropped == 2


# ------------------------------------------------------------------------------------------------ what a stream hears


async def test_a_stream_survives_a_lost_connection(url: str, raw: Redis) -> None:
    """It goes on by itself, and says that something may be missing."""
    async with hearing(url) as (_, stream):
        await raw.publish(CHANNEL, event_text("one", "JOB1"))
        assert [event.name for event in await next_of(stream)] == ["one"]
        for n in (1, 2):
            await raw.client_kill_filter(_type="pubsub")
            coming = asyncio.ensure_future(next_of(stream))
            await wait_until(lambda: _heard(raw), "it is subscribed again")
            await raw.publish(CHANNEL, event_text("two", "JOB2"))
            assert [event.name for event in await coming] == ["two"]
            assert stream.gaps == n


async def _heard(raw: Redis) -> bool:
    return dict(await raw.pubsub_numsub(CHANNEL)) == {CHANNEL.encode(): 1}


async def test_a_stream_waits_for_a_server_that_is_away(url: str, raw: Redis, server: ValkeyServer) -> None:
    """However often it cannot connect."""
    async with Proxy(server.port) as proxy, hearing(proxy.url) as (_, stream):
        opened = proxy.opened
        await proxy.refuse()
        proxy.reset()
        coming = asyncio.ensure_future(next_of(stream))
        await asyncio.wait({coming}, timeout=0.5)
        assert not coming.done()
        await proxy.accept()
        await wait_until(lambda: _heard(raw), "it is subscribed again")
        await raw.publish(CHANNEL, event_text("back", ""))
        assert await coming == [Event("a", "back", "", {})]
        assert proxy.opened > opened


async def test_a_stream_that_never_connected_says_so(url: str, raw: Redis) -> None:
    """And a wrong deployment at any time."""
    async with connect(url) as connector:
        stream = Events(connector).subscribe("a")
        await raw.set("{emq}:version", "echomq:9")
        with pytest.raises(FenceRefused):
            await anext(stream)
    nowhere = Connector("redis://127.0.0.1:1/0")
    with pytest.raises(Unreachable):
        await anext(Events(nowhere).subscribe("a"))
    await nowhere.aclose()


class _ClosedWhileItConnects:
    """A subscription that is lost, and closed by somebody while it is made again."""

    closed = False
    opened = 0

    async def open(self, _channels: list[str]) -> None:
        self.opened += 1
        if self.opened == 2:
            self.closed = True
            raise EchoMQError("subscription: it is closed")

    async def get(self) -> object:
        raise ConnectionLost("cut")


async def test_a_stream_that_is_closed_while_it_connects_again_ends() -> None:
    """As at any other time: who iterates did nothing wrong."""
    gone = _ClosedWhileItConnects()
    stream = Stream(cast("Subscription", gone), [Keys("a")], clock=SystemClock())

    assert [event async for event in stream] == []
    assert gone.opened == 2


async def test_several_queues_in_one_stream(url: str, raw: Redis) -> None:
    """Over one connection, each event with its queue; without `async with` it connects when it is first asked."""
    async with connect(url) as connector:
        stream = Events(connector).subscribe("a", "b", "a")
        coming = asyncio.ensure_future(next_of(stream, 2))
        await wait_until(lambda: _heard(raw), "it is subscribed")
        await raw.publish("emq:{b}:events", event_text("one", "JOB1"))
        await raw.publish(CHANNEL, event_text("two", "JOB2", error="x"))
        assert await coming == [Event("b", "one", "JOB1", {}), Event("a", "two", "JOB2", {"error": "x"})]
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_what_is_no_event_is_passed_over(url: str, raw: Redis) -> None:
    """Whoever published it."""
    async with hearing(url) as (_, stream):
        for noise in (b"", b"{", b"[]", b"1", b'"event"', b'{"event":1}', b'{"job":"JOB1"}', b"[" * 100_000):
            await raw.publish(CHANNEL, noise)
        await raw.publish(CHANNEL, event_text("one", "JOB1"))
        assert await next_of(stream) == [Event("a", "one", "JOB1", {})]


async def test_misuse_is_refused(url: str) -> None:
    """Before anything is opened."""
    async with connect(url) as connector:
        with pytest.raises(InvalidArgument, match="no queue"):
            Events(connector).subscribe()
        with pytest.raises(InvalidQueueName):
            Events(connector).subscribe("no queue")


def test_a_foreign_event_keeps_its_values_as_text() -> None:
    """What is no text stands as its JSON."""
    data = json.dumps({"event": "active", "job": "JOB1", "n": 5, "more": {"a": [1]}, "none": None}).encode()
    assert read_event("a", data) == Event("a", "active", "JOB1", {"n": "5", "more": '{"a": [1]}', "none": "null"})
