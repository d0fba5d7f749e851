"""What the workers say of themselves: each is asked for its metrics now and then, and once more when all has drained.

Source: issue "Made for the people who run it" (metrics equal a hand count after the chaos run).
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from bench.chaos.evidence import Scrape
from bench.chaos.fleet import Kept
from bench.chaos.notes import now_ms

_LOOK_S = 1.0
_PATIENCE_S = 3.0
# What answers are on their way get to arrive, when nothing waits on the server any more.
_SETTLED_S = 15.0
_WAITS = frozenset({"pending", "active", "scheduled", "ready", "repeats"})
_STANDS = {
    b"echomq_queue_ready_jobs": "ready",
    b"echomq_queue_expired_leases": "expired",
    b"echomq_queue_repeats": "repeats",
    b"echomq_queue_completed_total": "completed",
    b"echomq_queue_died_total": "died",
}
_SAMPLE = re.compile(rb"^(echomq_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(rb'(\w+)="([^"]*)"')


class Scrapes:
    """The last answer of every process that was started: a worker, or the supervisor of several."""

    def __init__(self, workers: Sequence[Kept]) -> None:
        self._workers = workers
        self._last: dict[int, Scrape] = {}

    async def watch(self) -> None:
        """Ask them until cancelled."""
        while True:
            await asyncio.gather(*(self._ask(worker) for worker in self._workers))
            await asyncio.sleep(_LOOK_S)

    async def finish(self) -> list[Scrape]:
        """Every process's last answer; of those that run the one after the last of their verdicts was answered."""
        await asyncio.gather(*(self._last_of(worker) for worker in self._workers))
        return list(self._last.values())

    async def _last_of(self, worker: Kept) -> None:
        until = now_ms() + _SETTLED_S * 1000
        while now_ms() < until:
            found = await self._ask(worker)
            if found is not None and not found.open:
                self._last[found.pid] = replace(found, last=True)
                # The queues are read once a second at most: what it says of them may be of before.
                if not sum(found.stands.get((queue, name), 0) for queue, name in found.stands if name in _WAITS):
                    return
            await asyncio.sleep(_LOOK_S / 4)

    async def _ask(self, worker: Kept) -> Scrape | None:
        """One answer; None where there was none, or of nobody knows whom."""
        if not worker.running:
            return None
        pid = worker.pid
        with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_PATIENCE_S):
                text = await _page(worker.port)
            # Started anew meanwhile: it may be the answer of either.
            if worker.pid == pid:
                self._last[pid] = made = _read(worker.name, pid, text)
                return made
        return None


@asynccontextmanager
async def scraping(workers: Sequence[Kept]) -> AsyncIterator[Scrapes]:
    """They are asked while inside."""
    scrapes = Scrapes(workers)
    task = asyncio.create_task(scrapes.watch(), name="scrapes")
    try:
        yield scrapes
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _page(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n\r\n")
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise ValueError("no metrics")
        return body
    finally:
        writer.close()


def _read(worker: str, pid: int, text: bytes) -> Scrape:
    started: Counter[str] = Counter()
    outcomes: Counter[tuple[str, str]] = Counter()
    stands: dict[tuple[str, str], int] = {}
    still = 0
    for name, labels, value in _SAMPLE.findall(text):
        of = {label.decode(): text.decode() for label, text in _LABEL.findall(labels)}
        if name == b"echomq_jobs_started_total":
            started[of["queue"]] = int(float(value))
        elif name == b"echomq_jobs_total":
            outcomes[of["queue"], of["outcome"]] = int(float(value))
        elif name in {b"echomq_verdicts_unanswered", b"echomq_jobs_running"}:
            still += int(float(value))
        elif name == b"echomq_queue_jobs":
            stands[of["queue"], of["state"]] = int(float(value))
        elif name in _STANDS:
            stands[of["queue"], _STANDS[name]] = int(float(value))
    return Scrape(worker, pid, now_ms(), started, outcomes, open=still, stands=stands)
