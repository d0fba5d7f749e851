"""A connection that hangs, without a word and without an end, is noticed in time; and however often connections are
lost, a worker has as many as its formula says.

Source: issue "The five promises" (a connection that hangs, the number of connections), design section 3 (Connections,
Outage).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from functools import partial

import pytest
from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.job import Job
from echomq_worker.jobs import Jobs
from echomq_worker.parking import MARGIN_MS, PUNCTUAL_MS
from echomq_worker.script import scripts
from echomq_worker.worker import Worker
from tests.support.proxy import Proxy
from tests.support.running import running
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until

BEAT_MS = 200
COMMAND_MS = 400
LEASE_MS = 2_000
# A process of a shared machine that is asked to run.
SLACK_S = 3.0
# Name in docs/design.md, section 3 (Connections) -> the longest that a hang goes unnoticed.
NOTICED_S = {
    "BLPOP": BEAT_MS / 1000 + 2,
    "claim_many": COMMAND_MS / 1000 + 0.1,
    "keep": LEASE_MS / 4 / 1000 + 0.1,
    "PING": 2 * COMMAND_MS / 1000 + 0.1,
}


async def test_a_parked_wait_is_given_up_two_seconds_after_its_end(url: str) -> None:
    """What the connection allows itself is the wait and two seconds at most, and more than a late server takes."""
    async with connect(url) as connector:
        parking = connector.parking()
        assert await parking.blpop(["emq:{a}:wake"], BEAT_MS) is None
        assert parking._link is not None
        allowed_s = parking._link.timeout_s
    assert BEAT_MS / 2_000 < allowed_s - MARGIN_MS / 1000 <= BEAT_MS / 1000
    assert allowed_s + 0.05 < NOTICED_S["BLPOP"]
    assert MARGIN_MS > PUNCTUAL_MS + 100


@pytest.mark.parametrize("what", NOTICED_S)
async def test_a_connection_that_hangs_is_noticed(server: ValkeyServer, url: str, raw: Redis, what: str) -> None:
    """The one that parks, that of the commands, the keeper's, the one that hears: each within its own limit, and it is
    made again; the job that runs meanwhile is none the worse for it.
    """
    worker, sent = Worker(), list[float]()
    done = asyncio.Event()
    pattern = scripts()[what].sha.encode() if what in scripts() else what.encode()

    @worker.handler("a")
    async def handle(job: Job) -> None:
        await done.wait()

    def tap(command: bytes) -> None:
        if pattern in command:
            sent.append(time.monotonic())

    async with (
        connect(url) as connector,
        Proxy(server.port, tap=tap) as proxy,
        running(worker, proxy.url, beat_ms=BEAT_MS, lease_ms=LEASE_MS, command_timeout_ms=COMMAND_MS) as run,
    ):
        await Jobs(connector).enqueue("a", b"x")
        await wait_until(lambda: sent, f"{what} is sent")
        opened, lost = proxy.opened, proxy.swallow_reply(pattern, then="hang")
        await wait_until(lambda: lost.done, "its connection hangs")
        hangs = len(sent)
        await wait_until(lambda: proxy.opened > opened, "a connection is made again")
        took_s = time.monotonic() - sent[hangs - 1]
        await wait_until(lambda: len(sent) > hangs, f"{what} is sent again")
        done.set()
    # It connects again after a beat, the first wait of the curve, at the latest.
    assert took_s < NOTICED_S[what] + BEAT_MS / 1000 + SLACK_S
    assert run.report.completed == 1
    assert run.report.counts.get("lost", 0) == 0


QUEUES = {"alone": 1, "pool": 3, "other": 1}
FORMULA = {
    "echomq-worker": 1,
    "echomq-worker:parking": 1,
    "echomq-leases": 1,
    "echomq-worker:cancel": 1,
}


async def _connections(raw: Redis) -> dict[str, str]:
    """Those of the worker: client id -> name."""
    rows = await raw.client_list()
    return {row["id"]: row["name"] for row in rows if row["name"].startswith("echomq-")}


async def _lose(number: int, proxy: Proxy, raw: Redis) -> None:
    """One loss of each kind in turn: reset, closed, killed by the server, hung."""
    match number % 4:
        case 0:
            proxy.reset()
        case 1:
            proxy.close_all()
        case 2:
            for id in await _connections(raw):
                await raw.client_kill_filter(_id=id)
        case _:
            lost = proxy.swallow_reply(b"EVALSHA", then="hang")
            await wait_until(lambda: lost.done, "a connection hangs")


async def test_the_number_of_connections_is_the_formulas_after_twenty_losses(
    server: ValkeyServer, url: str, raw: Redis
) -> None:
    """1 for commands, 1 that parks for all queues, 1 for leases, 1 that hears, whatever the concurrency: counted by the
    server, after twenty losses, each of which it goes on from.

    Report 17 (PrefectHQ/prefect#22478).
    """
    worker, done, ran = Worker(), asyncio.Event(), Counter[str]()

    async def handle(job: Job) -> None:
        ran[job.queue] += 1
        if job.payload == b"long":
            await done.wait()

    for queue, consumers in QUEUES.items():
        worker.handler(queue, concurrency=20, consumers=consumers)(handle)

    async def as_many() -> bool:
        return Counter((await _connections(raw)).values()) == FORMULA

    def all_ran(before: Counter[str]) -> bool:
        return all(ran[queue] > before[queue] for queue in QUEUES)

    async with (
        connect(url, name="tests-producer") as connector,
        Proxy(server.port, remembers=False) as proxy,
        running(worker, proxy.url, beat_ms=50, lease_ms=600, command_timeout_ms=300),
    ):
        await Jobs(connector).enqueue("alone", b"long")
        await wait_until(as_many, "they are as many as the formula says")
        for number in range(20):
            await _lose(number, proxy, raw)
            before = Counter(ran)
            for queue in QUEUES:
                await Jobs(connector).enqueue(queue, b"x")
            await wait_until(partial(all_ran, before), f"jobs run after loss {number}")
        await wait_until(as_many, "they are as many as before")
        done.set()
