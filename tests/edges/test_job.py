"""Job: what a handler reads of it, and its verbs on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel
from redis.asyncio import Redis

from echomq_worker.connector import Connector, connect
from echomq_worker.errors import ConfigError, InvalidArgument, InvalidId, Unreadable, WireError
from echomq_worker.identity import EPOCH_MS, encode
from echomq_worker.job import LEASE_LOST, SHUTDOWN, TIMEOUT, Job, JobCancelled, JobContext, cancel
from echomq_worker.keyspace import Keys
from tests.support.plain import FAR_MS, Queue, Within, job, row
from tests.support.stations import job_of
from tests.support.valkey import free_port
from tests.support.waiting import wait_until

ID = job(1)
ROW = f"job:{ID}"
LOGS = f"{ROW}:logs"


@pytest.fixture
async def wire(url: str) -> AsyncIterator[Connector]:
    """A connector on the session's server."""
    async with connect(url) as connector:
        yield connector


@pytest.fixture
def queue(raw: Redis) -> Queue:
    """The state of queue `q`."""
    return Queue(raw)


def in_hand(wire: Connector, *, attempts: int = 2, held: str = "2:ab", **options: Any) -> Job:
    """Job 1 of queue `q` as a claim hands it out."""
    context = JobContext(Keys("q"), wire, max_attempts=options.pop("max_attempts", 3), **options)
    return Job(context, ID, b"secret", attempts, 0, None, held)


# ---------------------------------------------------------------------------------------------- what it tells


async def test_what_a_job_tells_of_itself() -> None:
    """Id, queue, payload, claims, failures, lane; when it was minted; whether a failure would be the last."""
    context = JobContext(Keys("emails"), None, max_attempts=3)  # type: ignore[arg-type]  # nothing is sent here
    minted = Job(context, encode("JOB", 5_000 << 22), b"p", 7, 1, "GRP00000000001", "7:ab")

    assert (minted.queue, minted.payload, minted.group) == ("emails", b"p", "GRP00000000001")
    assert (minted.attempts, minted.token, minted.attempt, minted.failures) == (7, 7, 7, 1)
    assert minted.minted_at == EPOCH_MS + 5_000
    assert minted.max_attempts == 3
    assert [Job(context, ID, b"", 9, failures).last_attempt for failures in range(4)] == [False, False, True, True]
    assert not Job(context, ID, b"", 1).hollow
    assert Job(context, ID, None, 1).hollow


async def test_a_job_can_be_shown_without_its_payload() -> None:
    """Its repr ends up in logs and traces."""
    context = JobContext(Keys("emails"), None, max_attempts=3)  # type: ignore[arg-type]  # nothing is sent here
    shown = repr(Job(context, ID, b"secret", 2))

    assert shown == f"<Job {ID} of emails, attempt 2>"


async def test_a_job_without_a_branded_id_has_no_birthday() -> None:
    """A foreign id is refused where it is looked at."""
    context = JobContext(Keys("emails"), None, max_attempts=3)  # type: ignore[arg-type]  # nothing is sent here
    with pytest.raises(InvalidId):
        _ = Job(context, "JOB", b"", 1).minted_at


async def test_cancellation_is_told_and_the_stronger_reason_stays() -> None:
    """Unmarked: nothing happens; marked: the reason, and check_cancelled raises."""
    context = JobContext(Keys("emails"), None, max_attempts=3)  # type: ignore[arg-type]  # nothing is sent here
    one = Job(context, ID, b"", 1)

    one.check_cancelled()
    assert (one.cancelled, one.cancel_reason) == (False, None)
    for reason, expected in [
        (SHUTDOWN, SHUTDOWN),
        (TIMEOUT, SHUTDOWN),
        (LEASE_LOST, LEASE_LOST),
        (SHUTDOWN, LEASE_LOST),
    ]:
        cancel(one, reason)
        assert (one.cancelled, one.cancel_reason) == (True, expected)
    with pytest.raises(JobCancelled, match="lease lost"):
        one.check_cancelled()


# ---------------------------------------------------------------------------------------------- progress


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (50, "50"),
        (0.5, "0.5"),
        ("half", "half"),
        ({"done": 1, "of": [2]}, '{"done":1,"of":[2]}'),
        (None, "null"),
        ("é", "é"),
    ],
)
async def test_progress_is_on_the_row_and_published(wire: Connector, queue: Queue, value: object, text: str) -> None:
    """Texts as they are, anything else as JSON; listeners get it as a JSON string."""
    await queue.put({ROW: row("active", 2)})
    async with queue.raw.pubsub() as listener:
        await listener.subscribe(queue.keys.events)
        await wait_until(lambda: listener.get_message(timeout=0.01), "the subscription stands")

        assert await in_hand(wire).progress(value)

        message = await wait_until(lambda: listener.get_message(timeout=0.01), "the event arrives")
    assert json.loads(message["data"]) == {"event": "progress", "job": ID, "progress": text}
    assert await queue.state() == {ROW: row("active", 2, progress=text)}


async def test_a_job_that_is_gone_is_not_made_anew(wire: Connector, queue: Queue) -> None:
    """Progress, a log line, an extension of a completed or removed job: False, and no key."""
    one = in_hand(wire)

    assert not await one.progress(50)
    assert not await one.log("late")
    assert not await one.extend(1_000)

    assert await queue.state() == {}


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"bytes", "\ud800"])
async def test_progress_without_a_form_is_refused(wire: Connector, queue: Queue, value: object) -> None:
    """One line that does not show the value; nothing is sent."""
    await queue.put({ROW: row("active", 2)})
    with pytest.raises(InvalidArgument, match=r"^progress: expected [^\n]*$"):
        await in_hand(wire).progress(value)

    assert await queue.state() == {ROW: row("active", 2)}


async def test_progress_that_refers_to_itself_is_refused(wire: Connector) -> None:
    """Also one that is nested without an end."""
    endless: list[object] = []
    endless.append(endless)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]

    for value in (endless, deep):
        with pytest.raises(InvalidArgument, match="progress: expected a text or a JSON value, got list"):
            await in_hand(wire).progress(value)


# ---------------------------------------------------------------------------------------------- log


async def test_log_lines_are_kept_oldest_first(wire: Connector, queue: Queue) -> None:
    """The newest ones, as many as the context says; None keeps all."""
    await queue.put({ROW: row("active", 2)})
    few, all_ = in_hand(wire, logs_keep=2), in_hand(wire, logs_keep=None)

    for number in range(3):
        assert await few.log(f"line {number}")
    assert await all_.log("line 3")

    assert (await queue.state())[LOGS] == ["line 1", "line 2", "line 3"]


@pytest.mark.parametrize("line", [b"bytes", 5, None, "\ud800"])
async def test_a_log_line_is_text(wire: Connector, queue: Queue, line: Any) -> None:
    """Anything else is refused in one line, nothing is sent."""
    await queue.put({ROW: row("active", 2)})
    with pytest.raises(InvalidArgument, match=r"^log line[^\n]*expected [^\n]*$"):
        await in_hand(wire).log(line)

    assert await queue.state() == {ROW: row("active", 2)}


# ---------------------------------------------------------------------------------------------- extend


async def test_extend_moves_the_deadline_and_never_back(wire: Connector, queue: Queue) -> None:
    """At least that long from now on the server's clock; a longer lease stays."""
    await queue.put({ROW: row("active", 2, held="2:ab"), "active": {ID: 1}})
    one, before = in_hand(wire), await queue.now_ms()

    assert await one.extend(60_000)
    deadline = Within(before + 60_000, await queue.now_ms() + 60_000)
    assert (await queue.state())["active"] == {ID: deadline}
    assert await one.extend(1)
    assert (await queue.state())["active"] == {ID: deadline}


@pytest.mark.parametrize(
    "now",
    [
        {ROW: row("pending", 2), "pending": {ID: 0}},
        {ROW: row("active", 3, held="3:cd"), "active": {ID: FAR_MS}},
        {ROW: row("active", 2, held="2:cd"), "active": {ID: FAR_MS}},
    ],
    ids=["reaped", "claimed again", "removed, enqueued and claimed again"],
)
async def test_a_job_that_is_not_ours_any_more_is_not_extended(
    wire: Connector, queue: Queue, now: dict[str, Any]
) -> None:
    """False, nothing is written: also where another job under the same id has come to the same token."""
    await queue.put(now)

    assert not await in_hand(wire).extend(60_000)

    assert await queue.state() == now


@pytest.mark.parametrize("ms", [0, -1, True, 1.5, "60", None, 2**53])
async def test_extend_takes_positive_milliseconds(wire: Connector, ms: Any) -> None:
    """Anything else is refused in one line."""
    with pytest.raises(InvalidArgument, match=rf"^extend of job {ID}: expected an int of 1\.\.2\^53-1 ms, got [^\n]*$"):
        await in_hand(wire).extend(ms)


# ---------------------------------------------------------------------------------------------- elsewhere


async def test_plain_functions_have_the_verbs_as_well(wire: Connector, queue: Queue) -> None:
    """In a thread they wait for the reply; what is refused is refused there."""
    await queue.put({ROW: row("active", 2, held="2:ab"), "active": {ID: 1}})
    one = in_hand(wire)

    def handler() -> list[bool]:
        with pytest.raises(InvalidArgument):
            one.blocking.extend(0)
        return [one.blocking.progress(50), one.blocking.log("line"), one.blocking.extend(FAR_MS)]

    assert await asyncio.to_thread(handler) == [True, True, True]
    state = await queue.state()
    assert (state[ROW]["progress"], state[LOGS]) == ("50", ["line"])


async def test_waiting_on_the_event_loop_is_refused(wire: Connector) -> None:
    """It would stop the loop that has to answer: one line that says what to write instead."""
    with pytest.raises(ConfigError, match=r"expected `await job\.progress\(\)`"):
        in_hand(wire).blocking.progress(50)


async def test_an_outage_is_the_handlers_to_decide() -> None:
    """A verb that could not be said raises WireError: it is not taken for a job that is gone."""
    connector = Connector(f"redis://127.0.0.1:{free_port()}/0")
    one = in_hand(connector)
    try:
        with pytest.raises(WireError):
            await one.progress(1)
        with pytest.raises(WireError):
            await one.extend(1)
    finally:
        await connector.aclose()


class Email(BaseModel):
    """A payload model."""

    to: str


async def test_a_payload_is_parsed_as_a_parameter_would_be() -> None:
    """By a model, a plain type or JSON; what is none of it is Unreadable, without the payload in its text."""
    one = job_of(payload=b'{"to":"ada"}')
    assert one.parse(Email) == Email(to="ada")
    assert one.parse(dict) == {"to": "ada"}
    assert one.parse(str) == '{"to":"ada"}'
    assert one.parse(bytes) == one.payload
    with pytest.raises(Unreadable) as caught:
        job_of(payload=b'{"secret":"ada"}').parse(Email)
    assert "ada" not in str(caught.value)
    with pytest.raises(ConfigError):
        one.parse(asyncio.Event)
