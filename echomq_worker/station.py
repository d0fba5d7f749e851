"""Station: all that one queue has in this process, built from the handler's options and the worker's settings.

Source: design section 3. One consumer stands alone; several make a pool that a Metronome beats for. To a handler both
are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from anyio.abc import TaskGroup

from echomq_worker import children, rows
from echomq_worker.batch import BatchExecutor, BatchSlots
from echomq_worker.burst import nothing_left
from echomq_worker.claims import Claims
from echomq_worker.clock import Clock
from echomq_worker.connector import Connector
from echomq_worker.consumer import Consumer, Parts, Rest
from echomq_worker.dead import Retention
from echomq_worker.degraded import Degraded, Outage
from echomq_worker.executor import Executor
from echomq_worker.handlers import Bound
from echomq_worker.hooks import Hooks
from echomq_worker.identity import Mint
from echomq_worker.job import Job, JobContext
from echomq_worker.journal import Journal
from echomq_worker.keyspace import Keys
from echomq_worker.leases import Leases
from echomq_worker.logs import Logger
from echomq_worker.metronome import Metronome
from echomq_worker.observers import Observers
from echomq_worker.options import Limits
from echomq_worker.outcome import Outcome, Settled
from echomq_worker.parking import Parking
from echomq_worker.publisher import Publisher
from echomq_worker.pump import Pump
from echomq_worker.readiness import LATE_BEATS, QueueBeat
from echomq_worker.recovery import Recovery
from echomq_worker.settle import Settle
from echomq_worker.slots import Places, Slots
from echomq_worker.suspects import Suspects
from echomq_worker.tracer import Tracing
from echomq_worker.window import BatchConsumer, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The worker-wide numbers that loops need, all from the settings. `name` is unique per process start."""

    name: str
    beat_ms: int
    tick_ms: int
    promote_batch: int
    max_crashes: int
    stalled: int | None
    pump: bool
    events: bool
    limits: Limits
    level: str
    dead_max_age_ms: int | None = None
    dead_max_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all stations of a process have in common. `origin_ms`: from when they all count beats and ticks."""

    connector: Connector
    clock: Clock
    mint: Mint
    leases: Leases
    suspects: Suspects
    outage: Outage
    log: Logger
    tasks: TaskGroup
    state: object
    observers: Observers | None = None
    hooks: Hooks | None = None
    origin_ms: float | None = None
    tracing: Tracing | None = None


class Alone:
    """The rest of a consumer that has its queue to itself: a BLPOP on both kinds of readiness tokens."""

    __slots__ = ("_keys", "_parking")

    def __init__(self, parking: Parking, keys: Keys) -> None:
        self._parking = parking
        self._keys = (keys.wake, keys.ready)

    async def park(self, timeout_ms: float, told: Callable[[], object] | None = None, /) -> None:
        """Return at the first token, or after `timeout_ms`. Raises WireError."""
        await self._parking.blpop(self._keys, max(1.0, timeout_ms), told=told)

    def leave(self) -> None:
        """End the park that is on; a token goes back."""
        self._parking.leave(self._keys)

    def more(self) -> None:
        """Nobody else rests here."""


class Station:
    """The loops of one queue. `start` runs them in a task group, `stop` ends them; settle and slots go on until
    drained.
    """

    def __init__(self, bound: Bound, shared: Shared, pace: Pace) -> None:
        limits = bound.options.over(pace.limits)
        queue = bound.options.queue
        self.queue = queue
        self.limits = limits
        self.keys = Keys(queue)
        self.journal = Journal(
            queue,
            log=shared.log,
            clock=shared.clock,
            level=pace.level,
            observers=shared.observers,
            hooks=None if shared.hooks is None else shared.hooks.of(queue, self._found),
        )
        self.publisher = Publisher(shared.connector, self.keys, log=shared.log) if pace.events else None
        # For metrics: leases that were extended ahead of our own recovery; what beats here.
        self.extended = 0
        self.loops: list[tuple[str, Degraded]] = []
        self._bound = bound
        self._shared = shared
        self._pace = pace
        tracing = shared.tracing
        self._runs = None if tracing is None else tracing.of(self.keys, shared.connector, shared.log)
        self.executor = self._executor()
        self._context = JobContext(self.keys, shared.connector, max_attempts=limits.max_attempts)
        self.settle = Settle(
            shared.connector,
            self.keys,
            clock=shared.clock,
            degraded=self._degraded("settle"),
            on_settled=self._settled,
        )
        count = min(limits.consumers, limits.concurrency)
        self.metronome = self._metronome() if count > 1 else None
        shares = zip(_shares(limits.concurrency, count), _shares(limits.prefetch, count), strict=True)
        self.consumers = [self._consumer(i, size, ahead) for i, (size, ahead) in enumerate(shares)]
        self.pump = self._pump() if pace.pump else None

    def start(self, loops: TaskGroup) -> None:
        """Run every loop that claims or sweeps."""
        for number, consumer in enumerate(self.consumers):
            loops.start_soon(consumer.run, name=f"consumer:{self.queue}/{number}")
        if self.metronome is not None:
            loops.start_soon(self.metronome.run, name=f"metronome:{self.queue}")
        if self.pump is not None:
            loops.start_soon(self.pump.run, name=f"pump:{self.queue}")

    def hold(self) -> None:
        """Let no job begin any more, until `stop`. May be called in a signal handler."""
        for consumer in self.consumers:
            consumer.hold()
        if self.metronome is not None:
            self.metronome.hold()

    def stop(self) -> None:
        """Claim, sweep and fire nothing any more; what runs goes on."""
        for loop in (*self.consumers, self.metronome, self.pump):
            if loop is not None:
                loop.stop()

    @property
    def handler(self) -> str:
        """The name of the queue's handler."""
        return self._bound.name

    @property
    def busy(self) -> bool:
        """Whether a handler has begun and not ended; may be asked in any thread."""
        return any(consumer.slots.running for consumer in self.consumers)

    @property
    def running(self) -> list[Job]:
        """Jobs whose handler has begun and not ended."""
        return [job for consumer in self.consumers for job in consumer.slots.running]

    def beat(self) -> QueueBeat:
        """How long ago each claim loop of the queue had its last good pass; may be asked in any thread."""
        now = self._shared.clock.monotonic_ms()
        beats = [one.beaten_ms for one in self.consumers]
        # In a pool each beat wakes one idle consumer, in turn.
        most_ms = LATE_BEATS * self._pace.beat_ms
        late = any(at is None or now - at > most_ms * len(beats) for at in beats)
        if self.metronome is not None:
            beats.append(self.metronome.beaten_ms)
            late = late or beats[-1] is None or now - beats[-1] > most_ms
        ages = [None if at is None else now - at for at in beats]
        age = None if None in ages else round(max(age for age in ages if age is not None))
        return QueueBeat(self.queue, age, late)

    @property
    def idle(self) -> bool:
        """Whether nothing is in hand: no job waits, runs, or has a verdict on its way."""
        return not self.settle.open and all(one.slots.idle for one in self.consumers)

    async def exhausted(self, horizon_ms: int) -> bool:
        """Whether nothing is left for a burst: nothing in hand, nothing that can be claimed, nothing due within
        `horizon_ms`.

        A paused queue has nothing to give. Raises WireError, ServerError.
        """
        if not self.idle:
            return False
        ended = self.journal.counts.total()
        left = not await nothing_left(self._shared.connector, self.keys, horizon_ms, delivers=self.pump is not None)
        # What ended meanwhile may have released another one: of a lane at its ceiling, say, which was off the ring.
        return not left and self.journal.counts.total() == ended and self.idle

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` from now on whenever a job has ended or verdicts were answered."""
        for consumer in self.consumers:
            consumer.changed = changed

    def let_go(self, job: Job) -> None:
        """The job is settled or handed over: nothing in this process holds it any more."""
        self._shared.leases.let_go(job)
        self._shared.suspects.release(job)

    def _settled(self, answers: Sequence[Settled]) -> None:
        jobs = [job for job, _, _ in answers]
        self._shared.leases.let_go(*jobs)
        self._shared.suspects.release(*jobs)
        if self.pump is not None and any(job.flow_child for job in jobs):
            self.pump.poke()
        if self.publisher is not None:
            self.publisher.settled(answers)
        self.journal.settled(answers)
        for consumer in self.consumers:
            consumer.settled()

    async def _found(self, id: str) -> Job:
        """A job that was buried without a handler of ours: what its row has. Raises WireError, ServerError."""
        row = await rows.get(self._shared.connector, self.keys, id)
        if row is None:
            return Job(self._context, id, None, 0)
        return Job(self._context, id, row.payload, row.attempts, row.failures, row.group)

    def _degraded(self, loop: str) -> Degraded:
        made = Degraded(f"{loop}:{self.queue}", outage=self._shared.outage, beat_ms=self._pace.beat_ms)
        self.loops.append((loop.partition("/")[0], made))
        return made

    def _recovery(self) -> Recovery:
        return Recovery(
            self._shared.connector,
            self.keys,
            clock=self._shared.clock,
            promote_batch=self._pace.promote_batch,
            budget_ms=self._pace.beat_ms / 2,
            before=self._keep_first,
            max_stalled=self._pace.stalled,
            recounts=self._shared.connector.spoken.has_scripts,
            on_stalled=self._stalled,
        )

    def _stalled(self, back: list[str], dead: list[str]) -> None:
        """What the counting sweep found: jobs whose lease was lost, whoever held it."""
        self.journal.stalled(back)
        if self.publisher is not None:
            self.publisher.stalled(back)
        for id in dead:
            self._buried(id, "stalled")

    def _buried(self, id: str, reason: str) -> None:
        """A claim or the sweep gave a job up."""
        self.journal.buried(id, reason)
        if self.publisher is not None:
            self.publisher.buried(id, reason)

    async def _keep_first(self) -> None:
        """After an outage or a standstill: what this process holds is extended before its own recovery looks."""
        leases = self._shared.leases
        if leases.late(self.queue):
            self.extended += await leases.beat(self._shared.connector, queue=self.queue)

    def _metronome(self) -> Metronome:
        return Metronome(
            self._shared.connector.parking_for(self.keys.wake),
            self.keys,
            clock=self._shared.clock,
            beat_ms=self._pace.beat_ms,
            recovery=self._recovery(),
            degraded=self._degraded("metronome"),
            origin_ms=self._shared.origin_ms,
        )

    def _consumer(self, number: int, size: int, ahead: int) -> Consumer:
        shared, pace = self._shared, self._pace
        alone = Alone(shared.connector.parking_for(self.keys.wake), self.keys)
        rest: Rest = alone if self.metronome is None else self.metronome.rest()
        claims = Claims(
            self._context,
            consumer=f"{pace.name}-{number}",
            lease_ms=self.limits.lease_ms,
            max_crashes=pace.max_crashes,
            suspects=shared.suspects,
        )
        parts = Parts(
            clock=shared.clock,
            beat_ms=pace.beat_ms,
            lease_ms=self.limits.lease_ms,
            claims=claims,
            recovery=None if self.metronome else self._recovery(),
            rest=rest,
            settle=self.settle,
            leases=shared.leases,
            suspects=shared.suspects,
            degraded=self._degraded(f"consumer/{number}"),
            journal=self.journal,
            on_buried=self._buried,
            interrupts=self._bound.options.cancellable,
            origin_ms=shared.origin_ms,
            on_claimed=None if self._runs is None else self._runs.claimed,
        )
        slots = partial(self._slots, number, size, ahead)
        options = self._bound.options
        if options.min_size is None:
            return Consumer(shared.connector, self.keys, parts, slots=slots)
        window = Window(min_size=options.min_size, window_ms=options.window_ms)
        return BatchConsumer(shared.connector, self.keys, parts, slots=slots, window=window)

    def _executor(self) -> Executor | BatchExecutor:
        limits, state = self._pace.limits, self._shared.state
        if self._bound.options.is_batch:
            began, enter = self.journal.began, None if self._runs is None else self._runs.enter
            return BatchExecutor(
                self._bound, limits=limits, state=state, announce=began, result=children.written, enter=enter
            )
        announce = self.journal.started if self._runs is None else self._runs.announcing(self.journal.started)
        return Executor(self._bound, limits=limits, state=state, announce=announce, result=children.written)

    def _slots(self, number: int, size: int, ahead: int, on_end: Callable[[Job, Outcome], None]) -> Places:
        tasks, clock, name = self._shared.tasks, self._shared.clock, f"slot:{self.queue}/{number}"
        executor, runs = self.executor, self._runs
        if isinstance(executor, BatchExecutor):
            many = executor.execute if runs is None else runs.around_batch(executor.execute)
            batches = BatchSlots(size, tasks=tasks, name=name, clock=clock, execute=many, on_end=on_end)
            batches.closing(executor.closed)
            return batches
        one = executor.execute if runs is None else runs.around(executor.execute)
        # Without prefetch nothing waits for longer than a turn or two.
        kept = self._shared.leases.keeps if ahead else None
        slots = Slots(size, tasks=tasks, name=name, clock=clock, execute=one, on_end=on_end, ahead=ahead, kept=kept)
        slots.closed = executor.closed
        return slots

    def _pump(self) -> Pump:
        return Pump(
            self._shared.connector,
            self.keys,
            clock=self._shared.clock,
            mint=self._shared.mint,
            tick_ms=self._pace.tick_ms,
            promote_batch=self._pace.promote_batch,
            degraded=self._degraded("pump"),
            log=self._shared.log,
            retention=self._retention(),
            origin_ms=self._shared.origin_ms,
        )

    def _retention(self) -> Retention | None:
        age, count = self._pace.dead_max_age_ms, self._pace.dead_max_count
        if age is None and count is None:
            return None
        return Retention(self._shared.connector, self.keys, max_age_ms=age, max_count=count)


def _shares(total: int, count: int) -> list[int]:
    """`total` split over `count` consumers."""
    return [total // count + (number < total % count) for number in range(count)]
