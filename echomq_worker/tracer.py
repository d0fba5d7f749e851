"""Tracer: what traces the runs of jobs, as a station sees it, which knows nothing of OpenTelemetry.

Source: decision 0040. The only implementation is in `tracing` and `spans`, which are imported only by those who trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from echomq_worker.batch import ExecuteBatch
from echomq_worker.connector import Wire
from echomq_worker.executor import Execute
from echomq_worker.job import Job
from echomq_worker.keyspace import Keys
from echomq_worker.logs import Logger


class Runs(Protocol):
    """What traces the runs of one queue's jobs, where somebody has asked for it: `spans`."""

    def claimed(self, jobs: Sequence[Job], /) -> None:
        """These are in hand."""
        ...

    def announcing(self, announce: Callable[[Job], object], /) -> Callable[[Job], object]:
        """As `announce`, in the context of a run."""
        ...

    def enter(self, jobs: Sequence[Job], /) -> None:
        """The handler of these begins in this context."""
        ...

    def around(self, execute: Execute, /) -> Execute:
        """`execute`, traced."""
        ...

    def around_batch(self, execute: ExecuteBatch, /) -> ExecuteBatch:
        """The same for batches."""
        ...


class Tracing(Protocol):
    """What makes them: see `tracing.instrument`."""

    def of(self, keys: Keys, wire: Wire, log: Logger, /) -> Runs:
        """Those of one queue."""
        ...

    async def flush(self, limit_ms: float, /) -> None:
        """At the end, export what waits for it."""
        ...
