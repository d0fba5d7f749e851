"""A steady load of jobs on several queues of a cluster, and the account of every id at the end.

Source: issue "The five promises" (done when: failover during a load of 500 jobs/s). An acknowledged job counts as kept
once a replica has confirmed a later write of its primary: what a primary acknowledged and took with it into its death
the servers have not kept, and no client can.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import redis.exceptions

from echomq_worker.clock import SystemClock
from echomq_worker.connector import Connector, connect
from echomq_worker.errors import WireError
from echomq_worker.identity import Mint
from echomq_worker.jobs import Jobs, New
from echomq_worker.metrics import Metrics
from tests.support.app import Note
from tests.support.cluster import ValkeyCluster
from tests.support.waiting import passes, wait_until

QUEUES = ("jobs", "other", "pool")
"""Queues of `tests.support.app`; of the cluster's fixture each is with another primary."""

_BATCH = 10
_STEP_S = 0.02
_AGAIN_S = 0.05
_KEPT_STEP_S = 0.1
_KEPT_MS = 500


class Load:
    """500 jobs a second, in turn to each queue, until it is left. What could not be sent is sent again with its id."""

    def __init__(self, cluster: ValkeyCluster, connector: Connector, *, sleep_ms: int = 20) -> None:
        self.acknowledged: dict[str, str] = {}
        self._confirmed: set[str] = set()
        self._cluster = cluster
        self._jobs = Jobs(connector)
        self._mint = Mint(SystemClock())
        self._sleep_ms = sleep_ms
        self._sending: set[asyncio.Task[None]] = set()

    async def produce(self) -> None:
        """Batches of ten, one every 20 ms, until cancelled; nobody waits for an earlier batch."""
        loop = asyncio.get_running_loop()
        at, number = loop.time(), 0
        try:
            while True:
                task = asyncio.create_task(self._send(QUEUES[number % len(QUEUES)]))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
                number, at = number + 1, at + _STEP_S
                await passes((at - loop.time()) * 1000, "the load has its pace")
        finally:
            # What was begun is sent to its end.
            while self._sending:
                await asyncio.gather(*self._sending)

    async def _send(self, queue: str) -> None:
        ids = [self._mint.next() for _ in range(_BATCH)]
        while True:
            try:
                await self._jobs.enqueue_many(queue, [New({"sleep_ms": self._sleep_ms}, id=id) for id in ids])
            except WireError:
                await passes(_AGAIN_S * 1000, "it is tried again")
            else:
                # Another thread may be reading it: it is not changed but replaced.
                self.acknowledged = self.acknowledged | dict.fromkeys(ids, queue)
                return

    async def confirm(self) -> None:
        """Again and again: what is acknowledged now is kept, once the replicas have what was written after it."""
        while True:
            before = dict(self.acknowledged)
            queues = await asyncio.to_thread(lambda: {queue for queue in QUEUES if self._is_confirmed(queue)})
            self._confirmed |= {id for id, queue in before.items() if queue in queues}
            await passes(_KEPT_STEP_S * 1000, "it is looked at now and then")

    def unconfirmed(self, queue: str) -> set[str]:
        """What is acknowledged and would be gone if the primary died now, or may be."""
        return {id for id, of in self.acknowledged.items() if of == queue} - self._confirmed

    def _is_confirmed(self, queue: str) -> bool:
        try:
            admin = self._cluster.owner(queue).admin
            admin.set(f"{{{queue}}}:confirmed", 1)
            return bool(admin.wait(1, _KEPT_MS))
        except (redis.exceptions.RedisError, LookupError):
            return False


@asynccontextmanager
async def load(cluster: ValkeyCluster) -> AsyncIterator[Load]:
    """A load for the length of a block; at its end all that was begun is acknowledged."""
    async with connect(cluster.url, command_timeout_ms=1_000) as connector:
        made = Load(cluster, connector)
        confirming = asyncio.create_task(made.confirm())
        producing = asyncio.create_task(made.produce())
        try:
            yield made
        finally:
            producing.cancel()
            confirming.cancel()
            await asyncio.wait({producing, confirming})


async def worked_off(connector: Connector, queues: Sequence[str] = QUEUES) -> None:
    """Wait until nothing is pending or in hand."""
    metrics = Metrics(connector)

    async def empty() -> bool:
        try:
            counts = [await metrics.counts(queue) for queue in queues]
        except WireError:
            return False
        return not any(one.pending + one.active for one in counts)

    await wait_until(empty, f"nothing waits in {', '.join(queues)}")


def by_id(notes: Sequence[Note]) -> dict[str, list[Note]]:
    """Notes by job, in order of time."""
    found: dict[str, list[Note]] = defaultdict(list)
    for note in sorted(notes, key=lambda one: one.at):
        found[note.id].append(note)
    return found


def at_once(notes: Sequence[Note]) -> list[str]:
    """Ids of which a run began before the last one had ended."""
    found = []
    for id, some in by_id(notes).items():
        kinds = [note.what for note in some]
        if any(a == b == "start" for a, b in itertools.pairwise(kinds)):
            found.append(id)
    return found
