"""Options of a handler, and the numbers in force once the worker's defaults stand behind them.

Source: design.md section 2, protocol section 8 (the defaults), issue "Every control" (batch handlers, cancellation).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from echomq_worker import bounds
from echomq_worker.backoff import Exponential, Fixed, Jitter, Policy, longest_ms
from echomq_worker.errors import InvalidArgument, shown
from echomq_worker.keyspace import check_queue

_BOUNDS = {
    "concurrency": bounds.CONCURRENCY,
    "prefetch": bounds.PREFETCH,
    "consumers": bounds.CONSUMERS,
    "max_attempts": bounds.MAX_ATTEMPTS,
    "timeout_ms": bounds.RUN_MS,
    "lease_ms": bounds.LEASE_MS,
    "min_size": bounds.BATCH,
}
# Two options of a batch handler have other names in `@worker.batch_handler`.
_NAMES_OF_BATCHES = {"timeout_ms": "run_timeout_ms", "window_ms": "timeout_ms"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Numbers in force for a handler: the defaults of protocol section 8, the settings', or with its options over them.

    `concurrency` jobs at a time, split over `consumers` consumers, as are `prefetch` more that are claimed and wait
    for a slot; `retry` is a delay in ms or a backoff policy; `timeout_ms` None means none.
    """

    concurrency: int = 10
    prefetch: int = 0
    consumers: int = 1
    max_attempts: int = 3
    retry: int | Policy = 1_000
    timeout_ms: int | None = None
    lease_ms: int = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a handler sets for itself; None is the worker's default. Raises InvalidArgument, InvalidQueueName.

    `no_retry`: exception classes that make the job dead at once. `cancellable`: a request to cancel a job cancels the
    task of its handler; without it the handler asks (`job.cancelled`). `min_size` makes it a batch handler: one call
    for up to `concurrency` jobs (split over `consumers`), when so many are ready or the first has been for `window_ms`.
    """

    queue: str
    concurrency: int | None = None
    prefetch: int | None = None
    consumers: int | None = None
    max_attempts: int | None = None
    retry: int | Policy | None = None
    no_retry: tuple[type[BaseException], ...] = ()
    timeout_ms: int | None = None
    lease_ms: int | None = None
    cancellable: bool = False
    min_size: int | None = None
    window_ms: int = 0

    def __post_init__(self) -> None:
        check_queue(self.queue)
        for name, allowed in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise self._refused(name, allowed, value)
        if self.retry is not None and not _is_retry(self.retry):
            expected = f"{bounds.RETRY_DELAY_MS}, or Fixed, Exponential or Jitter within it"
            raise self._refused("retry", expected, self.retry)
        for one in self.no_retry:
            if not _is_exception_class(one):
                raise self._refused("no_retry", "exception classes", one)
        if not isinstance(self.cancellable, bool):
            raise self._refused("cancellable", "True or False", self.cancellable)
        if self.min_size is not None:
            self._check_batch(self.min_size)

    @property
    def is_batch(self) -> bool:
        """Whether it is called with many jobs."""
        return self.min_size is not None

    def over(self, limits: Limits) -> Limits:
        """The numbers in force: these options where they are set, else `limits`. A batch handler that does not say has
        room for its smallest batch at least.
        """
        names = [field.name for field in fields(Limits)]
        own = {name: getattr(self, name) for name in names}
        found = Limits(**{name: getattr(limits, name) if own[name] is None else own[name] for name in names})
        if self.min_size is None:
            return found
        # A batch handler has one call in hand at a time, and nothing waits behind it.
        room = found.concurrency if self.concurrency is not None else self.min_size * found.consumers
        return replace(found, prefetch=0, concurrency=max(found.concurrency, room))

    def _check_batch(self, min_size: int) -> None:
        if self.window_ms not in bounds.WINDOW_MS:
            raise self._refused("window_ms", bounds.WINDOW_MS, self.window_ms)
        if self.concurrency is not None and self.concurrency // (self.consumers or 1) < min_size:
            share = self.concurrency // (self.consumers or 1)
            raise self._refused("min_size", f"at most concurrency / consumers = {share}", min_size)

    def _refused(self, name: str, expected: object, value: object) -> InvalidArgument:
        kind = "batch handler" if self.is_batch else "handler"
        known = _NAMES_OF_BATCHES.get(name, name) if self.is_batch else name
        return InvalidArgument(f"{kind} of {self.queue}: {known}: expected {expected}, got {shown(value)}")


def _is_retry(value: object) -> bool:
    if isinstance(value, (Fixed, Exponential, Jitter)):
        return longest_ms(value) in bounds.RETRY_DELAY_MS
    return value in bounds.RETRY_DELAY_MS


def _is_exception_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)
