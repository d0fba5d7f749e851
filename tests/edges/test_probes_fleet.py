"""run --processes N --http: one port answers for all of them, also for those that have ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs
from echomq_worker.probes import instruments as i
from echomq_worker.probes.channel import telling
from echomq_worker.probes.fleet import Fleet
from echomq_worker.probes.probe import Probe
from echomq_worker.probes.snapshot import Snapshot
from tests.support.http import one, page, scrape
from tests.support.process import WorkerProcess, run_worker
from tests.support.valkey import ValkeyServer, free_port
from tests.support.waiting import wait_until

APP = """
import asyncio, os, time
from echomq_worker import Worker
worker = Worker()
@worker.handler("emails", concurrency=5)
async def email(payload: bytes) -> None:
    if payload == b"blocks":
        time.sleep(8)
    await asyncio.sleep(0.01)
"""


async def why(port: int) -> str | None:
    """Why /readyz is red, None where it is green."""
    found = await page(port, "/readyz")
    return "nobody listens" if found is None else str(found.json["why"]) if found.json["why"] else None


async def done(port: int) -> float:
    """Completions that the port knows of."""
    return (await scrape(port)).get(
        ("echomq_jobs_total", frozenset({"queue": "emails", "outcome": "completed"}.items())), 0.0
    )


async def test_one_port_answers_for_all_also_for_one_that_was_killed(
    url: str, tmp_path: Path, server: ValkeyServer
) -> None:
    """Ready when all are, red while one is missing; counts are the sum, and none is lost with a process that is killed
    a second later; one that blocks is told as silent; SIGTERM is red.

    Report 110 (taskiq-python/taskiq#590).
    """
    (tmp_path / "fleet_app.py").write_text(APP)
    port = free_port()
    line = ("run", "fleet_app:worker", "--processes", "2", "--http", f"127.0.0.1:{port}")
    async with connect(url) as connector:
        jobs = Jobs(connector)
        with WorkerProcess(*line, env={"ECHOMQ_URL": url}, cwd=tmp_path) as worker:
            pids = await wait_until(lambda: _ready_pids(port), "both are ready")
            assert len(pids) == 2
            assert len({*pids, worker.pid}) == 3
            await _is_healthy(port)

            await jobs.enqueue_many("emails", [b"x"] * 200)
            await wait_until(lambda: _counts(port, 200), "all are counted")
            found = await wait_until(lambda: _of_both(port), "both are ready, and told")
            assert one(found, "echomq_slots", queue="emails") == 10
            assert one(found, "echomq_queue_completed_total", queue="emails") <= 200

            os.kill(pids[0], signal.SIGKILL)
            await wait_until(lambda: _is(port, "process 0: "), "one is missing")
            assert await done(port) == 200
            await wait_until(lambda: _is(port, None), "another has taken its place")
            assert await done(port) == 200
            await jobs.enqueue_many("emails", [b"x"] * 100)
            await wait_until(lambda: _counts(port, 300), "the new one counts on")

            # One of them takes it, and is blocked.
            await jobs.enqueue("emails", b"blocks")
            await wait_until(lambda: _silent(port), "one is silent")
            assert "does not answer" in (await why(port) or "")
            assert await done(port) == 300
            await wait_until(lambda: _counts(port, 301), "it goes on")

            worker.send(signal.SIGTERM)
            await _is_red_to_its_end(port)
            assert await worker.ended() == 0


async def _is_red_to_its_end(port: int) -> None:
    # Which of the two is there first: the signal, or the next who asks.
    await wait_until(lambda: why(port), "it is red")
    while (reason := await why(port)) != "nobody listens":
        assert reason is not None


async def _is_healthy(port: int) -> None:
    asked = await asyncio.to_thread(run_worker, "health", env={"ECHOMQ_HTTP": f"127.0.0.1:{port}"})
    assert asked == (0, f"ready: http://127.0.0.1:{port}/readyz\n")


async def _ready_pids(port: int) -> list[int]:
    """The processes, once all are ready."""
    found = await page(port, "/readyz")
    bodies = [] if found is None else found.json["processes"]
    return [body["pid"] for body in bodies] if bodies and all(body.get("ready") for body in bodies) else []


async def _of_both(port: int) -> dict[Any, float] | None:
    """The numbers, where neither process is late to tell its own."""
    found = await scrape(port)
    return found if one(found, "echomq_processes") == one(found, "echomq_ready") == 2 else None


async def _is(port: int, reason: str | None) -> bool:
    found = await why(port)
    return found is None if reason is None else (found or "").startswith(reason)


async def _counts(port: int, count: int) -> bool:
    return await done(port) == count


async def _silent(port: int) -> bool:
    found = await page(port, "/livez")
    return found is not None and found.status == 503 and len(found.json["silent"]) == 1


# ------------------------------------------------------------------------------------------ the supervisor's side


class Child:
    """A process of the fleet, as far as its socket goes: what it answers is what a test says."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.says: dict[str, Any] = {}
        self.mute = False

    async def run(self) -> None:
        """Answer until the other end is closed."""
        reader, writer = await asyncio.open_unix_connection(sock=self.end)
        try:
            while line := await reader.readline():
                asked = json.loads(line)
                if not self.mute:
                    self.tell(writer, {"n": asked["n"], **self.says[asked["what"]]})
        finally:
            writer.close()

    @staticmethod
    def tell(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        """Send one line."""
        writer.write(json.dumps(message).encode() + b"\n")


def numbers(completed: int, held: int = 0) -> dict[str, Any]:
    """An answer with a counter and a gauge."""
    made = Snapshot()
    made.put(i.STARTED.name, completed, "q")
    made.put(i.HELD.name, held)
    return {"rows": made.rows}


@asynccontextmanager
async def child(fleet: Fleet, index: int) -> AsyncIterator[Child]:
    """It runs while inside."""
    async with fleet.member(index) as theirs:
        made = Child(theirs.dup())
        made.end.setblocking(False)
        theirs.close()
        task = asyncio.create_task(made.run())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.wait({task})


async def sums(fleet: Fleet) -> tuple[float, float]:
    """The counter and the gauge of all."""
    found = (await fleet.snapshot()).numbers
    counted, held = found.get(i.STARTED.name, {}).get(("q",), 0.0), found.get(i.HELD.name, {}).get((), 0.0)
    assert isinstance(counted, float)
    assert isinstance(held, float)
    return counted, held


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does not answer is not waited for long."""
    monkeypatch.setattr("echomq_worker.probes.fleet._ASK_S", 0.5)
    monkeypatch.setattr("echomq_worker.probes.fleet.Member.ask.__defaults__", (0.5,))


async def test_counts_outlive_a_process_and_gauges_do_not(fast: None) -> None:
    """The sum never falls, whoever is silent, ends or begins anew."""
    fleet = Fleet(2, about={})
    shared: dict[str, Any] = {"shared": {"rows": []}}
    async with child(fleet, 0) as first:
        first.says = {"own": numbers(5, 3), **shared}
        async with child(fleet, 1) as second:
            second.says = {"own": numbers(7, 1), **shared}
            assert await sums(fleet) == (12, 4)
            second.mute = True
            assert await sums(fleet) == (12, 3)
        assert await sums(fleet) == (12, 3)
        async with child(fleet, 1) as third:
            third.says = {"own": numbers(1, 2), **shared}
            assert await sums(fleet) == (13, 5)
    assert await sums(fleet) == (13, 0)


class OwnNumbers:
    """Of a probe what is told at the end."""

    @staticmethod
    def own() -> Snapshot:
        """Eleven starts."""
        return Snapshot.of_rows(numbers(11)["rows"])


async def test_a_process_tells_its_last_numbers_as_it_ends() -> None:
    """Nobody has asked, and nothing of what it counted is missing."""
    fleet = Fleet(1, about={})
    async with fleet.member(0) as theirs:
        end = theirs.dup()
        theirs.close()
        end.setblocking(False)
        async with telling(cast("Probe", OwnNumbers()), end.detach()):
            pass
    assert await sums(fleet) == (11, 0)


async def test_the_watch_asks_by_itself(fast: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed between two scrapes takes no more with it than it did since the last look."""
    monkeypatch.setattr("echomq_worker.probes.fleet._LOOK_S", 0.01)
    fleet = Fleet(1, about={})
    watching = asyncio.create_task(fleet.watch())
    async with child(fleet, 0) as one_child:
        one_child.says = {"own": numbers(9)}
        await wait_until(lambda: bool(fleet._members[0].last.numbers), "it was asked")
    watching.cancel()
    await asyncio.wait({watching})
    assert await sums(fleet) == (9, 0)


async def test_each_reason_is_told_with_the_process(fast: None) -> None:
    """Not running, starting, silent, or its own reason; live is no only of one that had begun."""
    fleet = Fleet(2, about={})
    assert (await fleet.ready()).body["why"] == "process 0: is not running"
    assert (await fleet.live()).ok
    async with child(fleet, 0) as first:
        first.says = {"ready": {"ok": True, "body": {"ready": True, "why": None}}, "live": {"ok": True, "body": {}}}
        async with child(fleet, 1) as second:
            second.mute = True
            assert (await fleet.ready()).body["why"] == "process 1: starts"
            assert (await fleet.live()).ok
            second.mute = False
            second.says = {
                "ready": {"ok": False, "body": {"ready": False, "why": "draining"}},
                "live": first.says["live"],
            }
            assert (await fleet.ready()).body["why"] == "process 1: draining"
            second.says["ready"] = first.says["ready"]
            assert (await fleet.ready()).ok
            second.mute = True
            assert (await fleet.ready()).body["why"] == "process 1: does not answer"
            said = await fleet.live()
            assert (said.ok, said.body["silent"]) == (False, [1])


@pytest.mark.parametrize("line", [b"no JSON\n", b'{"n": 0, "rows": 3}\n', b"[]\n"])
async def test_a_process_that_talks_nonsense_is_not_listened_to(fast: None, line: bytes) -> None:
    """It counts as one that does not answer."""
    fleet = Fleet(1, about={})
    async with fleet.member(0) as theirs:
        theirs.sendall(line)
        await wait_until(lambda: _deaf(fleet), "nobody listens any more")
        assert (await fleet.ready()).ok is False
        assert await sums(fleet) == (0, 0)


def _deaf(fleet: Fleet) -> bool:
    writer = fleet._members[0]._writer
    return writer is not None and writer.is_closing()
