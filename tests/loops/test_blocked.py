"""A handler that blocks the event loop for longer than a command may take: what was answered meanwhile is no outage."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from echomq_worker.connection import Link
from echomq_worker.connector import Connector, connect
from echomq_worker.errors import CommandTimeout
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.packing import pack
from echomq_worker.patience import within
from echomq_worker.repeat import Repeat
from echomq_worker.worker import Worker
from tests.support.running import running
from tests.support.valkey import ValkeyServer
from tests.support.waiting import never_ends, turns, wait_until, works_plainly_for

pytestmark = pytest.mark.blocks(reason="a handler that blocks the event loop is what this is about")

LIMIT_MS = 1_000
BLOCKED_MS = 2_500


class Wires(asyncio.Transport):
    """A transport that takes what it is given, and is given up."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There are none."""

    def is_closing(self) -> bool:
        """Not by itself."""
        return self.aborted

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """It is gone."""

    def abort(self) -> None:
        """Note it."""
        self.aborted = True


async def test_a_blocked_loop_gives_a_command_its_time_again() -> None:
    """What leaves, or is read, only when the loop turns again is waited for from then on; a peer that says nothing is
    given up all the same.
    """
    loop, wires, link = asyncio.get_running_loop(), Wires(), Link("peer", 1.0)
    link.connection_made(wires)
    answer = link.submit(pack(("PING",)), 1)
    await turns()
    works_plainly_for(2_500)
    # More than the least that a second look waits, and less than a command may take.
    loop.call_later(0.4, link.data_received, b"+PONG\r\n")
    assert await answer == [b"PONG"]
    assert isinstance(await link.submit(pack(("PING",)), 1), CommandTimeout)
    assert wires.aborted


async def test_a_limit_does_not_count_what_blocked_the_loop() -> None:
    """It is over when the time is up and the loop had its turns; once it is that much longer."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with pytest.raises(TimeoutError):
        await _blocked_within(0.2)
    assert loop.time() - begun >= 1.2
    async with within(0.2):
        works_plainly_for(1_000)
        await turns()


async def _blocked_within(limit_s: float) -> None:
    async with within(limit_s):
        works_plainly_for(1_000)
        await never_ends()


async def test_a_connection_that_is_made_meanwhile_is_made(server: ValkeyServer) -> None:
    """The handshake takes some turns, of which a handler may keep the loop."""
    connector = Connector(server.url, connect_timeout_ms=LIMIT_MS, command_timeout_ms=LIMIT_MS)
    opening = asyncio.create_task(connector.open())
    await turns(3)
    works_plainly_for(BLOCKED_MS)
    await opening
    assert connector.connected
    await connector.aclose()


async def test_a_worker_tells_of_no_outage_that_is_its_own(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Beside one that blocks for longer than a command may take jobs are claimed and settled, repeats fire, events
    leave, the channel is heard and leases are kept, without a word of a server that does not answer.
    """
    worker, done = Worker(), list[str]()

    @worker.handler("blocks", concurrency=2)
    async def blocks(_job: Job) -> None:
        for _ in range(2):
            works_plainly_for(BLOCKED_MS)
            await asyncio.sleep(0)
        done.append("blocks")

    @worker.handler("beside", consumers=2, concurrency=10)
    async def beside(job: Job) -> None:
        await asyncio.sleep(0)
        done.append(job.id)

    async with connect(url, command_timeout_ms=60_000) as connector:
        await Repeat(connector).register("beside", "often", 200, b"x")
        with caplog.at_level(logging.WARNING):
            numbers: dict[str, Any] = {"command_timeout_ms": LIMIT_MS, "connect_timeout_ms": LIMIT_MS, "events": True}
            async with running(worker, url, lease_ms=60_000, log_level="warning", **numbers):
                await Jobs(connector).enqueue_many("beside", [b"x"] * 20)
                await Jobs(connector).enqueue("blocks", b"x")
                await wait_until(lambda: "blocks" in done and len(done) > 20, "all have run", 60)
    told = [one.getMessage() for one in caplog.records]
    assert not [line for line in told if line.startswith(("degraded", "recovered"))]
