"""The operator's verbs on one job, as methods of Jobs: what they answer, refuse and leave on the server."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from echomq_worker.connector import Connector
from echomq_worker.errors import EchoMQError, InvalidArgument, InvalidId, InvalidQueueName, Locked, StateRefused
from echomq_worker.jobs import Jobs
from tests.support.control import PARENT, child, waiting
from tests.support.own import flat
from tests.support.plain import FAR_MS, QUEUE, Queue, job, row
from tests.support.waiting import wait_until

ID = job(1)
ROW = f"job:{ID}"


@pytest.fixture
def jobs(wire: Connector) -> Jobs:
    """Jobs over a connector."""
    return Jobs(wire)


@pytest.mark.parametrize(
    ("payload", "written"), [(b"\x00\xff", "\x00\udcff"), ("grün", "grün"), ({"a": [1]}, '{"a":[1]}')]
)
async def test_update_data(jobs: Jobs, queue: Queue, payload: object, written: str) -> None:
    """A payload in every form that enqueue takes."""
    await queue.put(flat(1))

    assert await jobs.update_data(QUEUE, ID, payload)

    assert await queue.state() == {ROW: row(payload=written), "pending": {ID: 0}}


@pytest.mark.parametrize(("value", "written"), [("half", "half"), (50, "50"), ({"n": 1}, '{"n":1}')])
async def test_update_progress(jobs: Jobs, queue: Queue, raw: Redis, value: object, written: str) -> None:
    """On the row, and told to those who listen, as a JSON string whatever it is."""
    await queue.put(flat(1))
    async with raw.pubsub() as heard:
        await heard.subscribe(queue.keys.events)

        async def message() -> Any:
            return await heard.get_message(ignore_subscribe_messages=True)

        assert await heard.get_message(timeout=60) is not None
        assert await jobs.update_progress(QUEUE, ID, value)
        told = await wait_until(message, "the progress is published")

    assert json.loads(told["data"]) == {"event": "progress", "job": ID, "progress": written}
    assert (await queue.state())[ROW] == row(progress=written)


async def test_logs(jobs: Jobs, queue: Queue) -> None:
    """Appended in order, kept to the newest on request, read whole or in pages."""
    await queue.put(flat(1))

    assert [await jobs.add_log(QUEUE, ID, f"line {n}") for n in range(5)] == [1, 2, 3, 4, 5]
    assert await jobs.get_job_logs(QUEUE, ID) == [f"line {n}" for n in range(5)]
    assert await jobs.get_job_logs(QUEUE, ID, limit=2, offset=1) == ["line 1", "line 2"]
    assert await jobs.get_job_logs(QUEUE, ID, offset=9) == []
    assert await jobs.add_log(QUEUE, ID, "zoë", keep=2) == 2

    assert await jobs.get_job_logs(QUEUE, ID) == ["line 4", "zoë"]


async def test_a_log_of_any_bytes_can_be_read(jobs: Jobs, queue: Queue) -> None:
    """Another runtime's line need not be UTF-8."""
    await queue.put(flat(1))
    await queue.raw.rpush(queue.keys.logs(ID), b"\xff")

    assert await jobs.get_job_logs(QUEUE, ID) == ["\ufffd"]


async def test_remove_job(jobs: Jobs, queue: Queue) -> None:
    """True, then False: it is gone."""
    await queue.put(flat(1) | {"de:k": ID})

    assert [await jobs.remove_job(QUEUE, ID, dedup="k"), await jobs.remove_job(QUEUE, ID)] == [True, False]

    assert await queue.state() == {}


async def test_remove_job_refuses_what_is_in_hand(jobs: Jobs, queue: Queue) -> None:
    """Locked, or a flow's child; forced it goes."""
    await queue.put({ROW: row("active", 1), "active": {ID: FAR_MS}})
    await queue.put(waiting(1) | {f"job:{job(2)}": child(), "pending": {job(2): 0}})

    with pytest.raises(Locked):
        await jobs.remove_job(QUEUE, ID)
    with pytest.raises(StateRefused):
        await jobs.remove_job(QUEUE, job(2))
    assert [await jobs.remove_job(QUEUE, id, force=True) for id in (ID, job(2))] == [True, True]

    assert (await queue.state())["dead"] == {PARENT: 0}


async def test_reprocess(jobs: Jobs, queue: Queue) -> None:
    """A dead job runs again; one that is not dead is refused, one that is gone is False; force takes a parent."""
    await queue.put({ROW: row("dead", 3, failures=3), "dead": {ID: 0, job(2): 0}})
    await queue.put({f"job:{job(2)}": row("dead"), f"job:{job(2)}:dependencies": "1"})

    assert await jobs.reprocess(QUEUE, ID)
    with pytest.raises(StateRefused, match="not dead"):
        await jobs.reprocess(QUEUE, ID)
    with pytest.raises(StateRefused, match="children"):
        await jobs.reprocess(QUEUE, job(2))
    assert await jobs.reprocess(QUEUE, job(2), force=True)

    assert not await jobs.reprocess(QUEUE, job(3))
    assert (await queue.state())["pending"] == {ID: 0, job(2): 0}


async def test_what_is_gone_is_told(jobs: Jobs, queue: Queue) -> None:
    """False, None or nothing, and no row is made."""
    assert not await jobs.update_data(QUEUE, ID, b"x")
    assert not await jobs.update_progress(QUEUE, ID, 5)
    assert await jobs.add_log(QUEUE, ID, "line") is None
    assert await jobs.get_job_logs(QUEUE, ID) == []

    assert await queue.state() == {}


Call = Callable[[Jobs], Awaitable[Any]]
BAD: dict[str, tuple[Call, type[EchoMQError]]] = {
    "update_data id": (lambda jobs: jobs.update_data(QUEUE, "JOB1", b"x"), InvalidId),
    "update_data queue": (lambda jobs: jobs.update_data("emq", ID, b"x"), InvalidQueueName),
    "update_data payload": (lambda jobs: jobs.update_data(QUEUE, ID, float("nan")), InvalidArgument),
    "update_progress id": (lambda jobs: jobs.update_progress(QUEUE, "JOB1", 5), InvalidId),
    "update_progress value": (lambda jobs: jobs.update_progress(QUEUE, ID, float("nan")), InvalidArgument),
    "update_progress text": (lambda jobs: jobs.update_progress(QUEUE, ID, "\ud800"), InvalidArgument),
    "add_log id": (lambda jobs: jobs.add_log(QUEUE, "JOB1", "line"), InvalidId),
    # mypy would refuse the call too: it is what a caller without types does.
    "add_log line": (lambda jobs: cast("Any", jobs).add_log(QUEUE, ID, b"line"), InvalidArgument),
    "add_log keep": (lambda jobs: jobs.add_log(QUEUE, ID, "line", keep=0), InvalidArgument),
    "get_job_logs id": (lambda jobs: jobs.get_job_logs(QUEUE, "JOB1"), InvalidId),
    "get_job_logs limit": (lambda jobs: jobs.get_job_logs(QUEUE, ID, limit=0), InvalidArgument),
    "get_job_logs offset": (lambda jobs: jobs.get_job_logs(QUEUE, ID, offset=-1), InvalidArgument),
    "remove_job id": (lambda jobs: jobs.remove_job(QUEUE, "JOB1", force=True), InvalidId),
    "reprocess id": (lambda jobs: jobs.reprocess(QUEUE, "JOB1"), InvalidId),
}


@pytest.mark.parametrize("case", BAD)
async def test_what_is_refused_is_refused_before_the_wire(jobs: Jobs, queue: Queue, case: str) -> None:
    """Each guard with its class; the server is as before."""
    call, refused = BAD[case]
    await queue.put(flat(1))

    with pytest.raises(refused) as caught:
        await call(jobs)

    assert "\n" not in str(caught.value)
    assert await queue.state() == flat(1)
