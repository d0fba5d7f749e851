"""Spans: the runs of one queue's jobs as spans and counts of OpenTelemetry. Needs the extra `otel`.

Source: issue "Made for the people who run it" (OpenTelemetry), decision 0040, OpenTelemetry's semantic conventions for
messaging. A station has one where its worker is instrumented, see `tracing`.

A payload is never looked at. Of an exception a span has the class, the text that the row keeps, and the lines of its
trace; its cause may hold a payload and is left out.
"""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from echomq_worker.batch import Batch, Ends, ExecuteBatch
from echomq_worker.connector import Wire
from echomq_worker.errors import EchoMQError
from echomq_worker.executor import Execute
from echomq_worker.identity import is_branded
from echomq_worker.job import Job
from echomq_worker.keyspace import Keys
from echomq_worker.logs import Logger
from echomq_worker.outcome import Abandoned, Outcome
from echomq_worker.raised import is_a, say, trace_of
from echomq_worker.telemetry import (
    CARRIER_BYTES,
    Context,
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Telemetry,
    attributes_of,
    contexts,
    propagate,
    trace,
)
from echomq_worker.verdict import Bury, Complete, DelayTo, RetryLater

# How long a handler waits for what its row says of the producer.
_PATIENCE_S = 1.0
_REMEMBERED = 20_000


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a job that is on: its span, the context of its handler, when it began."""

    span: Span
    context: Context
    begun: float


class Spans:
    """The runs of one queue's jobs. Whatever goes wrong here, no job is harmed by it."""

    def __init__(self, telemetry: Telemetry, keys: Keys, wire: Wire, log: Logger) -> None:
        self._telemetry = telemetry
        self._keys = keys
        self._wire = wire
        self._log = log
        self._blamed = False
        self._told: dict[Job, tuple[asyncio.Task[list[Any]], int]] = {}
        self._asking: set[asyncio.Task[list[Any]]] = set()
        self._contexts: dict[Job, Context] = {}

    # -- hooks of the station

    def claimed(self, jobs: Sequence[Job]) -> None:
        """These are in hand: ask their rows, all at once, who has admitted them."""
        if not jobs:
            return
        if len(self._told) > _REMEMBERED:
            # Jobs that were dropped before they began.
            self._told = {job: told for job, told in self._told.items() if job.lease is not None}
        asking = asyncio.get_running_loop().create_task(self._ask([job.id for job in jobs]), name="traces")
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        for at, job in enumerate(jobs):
            self._told[job] = (asking, at)

    def announcing(self, announce: Callable[[Job], object]) -> Callable[[Job], object]:
        """As `announce`, called in the context that a handler gets, which has the run's span from there on."""

        def announced(job: Job) -> None:
            announce(job)
            self.enter([job])

        return announced

    def enter(self, jobs: Sequence[Job]) -> None:
        """The handler of these begins in this very context."""
        found = self._contexts.get(jobs[0])
        if found is not None:
            contexts.attach(found)

    def around(self, execute: Execute) -> Execute:
        """`execute` of an Executor, as a span."""

        async def executed(job: Job, runner: asyncio.Task[Any] | None = None, /) -> Outcome:
            run = self._begin(job, await self._producer(job), None)
            try:
                outcome = await execute(job, runner)
            except BaseException as error:
                self._end(run, job, error)
                raise
            finally:
                self._left([job])
            self._end(run, job, outcome)
            return outcome

        return executed

    def around_batch(self, execute: ExecuteBatch) -> ExecuteBatch:
        """`execute` of a BatchExecutor: a span for the call, which its handler sees, and in it one for each job."""

        async def executed(batch: Batch, runner: asyncio.Task[Any] | None = None, /) -> Ends:
            producers = [await self._producer(job) for job in batch.jobs]
            call = self._begin_call(batch.jobs)
            runs = {job: self._begin(job, producer, call) for job, producer in zip(batch.jobs, producers, strict=True)}
            try:
                ends = await execute(batch, runner)
            except BaseException as error:
                for job, run in runs.items():
                    self._end(run, job, error)
                raise
            finally:
                self._left(batch.jobs)
                self._end_call(call)
            for job, outcome in ends:
                self._end(runs[job], job, outcome)
            return ends

        return executed

    # -- what rows say

    async def _ask(self, ids: Sequence[str]) -> list[Any]:
        try:
            with anyio.move_on_after(_PATIENCE_S):
                return await self._wire.pipeline([("HGET", self._keys.found(id), "trace") for id in ids])
        except EchoMQError:
            pass
        return [None] * len(ids)

    async def _producer(self, job: Job) -> Context | None:
        """The context of the span that has admitted the job, as far as its row says so."""
        told = self._told.pop(job, None)
        if told is None:
            return None
        asking, at = told
        raw = (asking.result() if asking.done() else await asyncio.shield(asking))[at]
        if not isinstance(raw, bytes) or len(raw) > CARRIER_BYTES:
            return None
        try:
            carrier = json.loads(raw)
            return propagate.extract(carrier) if isinstance(carrier, dict) else None
        except Exception:  # noqa: BLE001 - a row may say anything, and a propagator is the user's
            return None

    # -- spans

    def _begin(self, job: Job, producer: Context | None, call: _Run | None) -> _Run | None:
        try:
            return self._begun(job, producer, call)
        except Exception as error:  # noqa: BLE001 - samplers and processors are the user's
            self._blame(error)
            return None

    def _begun(self, job: Job, producer: Context | None, call: _Run | None) -> _Run:
        told, queue = self._telemetry, self._keys.queue
        attributes = attributes_of(queue, "process", "process")
        told.consumed.add(1, attributes)
        if is_branded(job.id):
            told.waiting.record(max(0.0, time.time() - job.minted_at / 1000), attributes)
        attributes |= {
            "messaging.message.id": job.id,
            "echomq.attempt": job.attempts,
            "echomq.failures": job.failures,
        }
        if job.group is not None:
            attributes["echomq.group"] = job.group
        sender = trace.get_current_span(producer).get_span_context() if producer is not None else None
        links = [Link(sender)] if sender is not None and sender.is_valid else []
        # The producer's baggage is taken over, its trace is not: that may be days old, and shared by a thousand jobs.
        around = producer if producer is not None else Context()
        parent = trace.set_span_in_context(trace.INVALID_SPAN if call is None else call.span, around)
        span = told.tracer.start_span(
            f"process {queue}", context=parent, kind=SpanKind.CONSUMER, attributes=attributes, links=links
        )
        run = _Run(span, trace.set_span_in_context(span, around), time.perf_counter())
        self._contexts[job] = run.context if call is None else call.context
        return run

    def _begin_call(self, jobs: Sequence[Job]) -> _Run | None:
        try:
            queue = self._keys.queue
            attributes = attributes_of(queue, "process", "process") | {"messaging.batch.message_count": len(jobs)}
            span = self._telemetry.tracer.start_span(f"batch {queue}", context=Context(), attributes=attributes)
            return _Run(span, trace.set_span_in_context(span, Context()), time.perf_counter())
        except Exception as error:  # noqa: BLE001 - samplers and processors are the user's
            self._blame(error)
            return None

    def _end_call(self, call: _Run | None) -> None:
        try:
            if call is not None:
                call.span.end()
        except Exception as error:  # noqa: BLE001 - samplers and processors are the user's
            self._blame(error)

    def _end(self, run: _Run | None, job: Job, outcome: Outcome | BaseException) -> None:
        if run is None:
            return
        try:
            self._ended(run, job, outcome)
        except Exception as error:  # noqa: BLE001 - samplers and processors are the user's
            self._blame(error)

    def _ended(self, run: _Run, job: Job, outcome: Outcome | BaseException) -> None:
        what, said = _meaning(job, outcome)
        attributes = attributes_of(self._keys.queue, "process", "process") | {"echomq.outcome": what}
        raised = outcome if is_a(outcome, BaseException) else job.exception
        if said is not None:
            attributes["error.type"] = what if raised is None else type(raised).__name__
            run.span.set_attribute("error.type", attributes["error.type"])
            run.span.set_status(Status(StatusCode.ERROR, said))
            if raised is not None:
                frames = "".join(traceback.format_tb(trace_of(raised)))
                event = {"exception.type": type(raised).__name__, "exception.message": said}
                run.span.add_event("exception", event | {"exception.stacktrace": frames})
        run.span.set_attribute("echomq.outcome", what)
        self._telemetry.processing.record(time.perf_counter() - run.begun, attributes, run.context)
        run.span.end()

    def _left(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._contexts.pop(job, None)
        # A handler on the event loop had its runner's own context: the next job must not find this one's span there.
        contexts.attach(Context())

    def _blame(self, error: Exception) -> None:
        if not self._blamed:
            self._blamed = True
            say(self._log.error, "tracing failed", error, queue=self._keys.queue, hint="it is not logged again")


def _meaning(job: Job, outcome: Outcome | BaseException) -> tuple[str, str | None]:
    """What became of a run, and what went wrong with it, if anything."""
    match outcome:
        case Complete():
            return "completed", None
        case DelayTo():
            return "delayed", None
        case RetryLater():
            return "dead" if job.last_attempt else "retried", outcome.error
        case Bury():
            return "dead", outcome.error
        case Abandoned():
            return "abandoned", outcome.reason
        case _:
            return "abandoned", type(outcome).__name__
