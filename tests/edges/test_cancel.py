"""Cancellation on a real server: from the request to what becomes of the job, heard at once or told by the keeper."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.cancel import REASON_LIMIT, Cancel, Request, read_request
from echomq_worker.connector import Connector, connect
from echomq_worker.errors import InvalidArgument, InvalidId, InvalidQueueName, Locked
from echomq_worker.events import Event, Events
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.worker import Worker
from tests.support.keyspace import keyspace_of
from tests.support.running import running
from tests.support.valkey import OwnServer, ValkeyServer, raw_client
from tests.support.waiting import never_ends, wait_until, works_for

ROW = "emq:{a}:job:"


class Hands:
    """A handler's jobs: who has begun, and when each was told to end."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.told: dict[str, float] = {}

    async def until_cancelled(self, job: Job) -> None:
        """A handler that waits to be cancelled, and says when it was."""
        self.jobs.append(job)
        try:
            await never_ends()
        except asyncio.CancelledError:
            self.told[job.id] = time.monotonic()
            raise

    async def asking(self, job: Job) -> None:
        """A handler that asks now and then."""
        self.jobs.append(job)
        while True:
            await works_for(2)
            job.check_cancelled()


@asynccontextmanager
async def at_work(worker: Worker, url: str, hands: Hands, count: int = 1, **changes: Any) -> AsyncIterator[Connector]:
    """A worker with `count` jobs of queue `a` in hand."""
    async with connect(url) as connector, running(worker, url, **changes):
        await Jobs(connector).enqueue_many("a", [b"x"] * count)
        await wait_until(lambda: len(hands.jobs) == count, f"{count} jobs run")
        yield connector


async def dead(raw: Redis, id: str) -> dict[str, str]:
    """The row of a job, once it is dead."""

    async def is_dead() -> bool:
        return await raw.zscore("emq:{a}:dead", id) is not None

    await wait_until(is_dead, "it is dead")
    row: Any = (await keyspace_of(raw))[ROW + id]
    return dict(row)


async def test_a_removal_is_told_to_those_who_listen(url: str) -> None:
    """A job that nobody ran has no worker that would publish its end."""
    async with connect(url) as connector, Events(connector).subscribe("a") as stream:
        jobs = Jobs(connector)
        flat, later = await jobs.enqueue("a", b"x"), await jobs.enqueue_in("a", b"x", 60_000)

        answers = [await Cancel(connector).request("a", one.id, "no longer wanted") for one in (flat, later)]
        gone = await Cancel(connector).request("a", flat.id, "no longer wanted")

        told = [await anext(stream), await anext(stream)]
        await connector.call("PUBLISH", "emq:{a}:events", '{"event":"last"}')
        assert (await anext(stream)).name == "last"
    assert (answers, gone) == (["removed", "removed"], "gone")
    said = {"error": "cancelled: no longer wanted"}
    assert told == [Event("a", "removed", one.id, said) for one in (flat, later)]


async def test_a_server_that_refuses_events_removes_the_job_all_the_same(
    own_server: Callable[..., ValkeyServer],
) -> None:
    """The answer is `removed`: whoever asked again would hear `gone`."""
    server = own_server()
    admin: Any = server.admin
    admin.execute_command("ACL", "SETUSER", "mute", "on", ">pw", "~*", "&emq:{a}:cancel", "+@all")
    async with connect(f"redis://mute:pw@127.0.0.1:{server.port}/0") as connector:
        job = await Jobs(connector).enqueue("a", b"x")

        assert await Cancel(connector).request("a", job.id, "why") == "removed"
        assert await Jobs(connector).get("a", job.id) is None


# ------------------------------------------------------------------------------------------------ what it means


async def test_a_cancellable_handler_is_cancelled_and_its_job_dead(url: str, raw: Redis) -> None:
    """With the request's reason, without a retry, though attempts are left; nothing of it stays in hand."""
    worker, hands = Worker(), Hands()
    worker.handler("a", cancellable=True, max_attempts=9)(hands.until_cancelled)

    async with at_work(worker, url, hands) as connector:
        (job,) = hands.jobs
        assert await Cancel(connector).request("a", job.id, "no longer wanted") == "asked"
        row = await dead(raw, job.id)

    assert (row["last_error"], row["failures"], row["attempts"]) == ("cancelled: no longer wanted", "1", "1")
    assert (job.cancelled, job.cancel_reason) == (True, "cancelled: no longer wanted")
    assert not await raw.exists("emq:{a}:active", "emq:{a}:schedule", f"{ROW}{job.id}:lock")


async def test_other_handlers_are_only_told(url: str, raw: Redis) -> None:
    """A coroutine that does not ask runs on, and what it completes counts as done."""
    worker, hands, gate = Worker(), Hands(), asyncio.Event()

    @worker.handler("a")
    async def finish(job: Job) -> None:
        hands.jobs.append(job)
        await gate.wait()

    async with at_work(worker, url, hands) as connector:
        (job,) = hands.jobs
        assert await Cancel(connector).request("a", job.id, "late") == "asked"
        await wait_until(lambda: job.cancelled, "it is told")
        gate.set()
        await wait_until(lambda: raw.hget("emq:{a}:metrics:completed", "count"), "it is done")

    assert not await raw.exists(ROW + job.id, "emq:{a}:dead")


async def test_a_coroutine_that_asks_ends(url: str, raw: Redis) -> None:
    """`check_cancelled` raises, and the job is dead with the reason."""
    worker, hands = Worker(), Hands()
    worker.handler("a")(hands.asking)

    async with at_work(worker, url, hands) as connector:
        await Cancel(connector).request("a", hands.jobs[0].id, "why")
        assert (await dead(raw, hands.jobs[0].id))["last_error"] == "cancelled: why"


async def test_a_plain_function_that_asks_ends(url: str, raw: Redis) -> None:
    """In its thread."""
    worker, hands = Worker(), Hands()

    @worker.handler("a", cancellable=True)
    def work(job: Job) -> None:
        hands.jobs.append(job)
        while True:
            threading.Event().wait(0.002)
            job.check_cancelled()

    async with at_work(worker, url, hands) as connector:
        await Cancel(connector).request("a", hands.jobs[0].id, "why")
        assert (await dead(raw, hands.jobs[0].id))["last_error"] == "cancelled: why"


async def test_whatever_a_cancelled_handler_raises_is_its_end(url: str, raw: Redis) -> None:
    """An error of its own, or a wish to come back: dead with the request's reason all the same."""
    worker, hands = Worker(), Hands()

    @worker.handler("a", cancellable=True)
    async def work(job: Job) -> None:
        hands.jobs.append(job)
        try:
            await never_ends()
        except asyncio.CancelledError:
            raise OSError("while leaving") from None

    async with at_work(worker, url, hands) as connector:
        await Cancel(connector).request("a", hands.jobs[0].id, "why")
        assert (await dead(raw, hands.jobs[0].id))["last_error"] == "cancelled: why"


async def test_a_job_that_waits_for_a_slot_never_starts(url: str, raw: Redis) -> None:
    """Of a queue: removed. No handler sees it."""
    worker, hands = Worker(), Hands()
    worker.handler("a", concurrency=1, cancellable=True)(hands.until_cancelled)

    async with at_work(worker, url, hands) as connector:
        receipt = await Jobs(connector).enqueue("a", b"later")
        assert await Cancel(connector).request("a", receipt.id, "why") == "removed"
        await Cancel(connector).request("a", hands.jobs[0].id, "why")
        await dead(raw, hands.jobs[0].id)

    assert len(hands.jobs) == 1
    assert not await raw.exists(ROW + receipt.id, "emq:{a}:pending")


async def test_a_request_that_comes_with_a_stop_is_not_forgotten(url: str, raw: Redis) -> None:
    """The handler asks for nothing and is cancelled at the end of the grace: dead, and not given back."""
    worker, hands = Worker(), Hands()
    worker.handler("a")(hands.until_cancelled)

    async with at_work(worker, url, hands, grace_ms=50) as connector:
        await Cancel(connector).request("a", hands.jobs[0].id, "why")
        await wait_until(lambda: hands.jobs[0].cancelled, "it is told")

    assert (await dead(raw, hands.jobs[0].id))["last_error"] == "cancelled: why"


# ------------------------------------------------------------------------------------------------ how soon


async def test_a_request_reaches_its_handler_within_50_ms(url: str, raw: Redis) -> None:
    """Nine in ten of them, where it is heard, from before the request is sent; and none waits for the keeper."""
    worker, hands, count = Worker(), Hands(), 100
    worker.handler("a", concurrency=count, cancellable=True)(hands.until_cancelled)
    asked: dict[str, float] = {}

    async with at_work(worker, url, hands, count, lease_ms=60_000) as connector:
        for job in hands.jobs:
            asked[job.id] = time.monotonic()
            await Cancel(connector).request("a", job.id, "why")
        await wait_until(lambda: len(hands.told) == count, "all are told")

    late = sorted(hands.told[id] - at for id, at in asked.items())
    assert late[count * 9 // 10 - 1] < 0.05, f"slowest: {late[-12:]}"
    assert late[-1] < 10


async def test_a_request_that_is_not_heard_arrives_within_half_a_lease(url: str, raw: Redis) -> None:
    """With the keeper's next extension, though nobody listens."""
    worker, hands = Worker(), Hands()
    worker.handler("a", cancellable=True)(hands.until_cancelled)
    lease_ms = 3_000

    async with at_work(worker, url, hands, lease_ms=lease_ms):
        (job,) = hands.jobs
        # As the script writes it, without the message.
        asked = time.monotonic()
        await raw.hset(ROW + job.id, "cancel", "why")
        assert (await dead(raw, job.id))["last_error"] == "cancelled: why"

    assert hands.told[job.id] - asked < lease_ms / 2 / 1000 + 1.2


async def test_a_listener_whose_connection_went_hears_again(url: str, raw: Redis) -> None:
    """On a new one, within a beat or two, and asks about what it has in hand: nobody hears what came before."""
    worker, hands = Worker(), Hands()
    worker.handler("a", cancellable=True, concurrency=3)(hands.until_cancelled)

    async with at_work(worker, url, hands, 3, lease_ms=600_000) as connector:
        first, missed = hands.jobs[0].id, hands.jobs[2].id
        # As the script writes it, without the message.
        await raw.hset(ROW + missed, "cancel", "missed")
        await raw.client_kill_filter(_type="pubsub")
        assert (await dead(raw, missed))["last_error"] == "cancelled: missed"

        async def heard() -> bool:
            return dict(await raw.pubsub_numsub("emq:{a}:cancel")) == {b"emq:{a}:cancel": 1}

        await wait_until(heard, "the channel has a listener again")
        await Cancel(connector).request("a", first, "why")
        await dead(raw, first)
        assert not hands.jobs[1].cancelled


async def test_one_connection_hears_for_all_queues(url: str, raw: Redis, server: ValkeyServer) -> None:
    """Of a process; a message that is no request is passed over."""
    worker, hands = Worker(), Hands()
    for queue in "abc":
        worker.handler(queue, cancellable=True)(hands.until_cancelled)

    async with connect(url) as connector, running(worker, url):
        ids = [(await Jobs(connector).enqueue(queue, b"x")).id for queue in "abc"]
        await wait_until(lambda: len(hands.jobs) == 3, "they run")
        names = [client["name"] for client in await raw.client_list()]
        assert names.count("echomq-worker:cancel") == 1
        for noise in (b"", b"{", b"[]", b'{"id": 1, "reason": "x"}', b'{"id": "JOB"}'):
            await raw.publish("emq:{a}:cancel", noise)
        for queue, id in zip("abc", ids, strict=True):
            assert await Cancel(connector).request(queue, id, "why") == "asked"
        await wait_until(lambda: set(hands.told) == set(ids), "all are told")


async def test_a_server_that_refuses_the_channel_does_not_end_the_worker(
    own_server: OwnServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is warned about, once; requests come with the extension."""
    server, worker, hands = own_server(), Worker(), Hands()
    server.admin.acl_setuser("mute", enabled=True, nopass=True, keys=["*"], categories=["+@all"], reset=True)
    worker.handler("a", cancellable=True)(hands.until_cancelled)

    async with (
        raw_client(server.url) as raw,
        at_work(worker, f"redis://mute:x@127.0.0.1:{server.port}/0", hands, lease_ms=1_000) as connector,
    ):
        assert await Cancel(connector).request("a", hands.jobs[0].id, "why") == "asked"
        assert (await dead(raw, hands.jobs[0].id))["last_error"] == "cancelled: why"

    assert sum("cancel channel refused" in line.message for line in caplog.records) == 1


# ------------------------------------------------------------------------------------------------ the mark, the guards


async def test_a_job_that_is_kept_cannot_be_removed(url: str, raw: Redis) -> None:
    """The keeper has marked it; afterwards the mark is gone with the row."""
    worker, gate, began = Worker(), asyncio.Event(), list[Job]()

    @worker.handler("a")
    async def work(job: Job) -> None:
        began.append(job)
        await gate.wait()

    async with connect(url) as connector, running(worker, url):
        jobs = Jobs(connector)
        id = (await jobs.enqueue("a", b"x")).id
        await wait_until(lambda: raw.exists(f"{ROW}{id}:lock"), "the keeper has marked it")
        # Without the lease, so that the mark alone protects it.
        await raw.zadd("emq:{a}:active", {id: 1}, xx=True)
        with pytest.raises(Locked):
            await jobs.remove_job("a", id)
        gate.set()
        await wait_until(lambda: raw.hget("emq:{a}:metrics:completed", "count"), "it is done")

    assert not [key for key in await keyspace_of(raw) if ":job:" in key]


async def test_a_bad_request_is_refused_before_it_is_sent(url: str) -> None:
    """Queue, id and reason; an id without a job is no error."""
    async with connect(url) as connector:
        cancel = Cancel(connector)
        with pytest.raises(InvalidQueueName):
            await cancel.request("no queue", "JOB0KHTOWnGLuC", "why")
        with pytest.raises(InvalidId):
            await cancel.request("a", "JOB", "why")
        for reason in ("", " \n", None, b"why"):
            with pytest.raises(InvalidArgument, match="reason"):
                await cancel.request("a", "JOB0KHTOWnGLuC", reason)  # type: ignore[arg-type]  # the test
        assert await cancel.request("a", "JOB0KHTOWnGLuC", "why") == "gone"


async def test_a_reason_is_one_line_of_a_bounded_length(url: str, raw: Redis) -> None:
    """As `last_error` has it: controls gone, cut."""
    id = "JOB0KHTOWnGLuC"
    await raw.hset(ROW + id, mapping={"state": "active", "attempts": "1", "payload": "x"})
    await raw.zadd("emq:{a}:active", {id: 4_000_000_000_000})
    async with connect(url) as connector:
        await Cancel(connector).request("a", id, "a\nb\x1b[31m" + "x" * 2_000)

    row: Any = (await keyspace_of(raw))[ROW + id]
    kept = row["cancel"]
    assert (kept.isprintable(), len(kept), kept[:4]) == (True, REASON_LIMIT, "a b\N{REPLACEMENT CHARACTER}")


def test_what_a_message_asks_for() -> None:
    """Id and reason; anything else is no request."""
    assert read_request(b'{"id":"JOB1","reason":"a\\nb","more":1}') == Request("JOB1", "a b")
    bad = (b"\xff", b"null", b'"x"', b'{"id":"JOB1"}', b'{"reason":"x"}', b"[" * 100_000)
    assert [read_request(data) for data in bad] == [None] * 6
