"""Exposition: a snapshot as the text that Prometheus reads, made by prometheus-client in a registry of its own.

Source: issue "Made for the people who run it" (`/metrics`, prometheus-client). Nothing is put into the library's global
registry, where an application keeps its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from echomq_worker.probes.instruments import INSTRUMENTS
from echomq_worker.probes.snapshot import Instrument, Number, Snapshot

_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


def expose(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """The text, in the format that `accept` asks for, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(snapshot))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Snapshot(Collector):
    """A collector that has its numbers already. What no instrument is called is left out."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        for one in INSTRUMENTS:
            found = self._snapshot.numbers.get(one.name)
            if found:
                yield _family(one, found)


def _family(one: Instrument, found: dict[tuple[str, ...], Number]) -> Metric:
    family: Any = _FAMILIES[one.kind](one.name, one.help, labels=one.labels)
    for labels, value in sorted(found.items()):
        if isinstance(family, HistogramMetricFamily) and isinstance(value, tuple):
            *counts, total = value
            bounds = [*map(str, one.bounds), "+Inf"]
            family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
        elif not isinstance(value, tuple) and not isinstance(family, HistogramMetricFamily):
            family.add_metric(labels, value)
    made: Metric = family
    return made
