"""The dashboard's streams: what has changed is told, nothing else; they end with the page and with the dashboard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.web import live
from echomq_worker.web.app import Dashboard
from tests.support.plain import FAR_MS, QUEUE, Queue, job, row
from tests.support.valkey import OwnServer
from tests.support.waiting import wait_until
from tests.support.web import browsing, text_of

ID = job(1)


class Listening:
    """One stream: its status, and the parts that it has told, the newest of each."""

    def __init__(self) -> None:
        self.status = 0
        self.type = ""
        self.messages: list[dict[str, str]] = []
        self.ended = False
        self.closed = asyncio.Event()

    @property
    def parts(self) -> dict[str, str]:
        """The newest text of each part."""
        return {name: text_of(html) for message in self.messages for name, html in message.items()}

    async def receive(self) -> dict[str, Any]:
        """ASGI: the browser says nothing until it goes."""
        await self.closed.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """ASGI."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.type = dict(message["headers"])[b"content-type"].decode()
        else:
            self.messages += [
                json.loads(line.removeprefix("data: "))
                for line in message["body"].decode().splitlines()
                if line.startswith("data: ")
            ]


@asynccontextmanager
async def listening(dash: Dashboard, view: str, query: str = "") -> AsyncIterator[Listening]:
    """A stream that is open; at the end the browser goes."""
    heard = Listening()
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/live/{view}",
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost")],
        "scheme": "http",
        "server": ("localhost", 80),
        "http_version": "1.1",
    }

    async def run() -> None:
        await dash(scope, heard.receive, heard.send)  # type: ignore[arg-type]  # messages are dicts
        heard.ended = True

    task = asyncio.create_task(run())
    try:
        yield heard
    finally:
        heard.closed.set()
        await asyncio.wait_for(task, 20)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look every 20 ms."""
    monkeypatch.setattr(live, "EVERY_MS", 20)
    monkeypatch.setattr("echomq_worker.web.sampler.LOOK_MS", 20)


async def test_what_has_changed_is_told_and_nothing_else(url: str, raw: Redis) -> None:
    """The first message has every part, later ones those that differ; quiet queues say nothing."""
    await Queue(raw).put({"active": {ID: 1.0}, f"job:{ID}": row("active", 1, progress="10 %")})
    async with browsing(url) as browser, listening(browser.dash, "active", f"queue={QUEUE}") as heard:
        await wait_until(lambda: heard.messages, "the first message has come")
        assert heard.status == 200
        assert heard.type.startswith("text/event-stream")
        assert set(heard.messages[0]) == {"head", "active", "trouble"}
        assert "10 %" in heard.parts["active"]
        await raw.hset(Queue(raw).keys.job(ID), "progress", "90 %")
        await wait_until(lambda: "90 %" in heard.parts["active"], "the progress has come")
        assert {name for message in heard.messages[1:] for name in message} == {"active"}


async def test_a_job_that_ends_is_told(url: str, raw: Redis) -> None:
    """From its state to its end, and how many are left in the sets."""
    await Queue(raw).put({"active": {ID: float(FAR_MS)}, f"job:{ID}": row("active", 1)})
    async with browsing(url) as browser, listening(browser.dash, "job", f"queue={QUEUE}&id={ID}") as heard:
        await wait_until(lambda: "active" in heard.parts.get("job", ""), "it is active")
        assert "Active 1" in heard.parts["head"]
        await raw.zrem(Queue(raw).keys.active, ID)
        await raw.delete(Queue(raw).keys.job(ID))
        await wait_until(lambda: "no row any more" in heard.parts["job"], "its end has come")
        await wait_until(lambda: "Active 0" in heard.parts["head"], "it is not counted any more")


async def test_queues_and_plots_move(url: str, raw: Redis) -> None:
    """The list of queues, the numbers and the plots of one."""
    await Queue(raw).put({"pending": {ID: 0}, f"job:{ID}": row()})
    async with (
        browsing(url) as browser,
        listening(browser.dash, "queues") as queues,
        listening(browser.dash, "queue", f"queue={QUEUE}") as queue,
    ):
        await wait_until(lambda: "q 1 0 0 0" in queues.parts.get("queues", ""), "the queue is listed")
        await wait_until(lambda: "Ready 1" in queue.parts.get("tiles", ""), "its numbers are there")
        before = len(queue.messages)
        await wait_until(lambda: any("plots" in message for message in queue.messages[before:]), "a plot has moved")
        await raw.zadd(Queue(raw).keys.pending, {job(2): 0})
        await wait_until(lambda: "Ready 2" in queue.parts["tiles"], "the new number has come")
        await wait_until(lambda: "q 2 0 0 0" in queues.parts["queues"], "in the list, too")


async def test_an_operation_is_followed_to_its_end(url: str, raw: Redis) -> None:
    """How far it is, then that it is done."""
    async with browsing(url) as browser:
        await Queue(raw).put({"dead": {ID: 0}, f"job:{ID}": row("dead")})
        gate = asyncio.Event()

        async def work(progress: Any) -> Any:
            from echomq_worker.dead import Handled

            progress(3, 10)
            await gate.wait()
            return Handled(10, {ID: "EMQSTATE why"})

        operation = browser.dash.operations.start("Requeue", QUEUE, "/back", work)
        assert operation is not None
        async with listening(browser.dash, "operation", f"id={operation.id}") as heard:
            await wait_until(lambda: "3 of 10 so far" in heard.parts.get("operation", ""), "it goes on")
            gate.set()
            await wait_until(lambda: "Done: 10 jobs. 1 refused" in heard.parts["operation"], "it is done")


async def test_a_stream_ends_with_the_page_and_with_the_dashboard(url: str) -> None:
    """None is left behind; a stop does not wait for who is still looking."""
    async with browsing(url) as browser:
        async with listening(browser.dash, "queues") as heard:
            await wait_until(lambda: browser.dash.streams == 1, "it is open")
        await wait_until(lambda: browser.dash.streams == 0, "it has ended")
        async with listening(browser.dash, "queues") as heard:
            await wait_until(lambda: heard.messages, "it is open")
            browser.dash.end_streams()
            await wait_until(lambda: heard.ended, "it has ended by itself")


async def test_no_more_streams_than_a_limit(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes too many is told to come again; what is no view is none."""
    monkeypatch.setattr(live, "STREAMS", 1)
    async with browsing(url) as browser, listening(browser.dash, "queues"):
        await wait_until(lambda: browser.dash.streams == 1, "it is open")
        refused = await browser.get("/live/queues")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")
        assert (await browser.get("/live/nothing")).status_code == 404


async def test_an_outage_is_told_and_its_end(own_server: OwnServer) -> None:
    """The page keeps what it had, says that it is old, and goes on."""
    server = own_server(append_only=True)
    async with browsing(server.url) as browser, listening(browser.dash, "head", f"queue={QUEUE}") as heard:
        await wait_until(lambda: heard.messages, "the first message has come")
        await asyncio.to_thread(server.stop)
        await wait_until(lambda: "Nothing new since then" in heard.parts["trouble"], "the outage is told")
        assert "Dead 0" in heard.parts["head"]
        await asyncio.to_thread(server.start)
        await wait_until(lambda: heard.parts["trouble"] == "", "its end is told")
