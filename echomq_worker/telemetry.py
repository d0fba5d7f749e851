"""Telemetry: the instruments of OpenTelemetry that spans and counts of jobs go to. Needs the extra `otel`.

Source: decision 0040, OpenTelemetry's semantic conventions for messaging.
"""

from __future__ import annotations

from dataclasses import dataclass

from echomq_worker.errors import ConfigError

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ImportError:
    raise ConfigError("tracing: OpenTelemetry is not installed, expected pip install 'echomq-worker[otel]'") from None

# Nobody else imports OpenTelemetry, so that whoever lacks it is told so.
__all__ = [
    "CARRIER_BYTES",
    "Attributes",
    "Context",
    "Link",
    "MeterProvider",
    "Span",
    "SpanKind",
    "Status",
    "StatusCode",
    "Telemetry",
    "TracerProvider",
    "attributes_of",
    "contexts",
    "propagate",
    "trace",
]

NAME = "echomq_worker"
SYSTEM = "echomq"
# What a row says of its trace is short; anything longer is neither read from a row nor written to one.
CARRIER_BYTES = 8_192

Attributes = dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The instruments. Durations are in seconds, as the conventions have it."""

    tracer: trace.Tracer
    sent: metrics.Counter
    sending: metrics.Histogram
    consumed: metrics.Counter
    processing: metrics.Histogram
    waiting: metrics.Histogram

    @classmethod
    def of(cls, tracers: TracerProvider | None, meters: MeterProvider | None) -> Telemetry:
        """From providers, or those of the process."""
        meter = metrics.get_meter(NAME, meter_provider=meters)
        return cls(
            trace.get_tracer(NAME, tracer_provider=tracers),
            meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs that were admitted."),
            meter.create_histogram("messaging.client.operation.duration", "s", "How long an admission took."),
            meter.create_counter("messaging.client.consumed.messages", "{message}", "Runs that were begun."),
            meter.create_histogram("messaging.process.duration", "s", "How long a run took."),
            meter.create_histogram("echomq.queue.wait", "s", "From the minting of a job's id to a run of it."),
        )


def attributes_of(queue: str, name: str, kind: str) -> Attributes:
    """What spans and counts of one queue have in common."""
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
