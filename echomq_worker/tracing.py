"""Tracing: OpenTelemetry spans and metrics of jobs, for who asks for them. Needs the extra `otel`.

Source: issue "Made for the people who run it" (OpenTelemetry), decision 0040, OpenTelemetry's semantic conventions for
messaging. Nothing of this is imported, and no job pays for it, until `instrument` or `traced` is called.

- `traced(connector)` is a wire for producers: each admission is a span, whose context goes into the row field `trace`.
- `instrument(worker)`: each run of a job is a span of its own, linked to the producer's, and is current in the handler.
  What the rows of a claim say of their producers is asked once per claim, in one round trip.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, overload

import anyio
import anyio.to_thread

from echomq_worker.blocking_connector import BlockingConnector
from echomq_worker.connector import Wire
from echomq_worker.errors import ConnectionLost, ServerError, Unreachable
from echomq_worker.keyspace import Keys
from echomq_worker.logs import Logger
from echomq_worker.spans import Spans
from echomq_worker.telemetry import (
    CARRIER_BYTES,
    MeterProvider,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Telemetry,
    TracerProvider,
    attributes_of,
    propagate,
    trace,
)
from echomq_worker.traced import Admission, admission_of
from echomq_worker.worker import Worker


def instrument(
    worker: Worker, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Worker:
    """Have the worker's runs traced and measured, from its next `run` on; the worker itself is returned.

    Without providers those that are set for the process are used, as OpenTelemetry has it. Twice is once.
    """
    worker.tracing = Tracing(Telemetry.of(tracer_provider, meter_provider), tracer_provider)
    return worker


@overload
def traced(
    wire: BlockingConnector,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> BlockingConnector: ...


@overload
def traced(
    wire: Wire, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Wire: ...


def traced(
    wire: Wire | BlockingConnector,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> Wire | BlockingConnector:
    """A wire for `Jobs`, `Lanes` and `Flows` whose admissions are spans that the jobs' own are linked to.

    It is sent over `wire`, which stays the caller's to close. A connector of `echomq_worker.sync` is returned itself,
    and what is made of it from then on is traced. What is admitted elsewhere, by repeats too, has no producer's span.
    """
    telemetry = Telemetry.of(tracer_provider, meter_provider)
    if isinstance(wire, BlockingConnector):
        wire.around = partial(TracedWire, telemetry=telemetry)
        return wire
    return TracedWire(wire, telemetry)


class Tracing:
    """What a worker asks for its stations, see `station`."""

    def __init__(self, telemetry: Telemetry, provider: TracerProvider | None) -> None:
        self._telemetry = telemetry
        self._provider = provider

    def of(self, keys: Keys, wire: Wire, log: Logger) -> Spans:
        """Those of one queue."""
        return Spans(self._telemetry, keys, wire, log)

    async def flush(self, limit_ms: float) -> None:
        """At the end: have the spans exported that wait for it, for so long at most. A process may be gone soon."""
        provider = self._provider or trace.get_tracer_provider()
        flush = getattr(provider, "force_flush", None)
        if flush is not None:
            with anyio.move_on_after(limit_ms / 1000):
                await anyio.to_thread.run_sync(flush, int(limit_ms), abandon_on_cancel=True)


class TracedWire:
    """A wire on which what admits jobs is a span, and tells the rows so."""

    __slots__ = ("_telemetry", "_wire")

    def __init__(self, wire: Wire, telemetry: Telemetry) -> None:
        self._wire = wire
        self._telemetry = telemetry

    async def call(self, *args: Any) -> Any:
        """As the wire has it."""
        found = admission_of(args)
        if found is None:
            return await self._wire.call(*args)
        (reply,) = await self._send([args], [found])
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """As the wire has it."""
        found = [admission_of(command) for command in commands]
        return await (self._send(commands, found) if any(found) else self._wire.pipeline(commands))

    async def _send(self, commands: Sequence[Sequence[Any]], found: Sequence[Admission | None]) -> list[Any]:
        by_queue: dict[str, list[Admission]] = {}
        for one in found:
            if one is not None:
                by_queue.setdefault(one.queue, []).append(one)
        with self._spans(by_queue) as carriers:
            told = [
                command if one is None else one.told(carriers[one.queue])
                for command, one in zip(commands, found, strict=True)
            ]
            replies = await self._wire.pipeline(told)
            # A script that the server does not know has not run.
            unknown = [
                (at, one)
                for at, (one, reply) in enumerate(zip(found, replies, strict=True))
                if one is not None and isinstance(reply, ServerError) and reply.code == "NOSCRIPT"
            ]
            if unknown:
                texts = [one.told(carriers[one.queue], text=True) for _, one in unknown]
                try:
                    again = await self._wire.pipeline(texts)
                except Unreachable as lost:
                    if len(unknown) == len(replies):
                        raise
                    # Other commands were answered, and their replies are lost with this error.
                    raise ConnectionLost(str(lost)) from lost
                for (at, _), reply in zip(unknown, again, strict=True):
                    replies[at] = reply
            return [reply if one is None else one.answered(reply) for reply, one in zip(replies, found, strict=True)]

    @contextmanager
    def _spans(self, by_queue: Mapping[str, Sequence[Admission]]) -> Iterator[dict[str, str]]:
        """A span for each queue, and what it tells the rows."""
        begun, spans, carriers = time.perf_counter(), dict[str, Span](), dict[str, str]()
        for queue, admissions in by_queue.items():
            ids = [id for one in admissions for id in one.ids]
            attributes = attributes_of(queue, "enqueue", "send")
            one = len(ids) == 1
            attributes["messaging.message.id" if one else "messaging.batch.message_count"] = ids[0] if one else len(ids)
            span = self._telemetry.tracer.start_span(f"enqueue {queue}", kind=SpanKind.PRODUCER, attributes=attributes)
            carrier: dict[str, str] = {}
            propagate.inject(carrier, trace.set_span_in_context(span))
            text = json.dumps(carrier, separators=(",", ":")) if carrier else ""
            spans[queue], carriers[queue] = span, text if len(text) <= CARRIER_BYTES else ""
        error: BaseException | None = None
        try:
            yield carriers
        except BaseException as raised:
            error = raised
            raise
        finally:
            taken = time.perf_counter() - begun
            for queue, span in spans.items():
                self._ended(queue, span, by_queue[queue], taken, error)

    def _ended(
        self, queue: str, span: Span, admissions: Sequence[Admission], taken: float, error: BaseException | None
    ) -> None:
        attributes, admitted = attributes_of(queue, "enqueue", "send"), sum(one.admitted for one in admissions)
        error = error or next((one.error for one in admissions if one.error is not None), None)
        if error is not None:
            attributes["error.type"] = type(error).__name__
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        if admitted:
            self._telemetry.sent.add(admitted, attributes)
        self._telemetry.sending.record(taken, attributes)
        span.end()
