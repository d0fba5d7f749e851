"""Probes and metrics of one worker: what its port says in every state, and that its numbers are those of a count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.clock import SystemClock
from echomq_worker.connector import connect
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.keyspace import Keys
from echomq_worker.lanes import Lanes
from echomq_worker.metrics import Metrics
from echomq_worker.probes.depths import LARGEST_LANES, Depths
from echomq_worker.probes.instruments import INSTRUMENTS, OTHER_LANES
from echomq_worker.script import scripts
from echomq_worker.verdict import Delay, Reject
from echomq_worker.worker import Worker
from tests.support.http import Page, green, one, page, scrape, scraped
from tests.support.proxy import Proxy
from tests.support.running import running
from tests.support.valkey import ValkeyServer, free_port
from tests.support.waiting import never_ends, wait_until

BEAT_MS = 200


def a_worker() -> Worker:
    """What its one handler does stands in the payload."""
    worker = Worker()

    @worker.handler("q", max_attempts=2, retry=1)
    async def work(job: Job) -> None:
        if job.payload == b"fails":
            raise ValueError("x")
        if job.payload == b"delays" and job.attempts == 1:
            raise Delay(0)
        if job.payload == b"rejects":
            raise Reject("never")
        if job.payload == b"waits":
            await never_ends()

    return worker


@asynccontextmanager
async def answering(worker: Worker, url: str, **changes: Any) -> AsyncIterator[int]:
    """The worker runs, and is ready; yields its port."""
    port = free_port()
    async with running(worker, url, http=f"127.0.0.1:{port}", beat_ms=BEAT_MS, **changes):
        await wait_until(lambda: worker.readiness().ready, "it is ready")
        yield port


async def why(port: int) -> str | None:
    """Why /readyz is red; None where it is green. A probe that gets no answer says so."""
    found = await page(port, "/readyz")
    if found is None:
        return "nobody listens"
    assert found.status == (200 if found.json["why"] is None else 503)
    reason: str | None = found.json["why"]
    return reason


async def test_what_stands_on_the_pages(url: str) -> None:
    """Green with every queue; the wire version; no page besides, and nothing that could be changed."""
    async with answering(a_worker(), url) as port:
        ready = await wait_until(lambda: green(port), "it is ready")
        live, metrics = [await page(port, path) for path in ("/livez", "/metrics")]
        assert ready is not None
        assert live is not None
        assert metrics is not None
        assert (ready.json["ready"], ready.json["why"]) == (True, None)
        assert [queue["queue"] for queue in ready.json["queues"]] == ["q"]
        assert ready.json["wire_version"] == live.json["wire_version"] == "echomq:3.0.0"
        assert (live.status, live.json["alive"]) == (200, True)
        assert metrics.kind.startswith("text/plain")
        assert "# TYPE echomq_jobs_total counter" in metrics.text
        assert (await page(port, "/")) == Page(404, "Not Found", "text/plain; charset=utf-8")


async def test_metrics_equal_a_hand_count(url: str, raw: Redis) -> None:
    """Every outcome, the runs, the waits, what stands where on the server, lanes included.

    Report 110 (taskiq-python/taskiq#590). Report 119 (tobymao/saq#276).
    """
    worker = a_worker()
    async with connect(url) as connector, answering(worker, url) as port:
        jobs = Jobs(connector)
        await jobs.enqueue_many("q", [b"done"] * 7 + [b"fails"] * 3 + [b"delays"] * 2 + [b"rejects"] * 4)
        await jobs.enqueue_in("q", b"later", 3_600_000)

        async def ended() -> bool:
            counts = await scrape(port)
            kinds = ("completed", "dead")
            return sum(one(counts, "echomq_jobs_total", queue="q", outcome=kind) for kind in kinds) == 16

        await wait_until(ended, "all have ended")
        # The queues are read once a second at most.
        await wait_until(lambda: scraped(port, "echomq_queue_jobs", 7, queue="q", state="dead"), "it is read")
        found = await scrape(port)
        outcomes = {
            kind: one(found, "echomq_jobs_total", queue="q", outcome=kind)
            for kind in ("completed", "retried", "delayed", "dead", "buried", "lost", "stale", "gone", "refused")
        }
        assert outcomes == {
            "completed": 9,
            "retried": 3,
            "delayed": 2,
            "dead": 7,
            **dict.fromkeys(("buried", "lost", "stale", "gone", "refused"), 0),
        }
        runs = 7 + 6 + 4 + 4
        assert one(found, "echomq_jobs_started_total", queue="q") == runs
        assert one(found, "echomq_job_duration_seconds_count", queue="q") == runs
        assert one(found, "echomq_job_duration_seconds_bucket", queue="q", le="+Inf") == runs
        assert one(found, "echomq_job_wait_seconds_count", queue="q") == 16
        states = {
            state: one(found, "echomq_queue_jobs", queue="q", state=state)
            for state in ("pending", "active", "scheduled", "dead")
        }
        assert states == {"pending": 0, "active": 0, "scheduled": 1, "dead": 7}
        assert one(found, "echomq_queue_completed_total", queue="q") == 9
        assert one(found, "echomq_queue_died_total", queue="q") == 7
        assert one(found, "echomq_connections", purpose="commands") == 1
        assert one(found, "echomq_server_up") == 1
        await wait_until(lambda: scraped(port, "echomq_ready", 1), "it is ready")
        assert one(found, "echomq_beats_total", queue="q", loop="consumer") > 0
        assert one(found, "echomq_event_loop_lag_seconds_count") > 0


async def test_what_is_ready_counts_lanes_and_leaves_out_the_schedule(url: str) -> None:
    """The number for an autoscaler is what could be claimed now; each lane is told by its name."""
    worker = a_worker()
    async with connect(url) as connector:
        lanes, group = Lanes(connector), Lanes.group_for("tenant")
        await Jobs(connector).enqueue_in("q", b"later", 3_600_000)
        await lanes.limit("q", group, 1)
        for _ in range(4):
            await lanes.enqueue("q", group, b"waits")
        async with answering(worker, url, grace_ms=0) as port:
            label = {"queue": "q", "lane": group}
            await wait_until(
                lambda: scraped(port, "echomq_lane_jobs", 1, **label, state="active"), "one of the lane runs"
            )
            found = await scrape(port)
            assert one(found, "echomq_queue_ready_jobs", queue="q") == 3
            assert one(found, "echomq_lane_jobs", **label, state="pending") == 3
            assert one(found, "echomq_queue_lanes", queue="q") == 1
            assert one(found, "echomq_queue_oldest_pending_age_seconds", queue="q") > 0
            assert one(found, "echomq_jobs_running", queue="q") == one(found, "echomq_leases_held") == 1
            assert one(found, "echomq_slots", queue="q") == 10
            # With a lane and a job that waits there is nothing that is not told.
            suffixes = {"counter": "", "gauge": "", "histogram": "_count"}
            told = {name for name, _ in found}
            assert [one.name for one in INSTRUMENTS if f"{one.name}{suffixes[one.kind]}" not in told] == []


async def test_the_reading_is_that_of_the_read_plane(url: str, raw: Redis) -> None:
    """In every state at once, `Metrics` says the same; more lanes than are read in one piece are all counted."""
    async with connect(url) as connector:
        jobs, lanes, metrics = Jobs(connector), Lanes(connector), Metrics(connector)
        base = Keys("q").base
        await jobs.enqueue_many("q", [b"x"] * 3)
        await jobs.enqueue_in("q", b"later", 3_600_000)
        groups = [Lanes.group_for(str(number)) for number in range(1_100)]
        for at in range(0, len(groups), 100):
            await asyncio.gather(*(lanes.enqueue("q", group, b"x") for group in groups[at : at + 100]))
        await lanes.enqueue("q", groups[7], b"x")
        await lanes.pause("q", groups[8])
        await raw.hset(f"{base}gactive", mapping={groups[9]: 4, "GRPgone": 0})
        await raw.zadd(f"{base}active", {"JOB00000000001": 1, "JOB00000000002": 10**15})
        await raw.zadd(f"{base}dead", {"JOB00000000003": 0})
        await raw.hset(f"{base}metrics:completed", "count", 12)
        await raw.hset(f"{base}meta", "paused", 1)

        read = (await Depths(connector, ["q"], clock=SystemClock()).read()).numbers
        stats, views = await metrics.stats("q"), await metrics.lanes("q")

    counts = stats.counts
    said = {state: count for (_, state), count in read["echomq_queue_jobs"].items()}
    assert said == {"pending": 3, "active": 2, "scheduled": 1, "dead": 1}
    assert (counts.pending, counts.active, counts.scheduled, counts.dead) == tuple(said.values())
    one_each = {name: of[("q",)] for name, of in read.items() if ("q",) in of}
    oldest = one_each.pop("echomq_queue_oldest_pending_age_seconds")
    assert isinstance(oldest, float)
    assert oldest == pytest.approx((stats.oldest_pending_age_ms or 0) / 1000, abs=2)
    assert one_each == {
        "echomq_queue_ready_jobs": counts.ready,
        "echomq_queue_expired_leases": stats.expired_leases,
        "echomq_queue_paused": 1,
        "echomq_queue_repeats": 0,
        "echomq_queue_completed_total": stats.totals.completed,
        "echomq_queue_died_total": stats.totals.failed,
        "echomq_queue_lanes": len([view for view in views if view.depth or view.active]),
    }
    assert counts.ready == 3 + 1_101
    shown = read["echomq_lane_jobs"]
    assert shown["q", groups[9], "active"] == 4
    assert shown["q", groups[7], "pending"] == 2
    assert shown["q", OTHER_LANES, "pending"] == 1_100 - LARGEST_LANES


@pytest.mark.leaves_keys("it plants a key of another type")
async def test_a_queue_that_cannot_be_read_costs_no_other_one_its_numbers(url: str, raw: Redis) -> None:
    """A key of another type: what is wrong is for the audit to say. A counter that is no number counts nothing."""
    async with connect(url) as connector:
        await raw.set("emq:{a}:pending", "x")
        await raw.hset("emq:{b}:gactive", "GRP1", "many")
        await Jobs(connector).enqueue("c", b"x")
        read = (await Depths(connector, ["a", "b", "c"], clock=SystemClock()).read()).numbers
    assert read["echomq_queue_ready_jobs"] == {("b",): 0, ("c",): 1}
    assert {queue for queue, _ in read["echomq_queue_jobs"]} == {"b", "c"}
    assert read["echomq_server_up"] == {(): 1}


async def test_leases_that_were_extended_are_counted(url: str) -> None:
    """By the keeper, for as long as the handler runs; its connection is one more."""
    worker = a_worker()
    async with connect(url) as connector, answering(worker, url, lease_ms=500, grace_ms=0) as port:
        await Jobs(connector).enqueue("q", b"waits")

        async def extended() -> bool:
            found = await scrape(port)
            twice = one(found, "echomq_lease_extensions_total") >= 2
            return twice and one(found, "echomq_connections", purpose="leases") == 1

        await wait_until(extended, "its lease was extended twice")


# ------------------------------------------------------------------------------------------------ red and green


@pytest.mark.parametrize("how", ["connections stand still", "the server is frozen", "the server is gone"])
async def test_it_is_red_within_three_beats_of_an_outage_and_green_again_by_itself(
    own_server: Callable[..., ValkeyServer], how: str
) -> None:
    """A stalled proxy, a server that was stopped by a signal, one that has ended. The process lives on all the while.

    Report 100 (celery/celery#4079).
    """
    server = own_server(append_only=True)
    # A silent connection is late long before it is given up.
    worker, limits = a_worker(), {"command_timeout_ms": 16 * BEAT_MS, "connect_timeout_ms": 16 * BEAT_MS}
    async with Proxy(server.port) as proxy, answering(worker, proxy.url, **limits) as port:
        breaks, mends = {
            "connections stand still": (proxy.stall, proxy.flow),
            "the server is frozen": (server.pause, server.resume),
            "the server is gone": (server.kill, server.start),
        }[how]
        await _do(breaks)
        begun = time.monotonic()
        reason = await wait_until(lambda: why(port), "it is red") or ""
        took_ms = (time.monotonic() - begun) * 1000
        # A look of our own takes some time too, more on a machine that does other things.
        assert took_ms <= 3 * BEAT_MS + 2_000, reason
        assert reason.startswith(("degraded", "no good beat"))
        live = await page(port, "/livez")
        assert live is not None
        assert live.status == 200
        counts = await scrape(port)
        assert one(counts, "echomq_ready") == 0
        await _do(mends)
        await wait_until(lambda: green(port), "it is green again")
        await wait_until(lambda: scraped(port, "echomq_server_up", 1), "the queues are read again")


async def _do(what: Callable[[], object]) -> None:
    """What a server does blocks; a proxy belongs to the loop."""
    if isinstance(getattr(what, "__self__", None), Proxy):
        what()
    else:
        await asyncio.to_thread(what)


async def test_an_outage_is_counted(server: ValkeyServer, url: str) -> None:
    """How often and how long, one that lasts included; while the queues cannot be read there are no numbers of them."""
    worker = a_worker()
    async with Proxy(server.port) as proxy, answering(worker, proxy.url) as port:
        await proxy.refuse()
        proxy.reset()
        await wait_until(lambda: scraped(port, "echomq_degraded", 1), "it is degraded")
        await wait_until(lambda: scraped(port, "echomq_server_up", 0), "the queues cannot be read")
        found = await scrape(port)
        assert one(found, "echomq_outages_total") == 1
        assert one(found, "echomq_degraded_seconds_total") > 0
        assert not [name for name, _ in found if name.startswith("echomq_queue_")]
        await proxy.accept()
        await wait_until(lambda: scraped(port, "echomq_degraded", 0), "it is over")
        lasted = one(await scrape(port), "echomq_degraded_seconds_total")
        assert lasted > 0
        assert one(await scrape(port), "echomq_degraded_seconds_total") == lasted


async def test_a_verdict_that_was_sent_again_is_counted(server: ValkeyServer, url: str) -> None:
    """Its answer was lost: it counts as sent again, and its job once."""
    worker = a_worker()
    async with connect(url) as connector, Proxy(server.port) as proxy, answering(worker, proxy.url) as port:
        rule = proxy.swallow_reply(scripts()["settle"].sha.encode())
        await Jobs(connector).enqueue("q", b"done")
        await wait_until(
            lambda: scraped(port, "echomq_jobs_total", 1, queue="q", outcome="completed"), "it is completed"
        )
        assert rule.done
        assert one(await scrape(port), "echomq_verdicts_resent_total", queue="q") == 1


async def test_a_drain_is_red_at_once_and_answers_to_the_end(url: str) -> None:
    """While a job still runs the port says why; afterwards nobody listens."""
    worker = a_worker()
    async with connect(url) as connector, answering(worker, url, grace_ms=30_000) as port:
        await Jobs(connector).enqueue("q", b"waits")
        await wait_until(lambda: scraped(port, "echomq_jobs_running", 1, queue="q"), "it runs")
        worker.stop()
        assert await why(port) == "draining"
        live = await page(port, "/livez")
        assert live is not None
        assert live.status == 200
    assert await why(port) == "nobody listens"


async def test_it_answers_before_the_worker_has_begun(url: str) -> None:
    """A long start of the application is alive, and not ready."""
    worker, port, go_on = a_worker(), free_port(), asyncio.Event()

    @worker.lifespan
    async def slow() -> AsyncIterator[None]:
        await go_on.wait()
        yield

    async with running(worker, url, http=f"127.0.0.1:{port}"):
        await wait_until(lambda: _says(port, "not started"), "it has not started")
        live = await page(port, "/livez")
        assert live is not None
        assert live.status == 200
        go_on.set()
        await wait_until(lambda: green(port), "it has started")


async def _says(port: int, reason: str) -> bool:
    return await why(port) == reason
