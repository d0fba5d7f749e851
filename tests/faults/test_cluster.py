"""A cluster under a load of 500 jobs a second: failovers, and slots that migrate in both ways. Nothing that the servers
kept is lost, nothing runs twice at once, and service goes on by itself.

Source: issue "The five promises, kept under every fault, on every topology" (Topologies, done when).
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from echomq_worker.audit import Audit
from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs, New
from echomq_worker.keyspace import Keys, slot
from echomq_worker.metrics import Metrics
from tests.support.app import Note
from tests.support.cluster import ValkeyCluster, valkey_cluster
from tests.support.cluster_load import QUEUES, Load, at_once, by_id, load, worked_off
from tests.support.fleet import BEAT_MS, Fleet, fleet
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until

# Bytes of notes that some hundred jobs have made.
_UNDER_WAY = 20_000
_BACKLOG = 300
_SLACK_S = 6.0
_HOUR_MS = 3_600_000
Fault = Callable[[Load], object]
Migration = Callable[[ValkeyCluster, int, ValkeyServer], None]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    """Three primaries and three replicas, for all tests here; each leaves it whole."""
    with valkey_cluster() as made:
        yield made


@dataclass(frozen=True, slots=True)
class Account:
    """What a load has come to: `began` and `over` are the moments of the fault, in seconds since 1970."""

    load: Load
    notes: list[Note]
    began: float
    over: float

    @property
    def ended(self) -> set[str]:
        """Ids that a handler has finished."""
        return {note.id for note in self.notes if note.what == "end"}

    def first_end_after(self, at: float, queue: str) -> float:
        """When the first job of a queue has ended after a moment."""
        of = self.load.acknowledged
        return min(note.at for note in self.notes if note.what == "end" and note.at > at and of.get(note.id) == queue)


async def _through(cluster: ValkeyCluster, fault: Fault, **settings: object) -> Account:
    """A load, two workers and a fault; then all is worked off, the workers stop, and what is left is looked at."""
    cluster.clear()
    with fleet(cluster.url, command_timeout_ms=1_000, **settings) as workers:
        for one in (workers.start(), workers.start()):
            await one.saw("worker started")
        async with connect(cluster.url) as connector, load(cluster) as made:
            # Jobs that are due in an hour: it takes a while to migrate so many keys.
            for queue in QUEUES:
                await Jobs(connector).enqueue_many(queue, [New({}, in_ms=_HOUR_MS) for _ in range(_BACKLOG)])
            await _more(workers)
            began = time.time()
            await asyncio.to_thread(fault, made)
            over = time.time()
            await _more(workers)
        async with connect(cluster.url) as connector:
            await worked_off(connector)
            for one in workers.workers:
                one.send(signal.SIGTERM)
            assert [await one.ended() for one in workers.workers] == [0, 0]
            audit, metrics = Audit(connector), Metrics(connector)
            assert [finding for queue in QUEUES for finding in await audit.audit(queue)] == []
            assert [(await metrics.counts(queue)).scheduled for queue in QUEUES] == [_BACKLOG] * len(QUEUES)
        return Account(made, workers.notes(), began, over)


async def _more(workers: Fleet) -> None:
    """Wait until some hundred more jobs have run."""
    size = workers.notes_path.stat().st_size if workers.notes_path.exists() else 0

    def grown() -> bool:
        return workers.notes_path.exists() and workers.notes_path.stat().st_size > size + _UNDER_WAY

    await wait_until(grown, "jobs run")


def _slot(queue: str) -> int:
    return slot(Keys(queue).pending)


def _by_key(cluster: ValkeyCluster, number: int, to: ValkeyServer) -> None:
    for _ in cluster.migrate_by_key(number, to, page=1):
        pass


def _migrate(cluster: ValkeyCluster, how: Migration, _: Load) -> None:
    for queue in QUEUES:
        source = cluster.owner(queue)
        how(cluster, _slot(queue), cluster.other_than(source))
        assert cluster.owner(queue) is not source


@pytest.mark.parametrize("how", [_by_key, ValkeyCluster.migrate_at_once])
async def test_a_slot_migrates_under_load(cluster: ValkeyCluster, how: Migration) -> None:
    """Every job that was acknowledged has run, and none twice: no connection was lost, so there is no reason for it.

    Report 102 (Bogdanp/dramatiq#754).
    """
    account = await _through(cluster, partial(_migrate, cluster, how), lease_ms=20_000)

    assert account.ended == set(account.load.acknowledged)
    assert [id for id, some in by_id(account.notes).items() if len(some) != 2] == []


async def test_a_failover_that_an_operator_asks_for(cluster: ValkeyCluster) -> None:
    """`CLUSTER FAILOVER` on the replica of each primary that has a queue: all that was acknowledged has run."""
    account = await _through(
        cluster, lambda _: [cluster.failover(cluster.owner(queue)) for queue in QUEUES], lease_ms=8_000
    )

    assert account.ended == set(account.load.acknowledged)
    assert at_once(account.notes) == []


async def test_a_primary_is_killed(cluster: ValkeyCluster) -> None:
    """What the replica had has run, nothing twice at once; the killed primary's queue is served again by the next step
    of the degraded curve, which is never longer than the outage has been.

    Report 47 (taskiq-python/taskiq-redis#130).
    """
    queue, killed, gone = "pool", cluster.owner("pool"), set[str]()

    def kill(made: Load) -> None:
        cluster.wait_primary(cluster.kill_primary(killed))
        gone.update(made.unconfirmed(queue))

    account = await _through(cluster, kill, lease_ms=8_000)
    cluster.revive(killed)

    assert len(gone) < len(account.load.acknowledged) / 2
    assert set(account.load.acknowledged) - gone <= account.ended <= set(account.load.acknowledged)
    assert at_once(account.notes) == []
    outage_s = account.over - account.began
    assert account.first_end_after(account.over, queue) < account.over + outage_s + BEAT_MS / 1_000 + _SLACK_S
