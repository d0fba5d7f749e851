"""Work that keeps a core busy, in processes of its own: the event loop stays free, and leases are kept.

export ECHOMQ_URL=redis://localhost:6379/0
echomq-worker enqueue primes 200000
echomq-worker run examples.cpu_processes:worker

A thread would not do: one that computes in Python keeps the others from running. `run --processes 4` is the other way,
with less to write: several workers, each with a handler that blocks its own event loop now and then.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import ParamSpec, TypeVar

from echomq_worker import Worker

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("cpu_processes")
worker = Worker()
CORES = os.cpu_count() or 1


def left_to_the_parent() -> None:
    """Ctrl-C reaches every process of a terminal; who decides when these end is the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Processes:
    """A pool of processes, made anew when one of them has died: the kernel takes those that want too much memory."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pool = self._made()

    def _made(self) -> ProcessPoolExecutor:
        # Not forked: a child would inherit locks that a thread holds at that moment.
        return ProcessPoolExecutor(self._size, multiprocessing.get_context("spawn"), left_to_the_parent)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await a function that runs in one of them. It, and what it takes and gives, have to be picklable."""
        pool = self._pool
        try:
            return await asyncio.wrap_future(pool.submit(function, *args, **kwargs))
        except BrokenProcessPool:
            if pool is self._pool:
                self._pool = self._made()
            raise  # this job is retried, in the new pool

    def close(self) -> None:
        """End them, those too whose job was cut off: it is somebody else's by now."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()


@worker.lifespan
async def processes() -> AsyncIterator[Processes]:
    """One pool for all handlers."""
    made = Processes(CORES)
    yield made
    made.close()


def count_primes(below: int) -> int:
    """How many primes there are below a number; no word of queues in it."""
    sieve = bytearray([1]) * below
    for number in range(2, int(below**0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, below, number)))
    return sum(sieve[2:])


@worker.handler("primes", concurrency=CORES, max_attempts=3)
async def primes(below: int, processes: Processes) -> None:
    """As many at a time as there are cores: what is claimed beyond that would only wait here."""
    log.info("%d primes below %d", await processes.run(count_primes, below), below)
