"""Options of a handler, and the numbers in force once the worker's defaults stand behind them.

Source: design.md section 2, protocol section 8 (the defaults), issue "Every control" (batch handlers, cancellation).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from echomq_worker.backoff import Exponential, Fixed, Jitter, Policy
from echomq_worker.errors import InvalidArgument, shown
from echomq_worker.keyspace import check_queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Numbers in force for a handler: the defaults of protocol section 8, the settings', or with its options over them.

    `concurrency` jobs at a time, split over `consumers` consumers; `retry` is a delay in ms or a backoff policy;
    `timeout_ms` None means none.
    """

    concurrency: int = 10
    consumers: int = 1
    max_attempts: int = 3
    retry: int | Policy = 1_000
    timeout_ms: int | None = None
    lease_ms: int = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a handler sets for itself; None is the worker's default. Raises InvalidArgument, InvalidQueueName.

    `no_retry`: exception classes that make the job dead at once. `cancellable`: a request to cancel a job cancels the
    task of its handler; without it the handler asks (`job.cancelled`).
    """

    queue: str
    concurrency: int | None = None
    consumers: int | None = None
    max_attempts: int | None = None
    retry: int | Policy | None = None
    no_retry: tuple[type[BaseException], ...] = ()
    timeout_ms: int | None = None
    lease_ms: int | None = None
    cancellable: bool = False

    def __post_init__(self) -> None:
        check_queue(self.queue)
        for name in ("concurrency", "consumers", "max_attempts", "timeout_ms", "lease_ms"):
            value = getattr(self, name)
            if value is not None and not _is_int(value, 1):
                raise InvalidArgument(
                    f"handler of {self.queue}: {name}: expected an int of 1 or more, got {shown(value)}"
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

    def over(self, limits: Limits) -> Limits:
        """The numbers in force: these options where they are set, else `limits`."""
        names = [field.name for field in fields(Limits)]
        own = {name: getattr(self, name) for name in names}
        return Limits(**{name: getattr(limits, name) if own[name] is None else own[name] for name in names})


def _is_int(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_exception_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)
