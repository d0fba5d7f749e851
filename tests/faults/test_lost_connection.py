"""A parked worker whose connections are cut: it claims again, in the same process, and leaks nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs
from tests.support.fleet import BEAT_MS, Fleet, fleet
from tests.support.process import WorkerProcess
from tests.support.valkey import ValkeyServer
from tests.support.waiting import passes, wait_until

QUEUES = pytest.mark.parametrize("queue", ["jobs", "pool"], ids=["standalone", "pooled"])
# A process of a shared machine that is asked to run, and the file that notes it: mostly, and at worst.
MARGIN_S = 0.3
PAUSE_S = 2.5


@asynccontextmanager
async def _parked_worker(server: ValkeyServer, queue: str) -> AsyncIterator[tuple[Fleet, WorkerProcess]]:
    """A worker that has run one job and waits for the next."""
    with fleet(server.url) as workers:
        worker = workers.start("--queue", queue)
        await worker.saw("worker started")
        await _runs(server, workers, queue)
        await wait_until(lambda: _parked(server), "the worker is parked")
        yield workers, worker


def _connections(server: ValkeyServer) -> dict[str, list[int]]:
    """The worker's connections: name -> client ids."""
    found: dict[str, list[int]] = {}
    for row in server.admin.client_list():
        if row["name"].startswith(("echomq-worker", "echomq-leases")):
            found.setdefault(row["name"], []).append(int(row["id"]))
    return found


def _parked(server: ValkeyServer) -> bool:
    return any(row["cmd"] == "blpop" and "b" in row["flags"] for row in server.admin.client_list())


def _well(worker: WorkerProcess) -> bool:
    return len(worker.records("degraded")) == len(worker.records("recovered"))


async def _runs(server: ValkeyServer, workers: Fleet, queue: str) -> float:
    """Enqueue a job and wait until it has ended; how many seconds until it was in the handler."""
    # A connection that nobody has killed.
    async with connect(server.url, name="tests-producer") as connector:
        asked = time.time()
        id = (await Jobs(connector).enqueue(queue, {})).id
    await wait_until(lambda: id in workers.ended(), "the job runs")
    return next(note.at for note in workers.notes("start") if note.id == id) - asked


@QUEUES
async def test_a_parked_worker_claims_again_after_its_connections_were_killed(
    server: ValkeyServer, url: str, queue: str
) -> None:
    """CLIENT KILL TYPE normal on a parked worker, then a job: in its handler within two beats, in the same process; 20
    times over. Afterwards it has as many connections as before.

    Report 1 (python-arq/arq#435). Report 6 (celery/celery#10205). Report 11 (taskforcesh/bullmq#3517).
    Report 17 (PrefectHQ/prefect#22478).
    """
    async with _parked_worker(server, queue) as (workers, worker):
        base = {name: len(ids) for name, ids in _connections(server).items()}
        waits = []
        for _ in range(20):
            await wait_until(lambda: _parked(server), "the worker is parked again")
            server.admin.client_kill_filter(_type="normal")
            waits.append(await _runs(server, workers, queue))

        def back() -> bool:
            return {name: len(ids) for name, ids in _connections(server).items()} == base

        await wait_until(back, f"the connections are {base} again")
        assert {note.pid for note in workers.notes()} == {worker.pid}
        await wait_until(partial(_well, worker), "a line says that it is over")

    assert sorted(waits)[len(waits) * 3 // 4] < 2 * BEAT_MS / 1000 + MARGIN_S
    assert max(waits) < 2 * BEAT_MS / 1000 + PAUSE_S


@QUEUES
@pytest.mark.parametrize("name", ["echomq-worker", "echomq-worker:parking"], ids=["commands", "parking"])
async def test_one_lost_connection_of_a_parked_worker(server: ValkeyServer, url: str, queue: str, name: str) -> None:
    """Only the parking connection is killed, or only the one for commands: the claims go on within two beats.

    Report 12 (Bogdanp/dramatiq#207).
    """
    async with _parked_worker(server, queue) as (workers, worker):
        (id,) = _connections(server)[name]
        server.admin.client_kill_filter(_id=str(id))
        took_s = await _runs(server, workers, queue)
        await wait_until(lambda: len(_connections(server).get(name, [])) == 1, "it is connected again")
        await wait_until(partial(_well, worker), "a line says that it is over")
        assert worker.alive

    assert took_s < 2 * BEAT_MS / 1000 + PAUSE_S


async def test_an_idle_worker_says_nothing(url: str, raw: Redis) -> None:
    """Several times as long as a command may take, with nothing to do: it lives, and not one line is printed.

    Report 15 (rq/rq#1968). Report 122 (taskforcesh/bullmq#1834).
    """
    with fleet(url, command_timeout_ms=1_000, connect_timeout_ms=1_000) as workers:
        worker = workers.start("--queue", "jobs", "--queue", "pool")
        await worker.saw("worker started")
        before = worker.log_text()
        await passes(3_500, "an idle worker has nothing to say")
        async with connect(url) as connector:
            assert worker.log_text() == before
            await Jobs(connector).enqueue("jobs", {})
        await wait_until(workers.ended, "a job runs")
