"""A run from its beginning to its end: server, proxies, workers, producers, faults. Then everything drains, and what
was seen is handed to the account.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.chaos import copies, leftovers
from bench.chaos.clock import SteppedClock
from bench.chaos.collect import Tap, collect
from bench.chaos.evidence import Evidence, Grid, Terms
from bench.chaos.faults import Faults
from bench.chaos.fleet import Kept, Place
from bench.chaos.notes import Book, host_minus_ms, now_ms
from bench.chaos.plan import PRODUCERS, Fault
from bench.chaos.producers import REPEATS, Producer, Work
from bench.chaos.scrapes import scraping
from bench.chaos.watch import watch_gaps
from echomq_worker import EchoMQError, connect
from echomq_worker.clock import SystemClock
from echomq_worker.connector import Connector
from echomq_worker.twins import SCRIPTS
from tests.support.proxy import Proxy
from tests.support.valkey import ValkeyServer

_DRAIN_S = 120.0
_LOOK_S = 0.5
_UP_S = 60.0


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked of a run. `forget`: the server keeps no file. `wire`: what workers and producers speak; `module` is
    loaded into the server. `replica`: the server has one, and the copies are compared at the end.
    """

    seed: int
    length_ms: int
    workers: int
    jobs_per_s: float
    terms: Terms
    plan: Sequence[Fault]
    folder: Path
    forget: bool = False
    wire: str = "4"
    module: Path | None = None
    replica: bool = False

    @property
    def calls_twins(self) -> bool:
        """Whether commands are called in place of scripts: with `auto` only where the server has them."""
        return self.wire != SCRIPTS and self.module is not None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The evidence, the faults that missed by kind, and how long the drain took."""

    evidence: Evidence
    missed: dict[str, int]
    drained_ms: float


async def run(order: Order, say: Callable[[str], None]) -> Outcome:
    """Carry it out. `say` is told now and then how it goes."""
    # With a file it is written before anything is answered: what was acknowledged is kept.
    module = ("--loadmodule", str(order.module)) if order.module else ()
    server = ValkeyServer(append_only=not order.forget, args=module)
    await asyncio.to_thread(server.start)
    # Without the module: what it is sent are plain commands.
    replica = ValkeyServer(args=("--replicaof", f"127.0.0.1 {server.port}")) if order.replica else None
    try:
        if replica is not None:
            await asyncio.to_thread(replica.start)
        return await _run(order, server, replica, say)
    finally:
        for one in (replica, server):
            if one is not None:
                await asyncio.to_thread(one.close)


async def _run(order: Order, server: ValkeyServer, replica: ValkeyServer | None, say: Callable[[str], None]) -> Outcome:
    place, book = Place(order.folder), Book(order.folder / "orders", PRODUCERS)
    tap = Tap()
    async with AsyncExitStack() as stack:
        gaps = stack.enter_context(watch_gaps())
        proxies = [
            await stack.enter_async_context(Proxy(server.port, remembers=False, tap=tap.command))
            for _ in range(order.workers)
        ]
        way_in = await stack.enter_async_context(Proxy(server.port, remembers=False))
        workers = [Kept(number, proxy, place, order.terms, wire=order.wire) for number, proxy in enumerate(proxies)]
        scrapes = await stack.enter_async_context(scraping(workers))
        faults = Faults(server, workers, way_in, place=place, book=book, twins=order.calls_twins)
        producer = await stack.enter_async_context(_producer(order, way_in, book, place))
        await producer.limit_lanes()
        keeping = [asyncio.create_task(worker.run(), name=f"worker {worker.name}") for worker in workers]
        try:
            await _all_up(workers)
            firsts = await producer.register()
            await _storm(order, faults, producer, say)
            until_ms = SystemClock().now_ms()
            await _patiently(producer.cancel)
            begun = now_ms()
            async with connect(server.url) as connector:
                await _drain(connector, say)
                drained_ms = now_ms() - begun
                told = await scrapes.finish()
                stands = await leftovers.counts(connector)
                await asyncio.gather(*(one.stop(task) for one, task in zip(workers, keeping, strict=True)))
                left, places, completed = await leftovers.look(connector)
            if order.replica:
                differ, count = await asyncio.to_thread(copies.compare, server, replica)
                left += differ
                say(f"replica and append-only file: {count} keys compared, {len(differ) or 'none'} of the two differs")
        finally:
            await _end(workers, keeping)
            book.close()
        grids = [Grid(name, first, REPEATS[name], until_ms, host_minus_ms()) for name, first in firsts.items()]
        evidence = collect(
            order.folder,
            terms=order.terms,
            faults=[*faults.happened, *gaps],
            fires=tap.fires,
            grids=grids,
            workers=workers,
            scrapes=told,
        )
    return Outcome(leftovers.added(evidence, left, places, completed, stands), dict(faults.missed), drained_ms)


async def _end(workers: Sequence[Kept], keeping: Sequence[asyncio.Task[None]]) -> None:
    """Nothing of them is left behind."""
    for worker in workers:
        worker.kill_all()
    for task in keeping:
        task.cancel()
    await asyncio.gather(*keeping, return_exceptions=True)


@asynccontextmanager
async def _producer(order: Order, way_in: Proxy, book: Book, place: Place) -> AsyncIterator[Producer]:
    clock = SteppedClock(place.clock(PRODUCERS))
    work = Work(order.jobs_per_s, min(8_000, 2 * order.terms.lease_ms))
    async with connect(way_in.url, connect_timeout_ms=1_500, command_timeout_ms=1_500, wire=order.wire) as wire:
        # Its repeats are priced on the true clock.
        yield Producer(wire, book, seed=str(order.seed), work=work, clock=clock)


async def _all_up(workers: Sequence[Kept]) -> None:
    until = now_ms() + _UP_S * 1000
    while not all(worker.pids() for worker in workers):
        if now_ms() > until:
            raise RuntimeError(f"a worker did not start within {_UP_S:.0f} s; see its log in the folder")
        await asyncio.sleep(_LOOK_S)


async def _storm(order: Order, faults: Faults, producer: Producer, say: Callable[[str], None]) -> None:
    """Jobs and faults for as long as was asked; then the last answers."""
    begun = now_ms()
    making = asyncio.create_task(producer.run(), name="producer")
    breaking = asyncio.create_task(faults.run(order.plan), name="faults")
    telling = asyncio.create_task(_tell(begun, faults, producer, say), name="teller")
    try:
        # Who breaks raises below.
        await asyncio.wait({breaking, making}, timeout=order.length_ms / 1000, return_when="FIRST_EXCEPTION")
        producer.stop()
        await breaking
        await making
    finally:
        tasks = [making, breaking, telling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _tell(begun: float, faults: Faults, producer: Producer, say: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(10)
        say(f"{(now_ms() - begun) / 1000:.0f} s: {producer.made} jobs, {len(faults.happened)} faults")


async def _patiently(call: Callable[[], object]) -> None:
    while True:
        with suppress(EchoMQError):
            await call()  # type: ignore[misc]  # a coroutine function
            return
        await asyncio.sleep(_LOOK_S)


async def _drain(connector: Connector, say: Callable[[str], None]) -> None:
    """Until nothing waits any more, or it takes so long that the account has to say what is left."""
    waiting = 0
    for _ in range(round(_DRAIN_S / _LOOK_S)):
        waiting = await leftovers.waiting(connector)
        if not waiting:
            return
        await asyncio.sleep(_LOOK_S)
    say(f"{waiting} jobs still wait {_DRAIN_S:.0f} s after the last fault")
