"""Leases: what this process holds is kept for as long as its handlers run, whatever the event loop does.

Source: design section 3 (Leases), protocol section 8 (extended at half the lease at the latest), script `keep`. One
thread per process, with an event loop and a connection of its own, extends the leases of many claims in one call, so
that a handler that blocks the main loop loses nothing. Documented limit: a C extension that never lets go of the GIL
for a lease.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import anyio

from echomq_worker.clock import Clock
from echomq_worker.connector import Wire
from echomq_worker.degraded import FAULTS, SCRIPT_ERRORS, Outage
from echomq_worker.errors import EchoMQError, ServerError
from echomq_worker.job import Job
from echomq_worker.keyspace import Keys
from echomq_worker.script import Call, evaluate_many

CHUNK = 500
# A lease is extended when a third of it is over; the keeper looks six times per lease, so half is the latest.
_EXTEND_AFTER = 1 / 3
_LOOKS_PER_LEASE = 6
# The keeper is behind when so much of a lease is over.
_LATE = 2 / 3

_K = TypeVar("_K")
_V = TypeVar("_V")
OnLost = Callable[[Job, str], None]
"""Told on the owner's event loop: a job, and why it is lost, or why it is asked to end."""
# What `keep` puts before the reason of a job that it has extended all the same.
_ASKED = "cancel:"


def _nobody_hears(_job: Job, _why: str) -> None:
    """Nobody wants to know."""


class ClosingWire(Wire, Protocol):
    """A wire that its maker closes; it connects at its first call."""

    async def open(self) -> None:
        """Connect now, where it is not connected. Raises what a call raises."""
        ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...


class Lease:
    """The lease of one claim, and the jobs under it that are still in hand. Read by the keeper's thread, changed by the
    event loop's.
    """

    __slots__ = ("extended_ms", "jobs", "keys", "lease_ms", "number", "on_asked", "on_lost")

    def __init__(
        self, keys: Keys, number: int, *, lease_ms: int, on_lost: OnLost, on_asked: OnLost, extended_ms: float
    ) -> None:
        self.keys = keys
        self.number = number
        self.lease_ms = lease_ms
        self.on_lost = on_lost
        self.on_asked = on_asked
        self.extended_ms = extended_ms
        self.jobs: dict[str, Job] = {}


class Leases:
    """Every lease of this process. `hold` and `let_go` cost a dictionary entry; `beat` is one pass over what is due."""

    __slots__ = ("_clock", "_kept", "_numbers")

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[int, Lease] = {}
        self._numbers = itertools.count()

    def hold(
        self,
        keys: Keys,
        jobs: Sequence[Job],
        *,
        lease_ms: int,
        claimed_ms: float,
        on_lost: OnLost,
        on_asked: OnLost = _nobody_hears,
    ) -> None:
        """Keep `jobs`, claimed by one call that was sent at `claimed_ms` (monotonic), until each is let go.

        Both are called on the event loop of the keeper's owner: `on_lost(job, reason)` with gone, stale or not_active,
        `on_asked(job, why)` where somebody asked for the job's end, at every extension again.
        """
        if not jobs:
            return
        lease = Lease(
            keys,
            next(self._numbers),
            lease_ms=lease_ms,
            on_lost=on_lost,
            on_asked=on_asked,
            extended_ms=claimed_ms,
        )
        for job in jobs:
            job.lease = lease
            lease.jobs[job.id] = job
        self._kept[lease.number] = lease

    def let_go(self, *jobs: Job) -> None:
        """Jobs are settled, released or lost: nothing keeps them any more. A second time has no effect."""
        for job in jobs:
            lease = job.lease
            if lease is None:
                continue
            job.lease = None
            held = lease.jobs
            held.pop(job.id, None)
            if not held:
                self._kept.pop(lease.number, None)

    def ask(self, queue: str, id: str, why: str) -> int:
        """Somebody asked for the end of a job: tell whoever holds it here. Answers how many claims were told."""
        leases = [lease for lease in self._kept.values() if lease.keys.queue == queue and id in lease.jobs]
        for lease in leases:
            lease.on_asked(lease.jobs[id], why)
        return len(leases)

    def keeps(self, job: Job) -> bool:
        """Whether the job's lease has not run out by our own clock: this process, or the server, may have stood still,
        and others have had the job since.
        """
        lease = job.lease
        return lease is None or self._clock.monotonic_ms() - lease.extended_ms < lease.lease_ms

    @property
    def held(self) -> int:
        """How many jobs are kept."""
        return sum(len(lease.jobs) for lease in _copy(self._kept))

    def late(self, queue: str) -> bool:
        """Whether leases of `queue` are late: the server was away, or this process stood still. Our own recovery must
        not run before they are extended, it would take what we hold.
        """
        now = self._clock.monotonic_ms()
        mine = (lease for lease in _copy(self._kept) if lease.keys.queue == queue)
        return any(now - lease.extended_ms > lease.lease_ms * _LATE for lease in mine)

    async def beat(
        self,
        wire: Wire,
        *,
        queue: str | None = None,
        tell: Callable[..., object] | None = None,
        over: float = _EXTEND_AFTER,
    ) -> int:
        """Extend every lease of which a third (`over`) has passed, of `queue` or of all; answers how many jobs.

        `tell(on_lost, job, reason)` for each job that could not be, `tell(on_asked, job, why)` for each that is asked
        to end; without it they are called here. Raises WireError or ServerError, after what was answered is told: what
        was not extended is due again.
        """
        now = self._clock.monotonic_ms()
        due = [
            lease
            for lease in _copy(self._kept)
            if now - lease.extended_ms >= lease.lease_ms * over and queue in {None, lease.keys.queue}
        ]
        chunks = list(_chunks(due))
        if not chunks:
            return 0
        replies = await evaluate_many(wire, [_keep(chunk) for chunk in chunks])
        errors: dict[Lease, EchoMQError] = {}
        for chunk, reply in zip(chunks, replies, strict=True):
            if isinstance(reply, EchoMQError):
                errors |= {lease: reply for lease, _ in chunk}
            else:
                _tell_all(chunk, reply, tell or _call)
        for lease in due:
            if lease not in errors:
                lease.extended_ms = now
        for error in errors.values():
            raise error
        return sum(map(len, chunks))


def _chunks(due: Sequence[Lease]) -> Iterator[list[tuple[Lease, Job]]]:
    """What one call can extend: jobs of one queue and one lease, whatever claims they came with."""
    alike: dict[tuple[str, int], list[tuple[Lease, Job]]] = {}
    for lease in due:
        alike.setdefault((lease.keys.queue, lease.lease_ms), []).extend((lease, job) for job in _copy(lease.jobs))
    for held in alike.values():
        for at in range(0, len(held), CHUNK):
            yield held[at : at + CHUNK]


def _keep(chunk: Sequence[tuple[Lease, Job]]) -> Call:
    lease = chunk[0][0]
    pairs = [word for _, job in chunk for word in (job.id, job.held)]
    return "keep", (lease.keys.active,), (lease.keys.base, lease.lease_ms, *pairs)


def _tell_all(chunk: Sequence[tuple[Lease, Job]], reply: Sequence[bytes], tell: Callable[..., object]) -> None:
    # In the order of the call. Of two claims of one id it is the earlier, which stands first, that is lost.
    at = 0
    for lease, job in chunk:
        if at < len(reply) and reply[at].decode() == job.id:
            reason = reply[at + 1].decode("utf-8", "replace")
            asked = reason.startswith(_ASKED)
            tell(lease.on_asked if asked else lease.on_lost, job, reason.removeprefix(_ASKED) if asked else reason)
            at += 2


def _call(on_lost: OnLost, job: Job, reason: str) -> None:
    on_lost(job, reason)


class Keeper:
    """The thread that beats `leases`. It connects when something is first due, and reports to its owner's loop."""

    __slots__ = (
        "_beside",
        "_ended",
        "_failed",
        "_failing",
        "_leases",
        "_look_ms",
        "_loop",
        "_make",
        "_outage",
        "_refusals",
        "_stopping",
        "_task",
        "_thread_loop",
        "extended",
        "wire",
    )

    def __init__(
        self,
        leases: Leases,
        make: Callable[[], ClosingWire],
        *,
        shortest_lease_ms: int,
        outage: Outage,
        beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """`beside()` runs in the thread as well, until the end."""
        # How many times a lease was extended here.
        self.extended = 0
        self.wire: ClosingWire | None = None
        self._beside = beside
        self._leases = leases
        self._make = make
        self._look_ms = shortest_lease_ms / _LOOKS_PER_LEASE
        self._outage = outage
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._refusals = 0
        self._failing = False
        self._failed: BaseException | None = None
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Keep leases until cancelled. Raises what ends the thread, so that a bug there is not a silent loss."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name="leases", daemon=True).start()
        try:
            await self._ended.wait()
        finally:
            self._stopping = True
            if self._thread_loop is not None and self._task is not None:
                # The thread may have ended by itself, its loop is closed then.
                with suppress(RuntimeError):
                    self._thread_loop.call_soon_threadsafe(self._task.cancel)
            with anyio.CancelScope(shield=True):
                await self._ended.wait()
        if self._failed is not None:
            raise self._failed

    def _run(self) -> None:
        try:
            asyncio.run(self._keep())
        except asyncio.CancelledError:
            pass  # `run` was left: the connection is closed, nothing is lost
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            self._failed = error
        finally:
            self._tell(self._ended.set)

    async def _keep(self) -> None:
        self._task = asyncio.current_task()
        self._thread_loop = asyncio.get_running_loop()
        wire = self.wire = self._make()
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = None if self._beside is None else tasks.create_task(self._beside())
                while not self._stopping:
                    await self._beat(wire)
                    await asyncio.sleep(self._look_ms / 1000)
                if beside is not None:
                    beside.cancel()
        finally:
            await wire.aclose()

    async def _beat(self, wire: ClosingWire) -> None:
        try:
            extended = await self._leases.beat(wire, tell=self._tell)
            self.extended += extended
            if self._failing and not extended:
                # Nothing is due, as our own recovery has extended it over another connection, or it has ended: that
                # this one works again is seen by opening it.
                await wire.open()
        except FAULTS as error:
            self._refusals = self._refusals + 1 if isinstance(error, ServerError) else 0
            if self._refusals >= SCRIPT_ERRORS:
                raise
            self._failing = True
            self._tell(self._outage.enter, "leases", error)
            return
        self._refusals, self._failing = 0, False
        self._tell(self._outage.leave, "leases")

    def _tell(self, what: Callable[..., object], *args: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *args)


def _copy(values: dict[_K, _V]) -> list[_V]:
    """The values at one moment, though another thread may change the dictionary meanwhile."""
    while True:
        try:
            return list(values.values())
        except RuntimeError:  # resized while it was copied
            continue
