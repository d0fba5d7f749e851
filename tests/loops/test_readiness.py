"""Readiness: a probe hears of a claim loop that stands, of an outage and of a drain, and that all is well again."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from echomq_worker.job import Job
from echomq_worker.readiness import QueueBeat, Readiness
from echomq_worker.worker import Worker
from tests.support.clock import ManualClock
from tests.support.proxy import Proxy
from tests.support.running import BEAT_MS, running
from tests.support.stations import stand
from tests.support.valkey import ValkeyServer
from tests.support.waiting import passes, wait_until


def a_worker() -> Worker:
    """One queue with a consumer, one with a pool, one that takes batches."""
    worker = Worker()

    @worker.handler("alone")
    async def alone() -> None: ...

    @worker.handler("pool", consumers=3)
    async def pool() -> None: ...

    @worker.batch_handler("many", min_size=2, timeout_ms=1_000)
    async def many(jobs: list[Job]) -> None: ...

    return worker


def test_each_reason_is_told_in_words() -> None:
    """Ready is what has none."""
    fresh, late = QueueBeat("q", 5, late=False), QueueBeat("r", 4_000, late=True)
    well = Readiness(started=True, queues=(fresh,))
    assert (well.ready, well.why) == (True, None)
    for one, why in (
        (Readiness(), "not started"),
        (replace(well, draining=True), "draining"),
        (replace(well, degraded=True), "degraded"),
        (replace(well, queues=(fresh, late)), "r 4000 ms ago"),
        (replace(well, queues=(replace(late, age_ms=None),)), "r never"),
    ):
        assert not one.ready
        assert why in (one.why or "")


async def test_an_idle_worker_is_ready_and_one_that_drains_is_not(url: str) -> None:
    """Before the run it is not, nor after it; for many beats in between it is, each time that it is asked."""
    worker = a_worker()
    assert worker.readiness() == Readiness()
    async with running(worker, url, beat_ms=BEAT_MS):
        await wait_until(lambda: worker.readiness().ready, "it is ready")
        assert [beat.queue for beat in worker.readiness().queues] == ["alone", "pool", "many"]
        until = time.monotonic() + 10 * BEAT_MS / 1000
        while time.monotonic() < until:
            # A loaded machine may be late, and is on time again.
            await wait_until(lambda: worker.readiness().ready, "it stays ready")
            await passes(20, "it is asked now and then")
        worker.stop()
        assert worker.readiness().why == "draining"
    assert worker.readiness() == Readiness()


@pytest.mark.parametrize("stands", ["consumer of alone", "consumer of pool", "metronome of pool", "consumer of many"])
async def test_a_claim_loop_that_stands_shows(url: str, stands: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is that holds it, and though everything else of the process lives on.

    Report 12 (Bogdanp/dramatiq#207).
    """
    worker, go_on = a_worker(), asyncio.Event()
    kind, _, queue = stands.partition(" of ")
    async with running(worker, url, beat_ms=20):
        await wait_until(lambda: worker.readiness().ready, "it is ready")
        assert worker._running is not None
        station = next(one for one in worker._running._stations if one.queue == queue)
        held: Any = station.metronome if kind == "metronome" else station.consumers[-1]
        beat = type(held).beat

        async def held_beat(self: object) -> object:
            if self is held:
                await go_on.wait()
            return await beat(self)

        monkeypatch.setattr(type(held), "beat", held_beat)

        def late() -> bool:
            return [beat.queue for beat in worker.readiness().queues if beat.late] == [queue]

        await wait_until(late, f"the {stands} is late, and no other")
        assert queue in (worker.readiness().why or "")
        go_on.set()
        await wait_until(lambda: worker.readiness().ready, "it goes on")


async def test_an_outage_shows_and_its_end(server: ValkeyServer, url: str) -> None:
    """Red while a loop cannot do its beat, green again by itself.

    Report 100 (celery/celery#4079).
    """
    worker = a_worker()
    async with Proxy(server.port) as proxy, running(worker, proxy.url, beat_ms=50):
        await wait_until(lambda: worker.readiness().ready, "it is ready")
        await proxy.refuse()
        proxy.reset()
        await wait_until(lambda: (worker.readiness().why or "").startswith("degraded"), "it is not ready any more")
        await proxy.accept()
        await wait_until(lambda: worker.readiness().ready, "it is ready again")


async def test_the_age_is_that_of_the_last_good_pass(url: str) -> None:
    """None before the first; late above three beats, of a pool of two above six."""
    clock = ManualClock()
    for consumers, most in ((1, 3), (2, 6)):
        async with stand(url, clock=clock, consumers=consumers, concurrency=2, beat_ms=1_000) as made:
            station = made.station
            assert station.beat() == QueueBeat("q", None, late=True)
            loops: list[Any] = [*station.consumers, station.metronome]
            for one in filter(None, loops):
                one.beaten_ms = clock.monotonic_ms()
            clock.advance(most * 1_000)
            if station.metronome is not None:
                station.metronome.beaten_ms = clock.monotonic_ms()
            assert station.beat() == QueueBeat("q", most * 1_000, late=False)
            clock.advance(1)
            assert station.beat() == QueueBeat("q", most * 1_000 + 1, late=True)
