"""Worker: what a user makes: handlers by queue name, and `run`.

Source: design sections 2 and 3, issue "A worker that runs jobs" (Daemon and CLI). Nothing is read from the
environment or opened before `run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from echomq_worker.backoff import Policy
from echomq_worker.clock import Clock, SystemClock
from echomq_worker.errors import ConfigError, LifespanLate
from echomq_worker.handlers import Bound, Handlers
from echomq_worker.hooks import Hook
from echomq_worker.leash import Leash
from echomq_worker.lifespan import Lifespan, Manager, yielded_type
from echomq_worker.logs import get_logger
from echomq_worker.observers import Observer
from echomq_worker.readiness import Readiness
from echomq_worker.report import Report
from echomq_worker.run import Run
from echomq_worker.settings import Settings, load_settings
from echomq_worker.signals import heard
from echomq_worker.tracer import Tracing
from echomq_worker.twins import COMMANDS

if TYPE_CHECKING:
    from echomq_worker.lifespan import Function

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Observer)
Called = Callable[..., Any]


class Worker:
    """Handlers by queue name, and `run`. Making one reads nothing and opens nothing."""

    def __init__(
        self, settings: Settings | None = None, *, name: str | None = None, clock: Clock | None = None
    ) -> None:
        """`settings`: instead of the environment's; `name`: of the connections, as CLIENT LIST shows it.

        `tracing` is what `tracing.instrument` has set, if anything.
        """
        self.handlers = Handlers()
        self._settings = settings
        self._name = name or "echomq-worker"
        self._clock = clock or SystemClock()
        self._lifespan: Lifespan | None = None
        self._observers: list[Observer] = []
        self._hooks: list[Hook] = []
        self.tracing: Tracing | None = None
        self._running: Run | None = None

    def handler(  # noqa: PLR0913 - a keyword per option
        self,
        queue: str,
        *,
        concurrency: int | None = None,
        prefetch: int | None = None,
        consumers: int | None = None,
        max_attempts: int | None = None,
        retry: int | Policy | None = None,
        no_retry: type[BaseException] | tuple[type[BaseException], ...] = (),
        timeout_ms: int | None = None,
        lease_ms: int | None = None,
        cancellable: bool = False,
        on_complete: Called | None = None,
        on_dead: Called | None = None,
    ) -> Callable[[F], F]:
        """A decorator that makes a function the handler of `queue` and returns it unchanged; what is set wins over
        settings.

        Raises InvalidQueueName, InvalidArgument, ConfigError, each in one line. See `handlers` for the parameters
        that a handler may have, `on_complete` and `on_dead` of the worker for the hooks of this queue alone.
        """
        self._hook(queue, on_complete, on_dead)
        return self.handlers.register(
            queue,
            concurrency=concurrency,
            prefetch=prefetch,
            consumers=consumers,
            max_attempts=max_attempts,
            retry=retry,
            no_retry=no_retry,
            timeout_ms=timeout_ms,
            lease_ms=lease_ms,
            cancellable=cancellable,
        )

    def batch_handler(  # noqa: PLR0913 - a keyword per option
        self,
        queue: str,
        *,
        min_size: int,
        timeout_ms: int,
        concurrency: int | None = None,
        consumers: int | None = None,
        max_attempts: int | None = None,
        retry: int | Policy | None = None,
        no_retry: type[BaseException] | tuple[type[BaseException], ...] = (),
        run_timeout_ms: int | None = None,
        lease_ms: int | None = None,
        on_complete: Called | None = None,
        on_dead: Called | None = None,
    ) -> Callable[[F], F]:
        """A decorator for an async function of many jobs of `queue` (`list[Job]`): called with up to `concurrency` of
        them when `min_size` are ready, or when the first was seen ready `timeout_ms` ago; nothing is claimed before.

        It answers None (all are done), or a dict by id of None, True, or Retry, Delay, Reject or another exception; a
        job that is missing there is retried, and what is raised holds for all. `run_timeout_ms` is the limit of a
        call. Raises InvalidQueueName, InvalidArgument, ConfigError.
        """
        self._hook(queue, on_complete, on_dead)
        return self.handlers.register_batch(
            queue,
            min_size=min_size,
            timeout_ms=timeout_ms,
            concurrency=concurrency,
            consumers=consumers,
            max_attempts=max_attempts,
            retry=retry,
            no_retry=no_retry,
            run_timeout_ms=run_timeout_ms,
            lease_ms=lease_ms,
        )

    def lifespan(self, function: Function) -> Callable[..., Manager]:
        """What handlers share: an async generator that yields once, or an async context manager. Entered before the
        first claim, left after the last verdict. Register it before the handlers that ask for what it yields by type.

        It may have one parameter, annotated `Connector` or named `connector`: a connection of its own to the server of
        the run, for what handlers enqueue and what is registered at the start; for plain functions annotated
        `sync.Connector`. Raises ConfigError.
        """
        if self._lifespan is not None:
            raise ConfigError("lifespan: there is one already, expected one per worker")
        self._lifespan = Lifespan.of(function)
        self.handlers.state_type = yielded_type(function)
        return self._lifespan.make

    def observe(self, function: H) -> H:
        """Tell `function` what becomes of jobs, and of the worker: values of `observers` (Started, Completed, …), one
        at a time, some moments after it happened. Returned unchanged, so that it can be a decorator.

        It may be async; it runs on the event loop and must not block. What it raises is logged once. A slow one loses
        the oldest of what it should hear. Raises ConfigError.
        """
        if not callable(function):
            raise ConfigError(f"observer of type {type(function).__name__}: expected a function of one argument")
        self._observers.append(function)
        return function

    def on_complete(self, function: F) -> F:
        """Call `function` once for each job, of any queue, that the server has taken as done: with the job (annotated
        `Job`, or named `job`) and the state, as far as it has parameters for them. Returned unchanged.

        A coroutine runs on the event loop, a plain function in a thread. What it raises is logged and changes nothing;
        a stop waits for it within the grace. Not durable: a process that is killed before it ran has lost it. Raises
        ConfigError.
        """
        self._hooks.append(Hook.of("on_complete", None, function, state_type=self.handlers.state_type))
        return function

    def on_dead(self, function: F) -> F:
        """The same for each job that is dead: given up by this worker, by a verdict, or by its claim (too many crashes,
        expired, without a payload). `error` is why, as in the row's `last_error`.
        """
        self._hooks.append(Hook.of("on_dead", None, function, state_type=self.handlers.state_type))
        return function

    def _hook(self, queue: str, on_complete: Called | None, on_dead: Called | None) -> None:
        state_type = self.handlers.state_type
        if on_complete is not None:
            self._hooks.append(Hook.of("on_complete", queue, on_complete, state_type=state_type))
        if on_dead is not None:
            self._hooks.append(Hook.of("on_dead", queue, on_dead, state_type=state_type))

    def stop(self) -> None:
        """End `run` as a first signal would: drain, then hand over. Without a run it has no effect."""
        if self._running is not None:
            self._running.stop()

    def readiness(self) -> Readiness:
        """Whether this worker claims and works now, for a probe: not while it starts, drains or is degraded, nor when a
        claim loop had no good pass for three beats. May be asked in any thread, also while the event loop is blocked.
        """
        running = self._running
        return Readiness() if running is None else running.readiness()

    async def run(
        self,
        settings: Settings | None = None,
        *,
        queues: Sequence[str] = (),
        burst: bool = False,
        pump: bool | None = None,
        signals: bool = True,
        reports: int | None = None,
        give_up: Callable[[LifespanLate], object] | None = None,
    ) -> Report:
        """Serve until a signal, `stop()`, or, with `burst`, until nothing is left.

        `queues`: only these, of those that have a handler. `pump`: instead of the setting. `signals`: SIGTERM and
        SIGINT stop, a second one at once. `reports`: the socket, by its number, over which a supervisor of several
        processes asks for probes and metrics; no port is opened then. `give_up`: called with what is to be said where
        the lifespan swallows its cancellation, so that this never ends; its cause is what had ended the run, if any.

        Raises ConfigError, Unreachable, AuthenticationFailed, FenceRefused before anything is claimed, LifespanLate at
        the end; a loop that dies of a bug raises its error.
        """
        settings = settings or self._settings or load_settings()
        settings.require_url()
        bounds = self._chosen(queues, settings)
        if self._running is not None:
            raise ConfigError("worker: it runs already, expected one run at a time")
        self._running = Run(
            settings,
            bounds,
            clock=self._clock,
            pump=_pumps(settings, pump=pump),
            name=self._name,
            observe=self._observers,
            hooks=self._hooks,
            tracing=self.tracing,
            measured=settings.http is not None or reports is not None,
        )
        self._running.leash.give_up = self._giving_up(self._running.leash, give_up)
        try:
            with heard(self._running.signalled, at_once=self._running.hold) if signals else nullcontext():
                if self._running.probe is None:
                    return await self._served(self._running, settings, burst=burst)
                from echomq_worker.probes.answering import answering

                async with answering(self._running.probe, http=settings.http, reports=reports):
                    return await self._served(self._running, settings, burst=burst)
        finally:
            self._running = None

    async def _served(self, running: Run, settings: Settings, *, burst: bool) -> Report:
        report, leash = Report(), running.leash
        # A stop while it still connects, or enters the lifespan, ends it there: nothing is claimed by then. Once all is
        # handed over a second one does: what the lifespan still closes keeps no process.
        with leash.held():
            try:
                await running.connector.open()
                async with self.entered(settings) as state:
                    leash.begun()
                    try:
                        report = await running.run(state, burst=burst)
                    except asyncio.CancelledError:
                        raise
                    except BaseException as error:
                        leash.crash = error
                        raise
                    finally:
                        running.ending()
            finally:
                leash.over()
                with anyio.CancelScope(shield=True):
                    await running.connector.aclose()
        if leash.crash is not None:
            # The lifespan has swallowed it, or its end was cut short.
            raise leash.crash
        if leash.late and self._lifespan is not None:
            raise LifespanLate(f"lifespan {self._lifespan.name}: it had not closed when the grace was over: cut short")
        return report

    def _giving_up(self, leash: Leash, give_up: Callable[[LifespanLate], object] | None) -> Callable[[], object] | None:
        lifespan = self._lifespan
        if give_up is None or lifespan is None:
            return None

        def said() -> None:
            error = LifespanLate(f"lifespan {lifespan.name}: it does not end though it was cancelled: left behind")
            error.__cause__ = leash.crash
            give_up(error)

        return said

    async def exhausted(self, horizon_ms: int) -> bool:
        """Whether a run has nothing left to do: nothing in hand, nothing that can be claimed, nothing due within
        `horizon_ms`. False without a run. Raises WireError, ServerError.
        """
        return self._running is not None and await self._running.exhausted(horizon_ms)

    @property
    def settings(self) -> Settings | None:
        """What it was made with instead of the environment's."""
        return self._settings

    @contextmanager
    def override_lifespan(self, state: object) -> Iterator[None]:
        """For tests: while the block lasts, handlers share `state`, and the lifespan is not entered."""
        before, self._lifespan = self._lifespan, Lifespan.yielding(state)
        try:
            yield
        finally:
            self._lifespan = before

    @asynccontextmanager
    async def entered(self, settings: Settings | None = None) -> AsyncIterator[Any]:
        """The lifespan, for the length of a block; what it yields, None where there is none. `settings`: where its
        connector goes, instead of the worker's own, or the environment's.
        """
        self.check_state()
        if self._lifespan is None:
            yield None
            return
        async with self._lifespan.entered(
            lambda: settings or self._settings or load_settings(), f"{self._name}:lifespan"
        ) as state:
            yield state

    def check_state(self) -> None:
        """Raises ConfigError where a handler needs the state, and there is no lifespan that yields one."""
        needy = next((bound for bound in self.handlers if bound.needs_state), None)
        if needy is not None and self._lifespan is None:
            raise ConfigError(
                f"handler {needy.name} of {needy.options.queue}: parameter state: it is what the lifespan yields, "
                "and there is none, expected @worker.lifespan"
            )

    def _chosen(self, queues: Sequence[str], settings: Settings) -> list[Bound]:
        if not self.handlers.queues:
            raise ConfigError('worker: it has no handler, expected at least one @worker.handler("queue")')
        unknown = [name for name in queues if name not in self.handlers.queues]
        if unknown:
            raise ConfigError(f"queue {unknown[0]}: no handler, expected one of {', '.join(self.handlers.queues)}")
        chosen = [bound for bound in self.handlers if not queues or bound.options.queue in queues]
        for bound in chosen:
            settings.limits_of(bound.options)
        return chosen


def _pumps(settings: Settings, *, pump: bool | None) -> bool:
    """Whether to run Pumps. On wire 6 only where somebody asks for them, and is told then why there is none."""
    pumps = settings.pump if pump is None else pump
    if pumps and pump is None and settings.wire == COMMANDS and "pump" not in settings.model_fields_set:
        get_logger("echomq_worker").warning(
            "no pump", wire=settings.wire, hint="repeats and flows need ECHOMQ_WIRE=auto"
        )
        return False
    return pumps
