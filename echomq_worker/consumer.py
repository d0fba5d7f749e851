"""Consumer: one queue's beat of recovery, promote, then claim; park until a token or the beat.

Source: design section 3 (Consumer), protocol section 4, seeds ("the Consumer's beat runs its recovery leg, then
promote/3, then the claims"). `beat()` is one pass in one round trip; `run()` repeats it. A pooled consumer has no
recovery of its own: the Metronome sweeps for the whole pool and wakes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from echomq_worker.begun import Begun
from echomq_worker.claims import Claimed, Claims, brings_jobs
from echomq_worker.clock import Clock, Rhythm
from echomq_worker.connector import Wire
from echomq_worker.degraded import FAULTS, Degraded
from echomq_worker.errors import AuthenticationFailed, CommandTimeout, Unreachable
from echomq_worker.job import LEASE_LOST, Job, ask, cancel
from echomq_worker.journal import Journal
from echomq_worker.keyspace import Keys
from echomq_worker.leases import Leases
from echomq_worker.nap import Nap
from echomq_worker.outcome import Abandoned, Outcome
from echomq_worker.recovery import Recovery, Swept
from echomq_worker.script import Call, evaluate, evaluate_many
from echomq_worker.settle import Settle
from echomq_worker.slots import Places
from echomq_worker.suspects import Suspects

_LATE = "a claim was answered a lease after it was sent"


class Rest(Protocol):
    """Where a consumer parks: on a connection of its own, or with the Metronome of its pool."""

    async def park(self, timeout_ms: float, told: Callable[[], object] | None = None, /) -> None:
        """Return when something may have become ready, or after `timeout_ms`. `told` is called a turn of the event loop
        before that, where something is there.
        """
        ...

    def leave(self) -> None:
        """End the park that is on. What it has been handed in this very turn goes to others."""
        ...

    def more(self) -> None:
        """This consumer left work behind: another one that parks should look."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a consumer works with. `recovery` is None in a pool: the Metronome sweeps. `interrupts`: a handler's task is
    cancelled when somebody asks for the end of its job. `origin_ms`: from when all loops of the process count beats.
    `on_claimed` is told what each claim has brought.
    """

    clock: Clock
    beat_ms: int
    lease_ms: int
    claims: Claims
    recovery: Recovery | None
    rest: Rest
    settle: Settle
    leases: Leases
    suspects: Suspects
    degraded: Degraded
    journal: Journal
    on_buried: Callable[[str, str], None]
    interrupts: bool = False
    origin_ms: float | None = None
    on_claimed: Callable[[list[Job]], object] | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """What one pass did: what was swept (None: it was not due), and what was claimed (None: no slot was free, or it was
    not the time); whether it has looked without claiming.
    """

    swept: Swept | None
    claimed: Claimed | None
    looked: bool = False

    @property
    def asked(self) -> bool:
        """Whether the server was asked for anything, and has answered."""
        return self.looked or self.swept is not None or self.claimed is not None


class Consumer:
    """The consumer of one queue, or one of its pool. All that it needs is handed in; it reads no configuration."""

    def __init__(
        self, wire: Wire, keys: Keys, parts: Parts, *, slots: Callable[[Callable[[Job, Outcome], None]], Places]
    ) -> None:
        """`slots` makes the slots, given what to call when a job ends."""
        self.queue = keys.queue
        self.claims = parts.claims
        self.slots = slots(self._ended)
        self.unstarted: list[Job] = []
        self.interrupted: list[Job] = []
        self.beaten_ms: float | None = None
        # Told of each end of a job and of answered verdicts, where somebody waits for the last of them.
        self.changed: Callable[[], None] | None = None
        self._wire = wire
        self._keys = keys
        self._clock = parts.clock
        self._rhythm = Rhythm.of(parts.clock, parts.beat_ms, parts.origin_ms)
        self._lease_ms = parts.lease_ms
        self._recovery = parts.recovery
        self._rest = parts.rest
        self._settle = parts.settle
        self._leases = parts.leases
        self._suspects = parts.suspects
        self._degraded = parts.degraded
        self._journal = parts.journal
        self._on_buried = parts.on_buried
        self._interrupts = parts.interrupts
        self._on_claimed = parts.on_claimed
        self._nap = Nap()
        # A claim that left when a token came, and when.
        self._ahead: tuple[Begun[Any], float] | None = None
        self._wants_slot = False
        self._stopping = False
        self._next_sweep_ms = self._clock.monotonic_ms()

    def hold(self) -> None:
        """Begin nothing and claim nothing any more, until `stop`. May be called in a signal handler."""
        self._stopping = True
        self.slots.hold()

    def stop(self) -> None:
        """Claim nothing any more; `run` returns when the claim in flight is answered. What has not begun by now does
        not begin: it is `unstarted`. Twice is fine.
        """
        self._stopping = True
        self.unstarted += self.slots.take_unstarted()
        self._nap.wake()

    def settled(self) -> None:
        """Verdicts were answered: a consumer that stood still for them goes on."""
        if self.slots.free > 0 and not self._settle.stuck:
            self._wake_for_slot()
        if self.changed is not None:
            self.changed()

    async def beat(self) -> Beat:
        """One pass: recovery and promote where they are due, then one claim for the free slots, in one round trip.

        Raises WireError or ServerError; what was claimed before it is in hand. Shielded: a cancellation waits for it.
        """
        if self._ahead is not None:
            (answer, sent_ms), self._ahead = self._ahead, None
            return Beat(None, await self._claimed(answer, sent_ms))
        now = self._clock.monotonic_ms()
        recovery, free = self._due(now), self._wanted()
        if recovery is not None:
            return await self._beat_with(recovery, now)
        if free <= 0:
            return Beat(None, None)
        return Beat(None, await self._claimed(evaluate(self._wire, *self.claims.call(free)), now))

    async def _beat_with(self, recovery: Recovery, now: float) -> Beat:
        """Recovery and promote, and a claim where there is room."""
        await recovery.before()
        calls: list[Call] = list(recovery.calls())
        free = self._wanted()
        if free > 0:
            calls.append(self.claims.call(free))
        with anyio.CancelScope(shield=True):
            try:
                replies = await evaluate_many(self._wire, calls)
            except (Unreachable, AuthenticationFailed):
                if free > 0:
                    self.claims.unsent()
                raise
            claim = replies.pop() if free > 0 else None
            claimed = None if claim is None else self._take(claim, now)
            swept = await recovery.sweep(replies)
            self._next_sweep_ms = self._rhythm.after(now)
        if claim is not None and claimed is None:
            raise claim if isinstance(claim, Exception) else CommandTimeout(_LATE)
        return Beat(swept, claimed)

    async def run(self) -> None:
        """Beat until stopped; a wire error on any leg ends the beat, and the loop sleeps on the degraded curve."""
        try:
            while not self._stopping:
                await self._once()
        finally:
            if self._ahead is not None:
                # Stopped or cancelled with a claim on its way: what it brings is in hand all the same.
                with suppress(*FAULTS):
                    await self.beat()

    async def _once(self) -> None:
        try:
            beat = await self.beat()
            if beat.claimed is not None and not beat.claimed.full:
                # Handlers begin first.
                await asyncio.sleep(0)
            self.beaten_ms = self._clock.monotonic_ms()
            if beat.asked:
                self._degraded.worked()
            await self._rest_after(beat)
            if beat.asked:
                # The rest is a leg too: one that fails each time is an outage, not one per beat.
                self._degraded.good()
        except FAULTS as error:
            await self._nap.sleep(self._clock, self._degraded.fail(error, self._nap.wake))

    def _claim_ahead(self) -> None:
        """A token is there, or it is this consumer's turn to look: the claim leaves now, and the next pass reads it."""
        if self._stopping:
            # Others may have the token: held, this consumer has no use for it.
            self._rest.leave()
            return
        now, free = self._clock.monotonic_ms(), self._wanted()
        if free > 0 and self._due(now) is None:
            self._ahead = Begun(evaluate(self._wire, *self.claims.call(free))), now

    async def _claimed(self, answer: Awaitable[Any], sent_ms: float) -> Claimed:
        """What the claim has brought that `answer` waits for."""
        with anyio.CancelScope(shield=True):
            try:
                reply = await answer
            except (Unreachable, AuthenticationFailed):
                self.claims.unsent()
                raise
            claimed = self._take(reply, sent_ms)
        if claimed is None:
            raise CommandTimeout(_LATE)
        return claimed

    async def read_receipt(self) -> list[Job]:
        """At the end: the jobs of a claim whose reply was never read, which are in hand. Raises WireError.

        Not shielded: it may be asked again, and the process does not wait for it for ever.
        """
        if not self.claims.unread:
            return []
        reply = (await evaluate_many(self._wire, [self.claims.call(0)]))[0]
        if isinstance(reply, Exception):
            raise reply
        return self.claims.read(reply).jobs

    def _wanted(self) -> int:
        """How many jobs to claim now."""
        return 0 if self._stopping or self._settle.stuck else min(self.slots.free, self.slots.per_claim)

    def _due(self, now: float) -> Recovery | None:
        """The recovery, where it is time for it."""
        return self._recovery if now >= self._next_sweep_ms - self._rhythm.early_ms else None

    def _left_ms(self) -> float:
        """How long to rest at most."""
        if self._recovery is None:
            return float(self._rhythm.period_ms)
        return max(1.0, self._next_sweep_ms - self._clock.monotonic_ms())

    def _take(self, reply: Any, sent_ms: float) -> Claimed | None:
        if isinstance(reply, Exception):
            return None
        # This process stood still, or its connection, for a lease: others may have had what the reply brings. Unread it
        # is like one that was lost, and the receipt tells the next claim what is still in hand.
        if self._clock.monotonic_ms() - sent_ms >= self._lease_ms and brings_jobs(reply):
            return None
        claimed = self.claims.read(reply)
        if self._on_claimed is not None:
            self._on_claimed(claimed.jobs)
        for id, reason in claimed.buried:
            self._on_buried(id, reason)
        self._leases.hold(
            self._keys,
            claimed.jobs,
            lease_ms=self._lease_ms,
            claimed_ms=sent_ms,
            on_lost=self._lost,
            on_asked=self._asked,
        )
        if self._stopping:
            self.unstarted += claimed.jobs
        else:
            # Where there is more the next claim is sent first: the server works while the handlers of this one do.
            self.slots.start(claimed.jobs, later=claimed.full)
        return claimed

    async def _rest_after(self, beat: Beat) -> None:
        if self._stopping:
            return
        claimed = beat.claimed
        if claimed is not None and claimed.full:
            self._rest.more()
            if self.slots.free > 0:
                return
        left_ms = self._left_ms()
        if self.slots.free == 0 or self._settle.stuck or claimed is None:
            if claimed is None and self.slots.free > 0 and not self._settle.stuck:
                return
            self._wants_slot = True
            await self._nap.sleep(self._clock, left_ms)
            self._wants_slot = False
            return
        if claimed.why == "rate":
            # No token tells of the end of a window.
            await self._nap.sleep(self._clock, min(left_ms, claimed.wait_ms))
            return
        if claimed.why == "suspects":
            self.claims.wait_for_suspect(self._nap.wake)
        await self._nap.until(lambda: self._rest.park(left_ms, self._claim_ahead), self._rest.leave)

    def _ended(self, job: Job, outcome: Outcome) -> None:
        """A job of ours has ended; its slot is free."""
        self._journal.ended(job)
        if isinstance(outcome, Abandoned):
            self._suspects.release(job)
            if job.lease is not None and outcome.reason != LEASE_LOST:
                self.interrupted.append(job)
            else:
                self._leases.let_go(job)
        else:
            self._settle.put(job, outcome)
        if self._wants_slot:
            self._wake_for_slot()
        if self.changed is not None:
            self.changed()

    def _wake_for_slot(self) -> None:
        if self._wants_slot:
            self._wants_slot = False
            self._nap.wake()

    def _lost(self, job: Job, reason: str) -> None:
        """The keeper could not extend a lease. A job settled meanwhile, or whose verdict waits, is not lost."""
        if job.lease is None:
            return
        if self.slots.drop(job):
            self._suspects.release(job)
        elif job not in self.slots.running or not cancel(job, LEASE_LOST):
            return
        self._leases.let_go(job)
        self._journal.lost(job, reason)

    def _asked(self, job: Job, why: str) -> None:
        """Somebody asked for the job's end. What has ended already keeps its verdict."""
        if job.lease is not None and self.slots.holds(job) and ask(job, why, interrupt=self._interrupts):
            self._journal.asked(job, why)
