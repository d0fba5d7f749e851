"""Telemetry: providers that keep what they are told, for tests. Needs the extra `otel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Kept:
    """What was told: spans in the order of their ends, and points of instruments."""

    def __init__(self, **options: Any) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False, **options)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    @property
    def providers(self) -> dict[str, Any]:
        """The arguments of `instrument` and `traced`."""
        return {"tracer_provider": self.tracers, "meter_provider": self.meters}

    def spans(self, name: str = "") -> Sequence[ReadableSpan]:
        """Those that have ended, of one name or all."""
        return [span for span in self._spans.get_finished_spans() if name in {"", span.name}]

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """An instrument's points: attributes, and the sum of a counter or the count of a histogram."""
        data = self._reader.get_metrics_data()
        found: Any = [
            point
            for resource in (data.resource_metrics if data is not None else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
        return [(dict(point.attributes), getattr(point, "count", None) or point.value) for point in found]


def text_of(spans: Sequence[ReadableSpan]) -> str:
    """All that the spans say."""
    return "".join(span.to_json() for span in spans)
