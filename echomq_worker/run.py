"""Run: one run of a worker from its settings and handlers: every loop built, owned by two task groups, and stopped.

Source: design section 3, issue "A worker that runs jobs" (Daemon and CLI).
"""

from __future__ import annotations

import secrets
import signal
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from echomq_worker.clock import Clock
from echomq_worker.connector import Connector, make_connector
from echomq_worker.degraded import Degraded, Outage
from echomq_worker.errors import AuthenticationFailed, EchoMQError, WireError
from echomq_worker.handlers import Bound
from echomq_worker.handover import HandOver
from echomq_worker.hooks import Hook, Hooks
from echomq_worker.identity import Mint
from echomq_worker.journal import LISTED
from echomq_worker.keyspace import Keys
from echomq_worker.leases import Keeper, Leases
from echomq_worker.leash import Leash
from echomq_worker.listener import Listener
from echomq_worker.logs import Logger, get_logger
from echomq_worker.observers import Blocked, DegradedNow, Observer, Observers, Recovered
from echomq_worker.readiness import Readiness
from echomq_worker.report import Report
from echomq_worker.settings import Settings
from echomq_worker.station import Pace, Shared, Station
from echomq_worker.survey import check_wire, survey
from echomq_worker.suspects import Suspects
from echomq_worker.tracer import Tracing
from echomq_worker.watch import Culprit, Watch

if TYPE_CHECKING:
    from echomq_worker.measured import Measured
    from echomq_worker.probes.probe import Probe

# A burst waits for jobs that become due within this time: for a retry, that is, and not for tomorrow's job.
BURST_HORIZON_MS = 5_000
_BURST_LOOK_MS = 100
_KEEPER_PATIENCE_MS = 100
# What observers and hooks get at the end to hear the rest.
_LAST_TOLD_MS = 1_000
# What a lifespan gets to close, where less than that is left of the grace.
_LAST_CLOSED_MS = 2_000
# What the exporter of traces gets, where there is one.
_LAST_SPANS_MS = 3_000


class Run:
    """One run of a worker: the stations, and the two task groups that own every loop."""

    def __init__(
        self,
        settings: Settings,
        bounds: Sequence[Bound],
        *,
        clock: Clock,
        pump: bool,
        name: str,
        observe: Sequence[Observer] = (),
        hooks: Sequence[Hook] = (),
        tracing: Tracing | None = None,
        measured: bool = False,
    ) -> None:
        """`measured`: somebody may ask for metrics, so what they need is counted."""
        self.connector = self._connector(settings, name, clock)
        self._settings = settings
        self._bounds = bounds
        self._observe = tuple(observe)
        self._own_hooks = tuple(hooks)
        self._hooks: Hooks | None = None
        self._tracing = tracing
        self._clock = clock
        self._log: Logger = get_logger("echomq_worker")
        self._stopped = anyio.Event()
        self._asked_ms: float | None = None
        # Of the lifespan around it.
        self.leash = Leash()
        self._told = False
        self._hand_over: HandOver | None = None
        self._stations: Sequence[Station] = ()
        self._outage_now: Outage | None = None
        self._watch: Watch | None = None
        self._measured = self._measure() if measured else None
        self._pace = _pace(settings, pump=pump)

    def stop(self) -> None:
        """First call: drain, then hand over. Second call: the grace is over now, that of the lifespan's end too."""
        again, self._told = self._told, True
        self._stop()
        if again:
            self._hurry()

    def signalled(self, number: signal.Signals) -> None:
        """A signal came, and `hold` was called."""
        again = self._told
        # Before the line is logged: a log that fails must not keep the worker from stopping.
        self.stop()
        self._log.info("signal", name=number.name, again=again)

    def _stop(self) -> None:
        self.hold()
        self._stopped.set()
        self.leash.stop()

    def _hurry(self) -> None:
        if self._hand_over is not None:
            self._hand_over.hurry()
        if self._hooks is not None:
            self._hooks.hurry()
        self.leash.hurry()

    def hold(self) -> None:
        """No job begins any more; the grace does. A signal's handler does it before the loop, which may be blocked."""
        if self._asked_ms is None:
            self._asked_ms = self._clock.monotonic_ms()
        if self._watch is not None:
            self._watch.awaited = True
        for station in self._stations:
            station.hold()

    def readiness(self) -> Readiness:
        """Whether this process claims and works now; may be asked in any thread."""
        return Readiness(
            started=bool(self._stations),
            draining=self._stopped.is_set(),
            degraded=self._outage_now is not None and self._outage_now.degraded,
            queues=tuple(station.beat() for station in self._stations),
            wire=str(self.connector.spoken),
        )

    def ending(self) -> None:
        """All is handed over: what is left of the grace is the lifespan's."""
        self.leash.ending(max(_LAST_CLOSED_MS, self._left_ms()))

    async def run(self, state: object, *, burst: bool) -> Report:
        """Serve until stopped, with `burst` until nothing is left; `state` is what the lifespan yielded."""
        try:
            return await self._run(state, burst=burst)
        except BaseException:
            if self._hand_over is not None:
                with anyio.CancelScope(shield=True):
                    await self._hand_over.after_crash()
            raise

    async def _run(self, state: object, *, burst: bool) -> Report:
        observers = self._observers()
        self._outage_now = outage = self._outage(observers)
        await self._look_at_servers()
        async with anyio.create_task_group() as tasks:
            if self._own_hooks:
                self._hooks = Hooks(self._own_hooks, tasks, state=state, log=self._log)
            shared = Shared(
                connector=self.connector,
                clock=self._clock,
                mint=Mint(self._clock, self._settings.node_id),
                leases=Leases(clock=self._clock),
                suspects=Suspects(),
                outage=outage,
                log=self._log,
                tasks=tasks,
                state=state,
                observers=observers,
                hooks=self._hooks,
                origin_ms=self._clock.monotonic_ms(),
                tracing=self._tracing,
            )
            stations = self._stations = [Station(bound, shared, self._pace) for bound in self._bounds]
            self._hand_over = HandOver(self.connector, stations, clock=self._clock)
            self._start(shared, stations)
            queues = [station.queue for station in stations]
            self._log.info("worker started", queues=queues, wire=str(self.connector.spoken))
            async with anyio.create_task_group() as loops:
                for station in stations:
                    station.start(loops)
                if burst:
                    loops.start_soon(self._watch_burst, name="burst")
                await self._stopped.wait()
                for station in stations:
                    station.stop()
            # The loops have ended by now; if one of them hung in a pass, that was part of the grace.
            await self._hand_over.run(self._left_ms())
            await self._tell_the_rest(observers)
            tasks.cancel_scope.cancel()
        return self._report(stations)

    def _start(self, shared: Shared, stations: Sequence[Station]) -> None:
        """What goes on until everything is handed over."""
        tasks, keeper = shared.tasks, self._keeper(shared, stations)
        if self._measured is not None:
            self._measured.begin(shared, stations, keeper)
        tasks.start_soon(keeper.run, name="leases")
        if shared.observers is not None:
            tasks.start_soon(shared.observers.run, name="observers")
        tasks.start_soon(self._listener(stations, shared.leases, shared.outage).run, name="listener")
        for station in stations:
            tasks.start_soon(station.settle.run, name=f"settle:{station.queue}")

    async def _tell_the_rest(self, observers: Observers | None) -> None:
        if self._hooks is not None:
            await self._hooks.finish(max(_LAST_TOLD_MS, self._left_ms()))
        if observers is not None:
            await observers.finish(_LAST_TOLD_MS)
        if self._tracing is not None:
            await self._tracing.flush(max(_LAST_TOLD_MS, min(_LAST_SPANS_MS, self._left_ms())))

    def _left_ms(self) -> float:
        """What is left of the grace, once a stop was asked for."""
        now = self._clock.monotonic_ms()
        return max(0, self._settings.grace_ms - (now - (now if self._asked_ms is None else self._asked_ms)))

    @property
    def probe(self) -> Probe | None:
        """Who answers for it; None where nobody may ask."""
        return None if self._measured is None else self._measured.probe

    def _measure(self) -> Measured:
        from echomq_worker.measured import Measured

        return Measured(
            self.connector,
            [bound.options.queue for bound in self._bounds],
            observe=self._observe,
            log=self._log,
            clock=self._clock,
            readiness=self.readiness,
            about={"version": sys.modules["echomq_worker"].__version__, "wire_version": self._settings.wire_version},
        )

    def _observers(self) -> Observers | None:
        if self._measured is not None:
            return self._measured.meter
        return Observers(self._observe, log=self._log) if self._observe else None

    def _report(self, stations: Sequence[Station]) -> Report:
        counts: Counter[str] = sum((station.journal.counts for station in stations), Counter())
        unpublished = sum(station.publisher.dropped for station in stations if station.publisher is not None)
        counts += Counter(unpublished=unpublished, hooks_lost=0 if self._hooks is None else self._hooks.lost)
        self._log.info("worker stopped", **dict(counts), **self._handed_over())
        return Report(counts)

    def _handed_over(self) -> dict[str, list[str]]:
        """The ids of what was given back, and of what waits for its lease, at most a hundred of each."""
        handed = [station.journal.handed for station in self._stations]
        kinds = {"released_ids": ("released",), "left_ids": ("disowned", "left")}
        ids = {kind: [id for one in handed for what in whats for id in one[what]] for kind, whats in kinds.items()}
        return {kind: found[:LISTED] for kind, found in ids.items() if found}

    def _keeper(self, shared: Shared, stations: Sequence[Station]) -> Keeper:
        shortest_ms = min(station.limits.lease_ms for station in stations)
        return Keeper(
            shared.leases,
            partial(self._keepers_connector, shortest_ms),
            shortest_lease_ms=shortest_ms,
            outage=shared.outage,
            beside=self._watching(stations, shared.observers),
        )

    def _watching(
        self, stations: Sequence[Station], observers: Observers | None
    ) -> Callable[[], Coroutine[Any, Any, None]] | None:
        if not self._settings.blocked_ms:
            return None

        def tell(culprit: Culprit, blocked_ms: int) -> None:
            if observers is not None:
                observers.note(Blocked, culprit.queue, culprit.handler, culprit.id, culprit.where, blocked_ms)

        self._watch = Watch(self._settings.blocked_ms, places=stations, clock=self._clock, log=self._log, tell=tell)
        return self._watch.run

    def _outage(self, observers: Observers | None) -> Outage:
        if observers is None:
            return Outage(clock=self._clock, log=self._log)
        tell = observers.note
        return Outage(
            clock=self._clock, log=self._log, on_enter=partial(tell, DegradedNow), on_leave=partial(tell, Recovered)
        )

    def _listener(self, stations: Sequence[Station], leases: Leases, outage: Outage) -> Listener:
        return Listener(
            self.connector.subscription("cancel"),
            [station.keys for station in stations],
            clock=self._clock,
            degraded=Degraded("listener", outage=outage, beat_ms=self._settings.beat_ms),
            deliver=leases.ask,
            # Extending all leases also answers which jobs somebody has asked to end.
            look=partial(leases.beat, self.connector, over=0.0),
            log=self._log,
        )

    def _keepers_connector(self, shortest_lease_ms: int) -> Connector:
        # A connection that hangs must be given up while another one can still save the shortest lease.
        limit_ms = max(_KEEPER_PATIENCE_MS, shortest_lease_ms // 4)
        return self._connector(self._settings, "echomq-leases", self._clock, limit_ms=limit_ms)

    @staticmethod
    def _connector(settings: Settings, name: str, clock: Clock, *, limit_ms: int | None = None) -> Connector:
        most = limit_ms or max(settings.connect_timeout_ms, settings.command_timeout_ms)
        return make_connector(
            settings.require_url(),
            wire_version=settings.wire_version,
            wire=settings.wire,
            connect_timeout_ms=min(settings.connect_timeout_ms, most),
            command_timeout_ms=min(settings.command_timeout_ms, most),
            clock=clock,
            name=name,
        )

    async def _look_at_servers(self) -> None:
        """In a cluster each primary is looked at.

        No reason not to start, unless scripts may not be run: the server was reached, so what is lost from here on is
        an outage like any other, which the loops wait for.
        """
        try:
            servers = await self.connector.nodes()
        except EchoMQError as error:
            self._log.info("server check skipped", reason=str(error))
            return
        for server in servers:
            try:
                await survey(server, self._log)
            except AuthenticationFailed:
                raise
            except EchoMQError as error:
                self._log.info("server check skipped", reason=str(error))
        await self._check_wire()

    async def _check_wire(self) -> None:
        """Raises ConfigError where the wire does not carry what this worker does."""
        try:
            await check_wire(
                self.connector,
                [Keys(bound.options.queue) for bound in self._bounds],
                counts_stalled=self._pace.stalled is not None,
                has_batches=any(bound.options.is_batch for bound in self._bounds),
                has_pump=self._pace.pump,
            )
        except WireError as error:
            self._log.info("server check skipped", check="wire", reason=str(error))

    async def exhausted(self, horizon_ms: int) -> bool:
        """Whether nothing is left to do for `horizon_ms`; False before the loops are there. Raises WireError."""
        # Twice: a flow's report may have moved from a queue not yet looked at to one that was found empty before.
        looks = [await station.exhausted(horizon_ms) for _ in range(2) for station in self._stations]
        return bool(looks) and all(looks)

    async def _watch_burst(self) -> None:
        while not self._stopped.is_set():
            await self._clock.sleep_ms(_BURST_LOOK_MS)
            try:
                if await self.exhausted(BURST_HORIZON_MS):
                    self._stop()
            except (WireError, AuthenticationFailed):
                continue  # the loops say so


def _pace(settings: Settings, *, pump: bool) -> Pace:
    return Pace(
        name=secrets.token_hex(6),
        beat_ms=settings.beat_ms,
        tick_ms=settings.tick_ms,
        promote_batch=settings.promote_batch,
        max_crashes=settings.max_crashes,
        stalled=settings.stalled,
        pump=pump,
        events=settings.events,
        level=settings.log_level,
        dead_max_age_ms=settings.dead_max_age_ms,
        dead_max_count=settings.dead_max_count,
        limits=settings.limits,
    )
