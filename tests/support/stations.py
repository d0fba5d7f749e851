"""The loops of one queue in a test's body: handlers run and verdicts go out, the rest is driven by hand.

A context manager, not a fixture: a task group held open across a fixture's yield does not work under pytest-asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import anyio
import redis
from redis.asyncio import Redis

from echomq_worker.clock import Clock, SystemClock
from echomq_worker.connector import Connector, connect
from echomq_worker.consumer import Consumer
from echomq_worker.degraded import Degraded, Outage
from echomq_worker.handlers import Handlers
from echomq_worker.identity import Mint
from echomq_worker.job import Job, JobContext
from echomq_worker.keyspace import Keys
from echomq_worker.leases import Leases
from echomq_worker.options import Limits
from echomq_worker.station import Pace, Shared, Station
from echomq_worker.suspects import Suspects
from echomq_worker.verdict import Verdict
from tests.support.clock import ManualClock
from tests.support.plain import Queue, job, row
from tests.support.waiting import wait_until

QUEUE = "q"
BEAT_MS = 100
LEASE_MS = 10_000


class Lines:
    """A logger that keeps its lines: (level, event, fields)."""

    def __init__(self, kept: list[tuple[str, str, dict[str, Any]]] | None = None, **bound: Any) -> None:
        self.kept = [] if kept is None else kept
        self._bound = bound

    def bind(self, **fields: Any) -> Self:
        """The same list, more fields."""
        return type(self)(self.kept, **{**self._bound, **fields})

    def debug(self, event: str, **fields: Any) -> None:
        """A start."""
        self._keep("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """An end."""
        self._keep("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Trouble."""
        self._keep("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """A death."""
        self._keep("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """With a trace."""
        self._keep("exception", event, fields)

    def _keep(self, level: str, event: str, fields: dict[str, Any]) -> None:
        self.kept.append((level, event, {**self._bound, **fields}))

    @property
    def events(self) -> list[str]:
        """The events in order."""
        return [event for _, event, _ in self.kept]

    def of(self, event: str) -> list[dict[str, Any]]:
        """The fields of each line of one event."""
        return [fields for _, name, fields in self.kept if name == event]


def degraded(
    name: str = "loop", *, clock: Clock | None = None, beat_ms: int = 10, lines: Lines | None = None
) -> Degraded:
    """The streak of a loop, with an outage of its own."""
    outage = Outage(clock=clock or SystemClock(), log=lines or Lines())
    return Degraded(name, outage=outage, beat_ms=beat_ms)


def job_of(wire: Any = None, id: str = "JOB00000000001", *, attempts: int = 1, **fields: Any) -> Job:
    """A job in hand as a claim makes it; without a wire where the test needs none. Only inside an event loop."""
    context = JobContext(Keys(fields.pop("queue", QUEUE)), wire, max_attempts=fields.pop("max_attempts", 3))
    return Job(context, id, fields.pop("payload", b"{}"), attempts, **fields)


@dataclass
class Stand:
    """What a test holds: the station and what it was made of."""

    station: Station
    shared: Shared
    connector: Connector
    lines: Lines
    clock: Clock

    @property
    def consumer(self) -> Consumer:
        """The first consumer."""
        return self.station.consumers[0]

    @property
    def counts(self) -> dict[str, int]:
        """What the journal has counted."""
        return dict(self.station.journal.counts)


class FastClock(ManualClock):
    """A clock on which every sleep is over at once: time goes by as fast as somebody waits for it."""

    async def sleep_ms(self, ms: float) -> None:
        """Let the time pass and give the loop one turn."""
        self.advance(max(0, round(ms)))
        await asyncio.sleep(0)

    def call_later(self, ms: float, callback: Callable[[], object], /) -> asyncio.Future[None]:
        """Let the time pass at once."""
        self.advance(max(0, round(ms)))
        return super().call_later(0, callback)


class Gate:
    """A handler whose jobs end when the gate opens; it notes who began, ended and was cancelled."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.began: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []

    async def handler(self, job: Job) -> None:
        """What is registered."""
        self.began.append(job.id)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(job.id)
            raise
        self.ended.append(job.id)


async def pending(raw: Redis, numbers: range, **fields: Any) -> list[str]:
    """Flat pending jobs; answers their ids."""
    rows = {f"job:{job(n)}": row(**fields) for n in numbers}
    await Queue(raw).put({"pending": {job(n): 0 for n in numbers}, **rows})
    return [job(n) for n in numbers]


async def expired(raw: Redis, number: int) -> str:
    """A job whose lease ran out in 1970."""
    await Queue(raw).put({"active": {job(number): 1}, f"job:{job(number)}": row("active", 1)})
    return job(number)


async def parked(raw: Redis, count: int = 1) -> None:
    """Until so many connections wait in a BLPOP."""

    async def blocked() -> bool:
        return bool((await raw.info("clients"))["blocked_clients"] == count)

    await wait_until(blocked, f"{count} parked")


async def nothing(job: Job) -> None:
    """A handler that does nothing."""


def pace_of(options: dict[str, Any]) -> Pace:
    """The numbers of a worker for a test; what `options` has of them is taken out of it."""
    numbers: dict[str, Any] = {
        "name": "test",
        "beat_ms": BEAT_MS,
        "tick_ms": 50,
        "promote_batch": 100,
        "max_crashes": 5,
        "stalled": None,
        "pump": False,
        "events": True,
        "limits": Limits(lease_ms=LEASE_MS, retry=50),
        "level": "debug",
    }
    return Pace(**{name: options.pop(name, number) for name, number in numbers.items()})


@asynccontextmanager
async def stand(
    url: str,
    handler: Callable[..., Any] = nothing,
    *,
    queue: str = QUEUE,
    clock: Clock | None = None,
    settles: bool = True,
    shared: dict[str, Any] | None = None,
    batch: dict[str, Any] | None = None,
    command_timeout_ms: int = 5_000,
    **options: Any,
) -> AsyncIterator[Stand]:
    """A station of `handler` on the server at `url`: its slots run and, with `settles`, its verdicts go out.

    No loop that claims, sweeps or fires runs: call `beat()`, or start them. `options` are those of `pace_of` and the
    handler's, `batch` those that make it a batch handler, `shared` replaces parts (leases, suspects) so that two stands
    can be one process.
    """
    clock = clock or SystemClock()
    lines, pace = Lines(), pace_of(options)
    handlers = Handlers()
    register: Callable[..., Any] = handlers.register if batch is None else partial(handlers.register_batch, **batch)
    register(queue, **options)(handler)
    (bound,) = handlers
    async with (
        connect(url, clock=clock, command_timeout_ms=command_timeout_ms) as connector,
        anyio.create_task_group() as tasks,
    ):
        parts: dict[str, Any] = {
            "connector": connector,
            "clock": clock,
            "mint": Mint(clock, 7),
            "leases": Leases(clock=clock),
            "suspects": Suspects(),
            "outage": Outage(clock=clock, log=lines),
            "log": lines,
            "tasks": tasks,
            "state": None,
        }
        made = Shared(**{**parts, **(shared or {})})
        station = Station(bound, made, pace)
        if settles:
            tasks.start_soon(station.settle.run, name="settle")
        try:
            yield Stand(station, made, connector, lines, clock)
        finally:
            station.stop()
            station.executor.close()
            tasks.cancel_scope.cancel()


def verdict_of(answers: list[tuple[Job, Verdict, str]]) -> dict[str, str]:
    """Job id to answer."""
    return {job.id: answer for job, _, answer in answers}


def calls_of(admin: redis.Redis, command: str = "evalsha") -> int:
    """How many times the server has been sent `command` since its statistics were reset."""
    stats: Any = admin.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


@contextmanager
def counting(admin: redis.Redis, command: str = "evalsha") -> Iterator[Callable[[], int]]:
    """Inside, calling what is yielded tells how many `command` the server has been sent since the beginning."""
    before = calls_of(admin, command)
    yield lambda: calls_of(admin, command) - before
