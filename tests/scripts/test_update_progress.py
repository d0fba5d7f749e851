"""update_progress: the row's progress and one event; nothing for a row that is gone."""

from __future__ import annotations

import json

import pytest

from echomq_worker.connector import Connector
from echomq_worker.errors import ServerError
from echomq_worker.script import evaluate
from tests.support.plain import Queue, job, row
from tests.support.waiting import wait_until

ROW = f"job:{job(1)}"


async def update_progress(wire: Connector, queue: Queue, progress: str | bytes) -> int:
    """The verb as any host sends it."""
    reply: int = await evaluate(wire, "update_progress", [queue.keys.job(job(1))], [progress, job(1), queue.keys.base])
    return reply


@pytest.mark.parametrize("progress", ["50", "", '{"done":1}', 'a "quoted"\\ \n é'])
async def test_progress_is_written_and_published(wire: Connector, queue: Queue, progress: str) -> None:
    """1; the row has it beside what it had; listeners get one JSON object in which progress is a string."""
    await queue.put({ROW: row("active", 2)})
    async with queue.raw.pubsub() as listener:
        await listener.subscribe(queue.keys.events)
        await wait_until(lambda: listener.get_message(timeout=0.01), "the subscription stands")

        assert await update_progress(wire, queue, progress) == 1

        message = await wait_until(lambda: listener.get_message(timeout=0.01), "the event arrives")
        assert json.loads(message["data"]) == {"event": "progress", "job": job(1), "progress": progress}
        assert await listener.get_message(timeout=0.01) is None
    assert await queue.state() == {ROW: row("active", 2, progress=progress)}


async def test_the_event_is_the_protocol_s_byte_for_byte(wire: Connector, queue: Queue) -> None:
    """What clients of other runtimes match on."""
    await queue.put({ROW: row("active", 2)})
    async with queue.raw.pubsub() as listener:
        await listener.subscribe(queue.keys.events)
        await wait_until(lambda: listener.get_message(timeout=0.01), "the subscription stands")
        await update_progress(wire, queue, "50")
        message = await wait_until(lambda: listener.get_message(timeout=0.01), "the event arrives")

    assert message["data"] == b'{"event":"progress","job":"%s","progress":"50"}' % job(1).encode()


async def test_a_row_that_is_gone_is_not_made_anew(wire: Connector, queue: Queue) -> None:
    """-1, no key, no event."""
    async with queue.raw.pubsub() as listener:
        await listener.subscribe(queue.keys.events)
        await wait_until(lambda: listener.get_message(timeout=0.01), "the subscription stands")

        assert await update_progress(wire, queue, "50") == -1

        assert await listener.get_message(timeout=0.05) is None
    assert await queue.state() == {}


@pytest.mark.leaves_keys("a row of a foreign type is what is refused")
async def test_a_key_of_another_type_is_left_alone(wire: Connector, queue: Queue) -> None:
    """The server's error, nothing written."""
    await queue.raw.set(queue.keys.job(job(1)), "text")

    with pytest.raises(ServerError, match="WRONGTYPE"):
        await update_progress(wire, queue, "50")

    assert await queue.raw.get(queue.keys.job(job(1))) == b"text"
