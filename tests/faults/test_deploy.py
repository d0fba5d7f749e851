"""Promise 5: a deploy costs nothing: drain, then hand over, no attempt wasted."""

from __future__ import annotations

import signal
import time

from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs
from tests.support.fleet import fleet
from tests.support.keyspace import keyspace_of
from tests.support.waiting import wait_until


async def test_jobs_that_fit_in_the_grace_end_and_nothing_new_is_claimed(url: str, raw: Redis) -> None:
    """SIGTERM with running and waiting jobs: what runs completes, what waits stays pending, exit 0.

    Report 48 (python-arq/arq#192). Report 50 (taskiq-python/taskiq#556).
    """
    async with connect(url) as connector:
        jobs = Jobs(connector)
        with fleet(url, grace_ms=10_000) as workers:
            worker = workers.start("--queue", "jobs", concurrency=5)
            await jobs.enqueue_many("jobs", [{"sleep_ms": 1_000}] * 20)
            await wait_until(lambda: len(workers.started()) == 5, "five run")
            worker.send(signal.SIGTERM)
            assert await worker.ended() == 0

            assert len(workers.ended()) == len(workers.started()) == 5
            assert await raw.zcard("emq:{jobs}:pending") == 15
            assert not await raw.exists("emq:{jobs}:active")
            assert worker.records("worker stopped")[0]["done"] == 5


async def test_jobs_over_the_grace_start_elsewhere_without_waiting_for_the_lease(url: str, raw: Redis) -> None:
    """SIGTERM: jobs longer than the grace are cancelled and released; failures and crashes are as before.

    Report 49 (tobymao/saq#269). Report 54 (Bogdanp/dramatiq#618).
    """
    async with connect(url) as connector:
        jobs = Jobs(connector)
        with fleet(url, grace_ms=300, lease_ms=60_000) as workers:
            # Ready before the jobs begin, and frozen meanwhile: on a busy machine they may end before it has started.
            heir = workers.start("--queue", "jobs", concurrency=50)
            await heir.saw("worker started")
            heir.send(signal.SIGSTOP)
            worker = workers.start("--queue", "jobs")
            ids = {one.id for one in await jobs.enqueue_many("jobs", [{"sleep_ms": 3_000}] * 20)}
            await wait_until(lambda: workers.started() == ids, "all 20 run")
            heir.send(signal.SIGCONT)
            asked = time.time()
            worker.send(signal.SIGTERM)
            assert await worker.ended() == 0
            assert time.time() - asked < 20
            await wait_until(lambda: len(workers.notes("start")) == 40, "all 20 run again at once")
            rows = {key: value for key, value in (await keyspace_of(raw)).items() if ":job:" in key}
            await wait_until(lambda: workers.ended() == ids, "all 20 have ended")
            cancelled = len(workers.notes("cancelled"))

    assert cancelled == 20
    assert worker.records("worker stopped")[0]["released"] == 20
    assert len(rows) == 20
    for row in rows.values():
        assert isinstance(row, dict)
        assert (row["attempts"], row.get("failures", "0")) == ("2", "0")
        assert "crashes" not in row
        assert "last_error" not in row


async def test_a_plain_function_is_disowned_and_not_started_twice(url: str, raw: Redis) -> None:
    """With a plain function in a thread the process goes at once; its job keeps its lease, and leaving is no crash.

    Report 56 (oban-bg/oban#1076).
    """
    lease_ms = 3_000
    async with connect(url) as connector:
        jobs = Jobs(connector)
        with fleet(url, grace_ms=200, lease_ms=lease_ms) as workers:
            worker = workers.start("--queue", "plain")
            id = (await jobs.enqueue("plain", {"sleep_ms": 60_000})).id
            await wait_until(lambda: workers.started() == {id}, "it runs")
            heir = workers.start("--queue", "plain")
            await heir.saw("worker started")
            asked = time.time()
            worker.send(signal.SIGTERM)
            assert await worker.ended() == 0
            gone = time.time()
            await wait_until(lambda: len(workers.notes("start")) == 2, "it starts again after its lease")
            row = await raw.hgetall(f"emq:{{plain}}:job:{id}")
            again = workers.notes("start")[1]

    assert gone - asked < 20
    # The lease was extended last when half of it was over, at the latest.
    assert again.at - asked > lease_ms / 1000 / 2 - 0.3
    assert (row[b"attempts"], row.get(b"crashes")) == (b"2", None)
    assert worker.records("jobs disowned")[0]["ids"] == [id]


async def test_five_deploys_in_a_row_bury_nothing(url: str, raw: Redis) -> None:
    """Five shutdowns over one long plain job and one long async job: neither is a crash, neither is dead.

    Report 43 (sidekiq/sidekiq#6754).
    """
    async with connect(url) as connector:
        jobs = Jobs(connector)
        with fleet(url, grace_ms=100, lease_ms=2_000) as workers:
            plain = (await jobs.enqueue("plain", {"sleep_ms": 60_000})).id
            slow = (await jobs.enqueue("jobs", {"sleep_ms": 60_000})).id
            for deploy in range(1, 6):
                worker = workers.start("--queue", "plain", "--queue", "jobs")

                def runs(deploy: int = deploy) -> bool:
                    starts = [note.id for note in workers.notes("start")]
                    return starts.count(plain) == deploy and starts.count(slow) == deploy

                await wait_until(runs, f"both run under deploy {deploy}")
                worker.send(signal.SIGTERM)
                assert await worker.ended() == 0
            left = await keyspace_of(raw)

    for queue, id in (("plain", plain), ("jobs", slow)):
        row = left[f"emq:{{{queue}}}:job:{id}"]
        assert isinstance(row, dict)
        assert row["attempts"] == "5"
        assert row.get("failures", "0") == "0"
        assert "crashes" not in row
        assert f"emq:{{{queue}}}:dead" not in left


async def test_a_second_signal_ends_the_grace(url: str) -> None:
    """A second SIGTERM does not wait for the grace: cancelled, released, exit 0.

    Report 56 (oban-bg/oban#1076).
    """
    async with connect(url) as connector:
        with fleet(url, grace_ms=60_000) as workers:
            worker = workers.start("--queue", "jobs")
            id = (await Jobs(connector).enqueue("jobs", {"sleep_ms": 60_000})).id
            await wait_until(lambda: workers.started() == {id}, "it runs")
            worker.send(signal.SIGTERM)
            await worker.saw('"event": "signal"')
            worker.send(signal.SIGTERM)
            assert await worker.ended() == 0
            assert worker.records("jobs released")[0]["ids"] == [id]
