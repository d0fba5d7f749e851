"""Plots: the recent past of a queue as curves in SVG. Values, no I/O.

Source: issue "Made for the people who run it", A dashboard (throughput and latency plots). Geometry only: colours are
the style sheet's, so that the same curve is right in light and in dark.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

WIDTH = 320
HEIGHT = 96
_TOP = 6


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: when (ms), and what was there. `wait_ms`: how long the oldest waiting job has waited, 0 without one."""

    at_ms: int
    ready: int
    active: int
    scheduled: int
    dead: int
    completed: int
    failed: int
    wait_ms: int


class History:
    """The last samples of a queue."""

    __slots__ = ("samples",)

    def __init__(self, keep: int = 300) -> None:
        self.samples: deque[Sample] = deque(maxlen=keep)

    def add(self, sample: Sample) -> None:
        """One more; the oldest goes."""
        self.samples.append(sample)

    def rates(self, name: str) -> list[tuple[int, float]]:
        """How much a counter has grown a second, from sample to sample; one that was reset has not."""
        return [
            (new.at_ms, max(0, getattr(new, name) - getattr(old, name)) * 1000 / (new.at_ms - old.at_ms))
            for old, new in pairwise(self.samples)
            if new.at_ms > old.at_ms
        ]

    def values(self, name: str) -> list[tuple[int, float]]:
        """A number of each sample."""
        return [(sample.at_ms, float(getattr(sample, name))) for sample in self.samples]

    def rate(self, name: str, over_ms: int = 10_000) -> float | None:
        """How much a counter has grown a second of late; None before the second sample."""
        if len(self.samples) < 2:
            return None
        new = self.samples[-1]
        old = next(sample for sample in self.samples if new.at_ms - sample.at_ms <= over_ms)
        if old is new:
            old = self.samples[-2]
        grown: int = getattr(new, name) - getattr(old, name)
        return max(0, grown) * 1000 / max(1, new.at_ms - old.at_ms)


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot: its name, the points of a `polyline`, the closed `area` below it, and its newest value."""

    name: str
    points: str
    area: str
    last: float | None


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves that share an axis from 0 to `top`, over `span_ms`."""

    curves: tuple[Curve, ...]
    top: float
    span_ms: int
    width: int = WIDTH
    height: int = HEIGHT


def plot(
    series: Sequence[tuple[str, Sequence[tuple[int, float]]]],
    *,
    width: int = WIDTH,
    height: int = HEIGHT,
    least: float = 1.0,
) -> Plot:
    """Curves of `(name, [(ms, value), …])` on one axis whose top is a round number, `least` at the least."""
    moments = [at for _, points in series for at, _ in points]
    first, last = (min(moments), max(moments)) if moments else (0, 0)
    top = rounded_up(max([least, *(value for _, points in series for _, value in points)]))
    span = max(1, last - first)
    curves = []
    for name, points in series:
        places = [
            (_cut((at - first) / span * width), _cut(height - value / top * (height - _TOP))) for at, value in points
        ]
        line = " ".join(f"{x},{y}" for x, y in places)
        area = f"{places[0][0]},{height} {line} {places[-1][0]},{height}" if places else ""
        curves.append(Curve(name, line, area, points[-1][1] if points else None))
    return Plot(tuple(curves), top, last - first, width, height)


def rounded_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50, … that is not below."""
    if not math.isfinite(value) or value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999_999)


def _cut(place: float) -> float:
    return round(place, 1)
