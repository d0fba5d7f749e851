"""Options of a handler, and the numbers in force once the worker's defaults stand behind them.

Source: design.md section 2, protocol section 8 (the defaults), issue "Every control" (batch handlers, cancellation).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from echomq_worker.backoff import Exponential, Fixed, Jitter, Policy
from echomq_worker.errors import InvalidArgument, shown
from echomq_worker.keyspace import check_queue

# The most that one claim takes.
LARGEST_BATCH = 1_000


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
        for name in ("concurrency", "consumers", "max_attempts", "timeout_ms", "lease_ms", "min_size"):
            value = getattr(self, name)
            if value is not None and not _is_int(value, 1):
                raise InvalidArgument(
                    f"handler of {self.queue}: {name}: expected an int of 1 or more, got {shown(value)}"
                )
        if self.prefetch is not None and not _is_int(self.prefetch, 0):
            raise InvalidArgument(
                f"handler of {self.queue}: prefetch: expected an int of 0 or more, got {shown(self.prefetch)}"
            )
        if not (self.retry is None or isinstance(self.retry, (Fixed, Exponential, Jitter)) or _is_int(self.retry, 0)):
            raise InvalidArgument(
                f"handler of {self.queue}: retry: expected a delay in ms of 0 or more, Fixed, Exponential or Jitter, "
                f"got {shown(self.retry)}"
            )
        for one in self.no_retry:
            if not _is_exception_class(one):
                raise InvalidArgument(f"handler of {self.queue}: no_retry: expected exception classes, got {one!r}")
        if not isinstance(self.cancellable, bool):
            raise InvalidArgument(
                f"handler of {self.queue}: cancellable: expected True or False, got {shown(self.cancellable)}"
            )

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
        # Of a batch handler one call is in hand, nothing waits behind it.
        room = found.concurrency if self.concurrency is not None else self.min_size * found.consumers
        return replace(found, prefetch=0, concurrency=max(found.concurrency, room))

    def _check_batch(self, min_size: int) -> None:
        where = f"batch handler of {self.queue}"
        if min_size > LARGEST_BATCH:
            raise InvalidArgument(f"{where}: min_size: expected an int of 1..{LARGEST_BATCH}, got {shown(min_size)}")
        if not _is_int(self.window_ms, 0):
            raise InvalidArgument(f"{where}: timeout_ms: expected an int of 0 or more, got {shown(self.window_ms)}")
        if self.concurrency is not None and self.concurrency // (self.consumers or 1) < min_size:
            raise InvalidArgument(
                f"{where}: min_size: expected at most concurrency / consumers = "
                f"{self.concurrency // (self.consumers or 1)}, got {min_size}"
            )


def _is_int(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_exception_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)
