"""What leaves a connector in which write: a turn of the event loop, a busy connection, what is large."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from echomq_worker import connection
from echomq_worker.connector import Connector, connect
from echomq_worker.packing import pack


def _writes_of(connector: Connector, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the connector writes to its transport from here on."""
    assert connector._link is not None
    transport: Any = connector._link._transport
    writes: list[bytes] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(transport, name)

        def write(self, data: bytes) -> None:
            writes.append(data)
            transport.write(data)

    monkeypatch.setattr(connector._link, "_transport", Counting())
    return writes


async def test_many_callers_in_one_turn_leave_in_two_writes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of 100 calls leaves at once, all others and a pipeline of the same event-loop turn in one write.

    Report 80 (taskforcesh/bullmq#3401).
    """
    monkeypatch.setattr(connection, "_BUSY_S", 0)
    async with connect(url) as connector:
        writes = _writes_of(connector, monkeypatch)
        calls = [connector.call("ECHO", i) for i in range(100)]
        replies = await asyncio.gather(*calls, connector.pipeline([("ECHO", "x"), ("ECHO", "y")]))
    assert replies == [*(str(i).encode() for i in range(100)), [b"x", b"y"]]
    assert [write.count(b"ECHO") for write in writes] == [1, 101]


async def test_pipelines_of_one_turn_leave_in_one_write(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a connection that was quiet: those are the beats of an idle process."""
    monkeypatch.setattr(connection, "_BUSY_S", 0)
    async with connect(url) as connector:
        writes = _writes_of(connector, monkeypatch)
        beats = [connector.pipeline([("ECHO", i), ("ECHO", "x")]) for i in range(50)]
        assert await asyncio.gather(*beats) == [[str(i).encode(), b"x"] for i in range(50)]
    assert [write.count(b"ECHO") for write in writes] == [100]


async def test_on_a_busy_connection_the_first_of_a_turn_leaves_at_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others follow in one write. What is posted is no first one: it leaves with what comes next."""
    monkeypatch.setattr(connection, "_BUSY_S", 3_600)
    async with connect(url) as connector:
        writes, link = _writes_of(connector, monkeypatch), connector._link
        posted = connector.publish("emq:{q}:events", ["a", "b"])
        assert posted is not None
        assert link is not None
        asked = [posted, *(link.submit(pack(("ECHO", text)), 1) for text in ("x", "y", "z"))]
        assert await asyncio.gather(*asked) == [[0, 0], [b"x"], [b"y"], [b"z"]]
    assert [(write.count(b"PUBLISH"), write.count(b"ECHO")) for write in writes] == [(2, 1), (0, 2)]


async def test_what_is_large_does_not_wait_for_the_end_of_the_turn(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of a KiB leaves at once, with what was queued before it; what follows in the same turn is a write of
    its own. Replies are in the order of the calls.
    """
    monkeypatch.setattr(connection, "_BUSY_S", 0)
    async with connect(url) as connector:
        writes = _writes_of(connector, monkeypatch)
        texts = ("first", "x" * 1_024, "y", "z")
        replies = await asyncio.gather(*(connector.pipeline([("ECHO", text)]) for text in texts))
    assert replies == [[text.encode()] for text in texts]
    assert [write.count(b"ECHO") for write in writes] == [2, 2]
