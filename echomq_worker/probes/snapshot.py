"""Snapshot: the numbers of all instruments at one moment, as a value that adds up and goes through JSON.

Source: issue "Made for the people who run it" (with `--processes N` one port answers for all); user-needs 110. Every
number adds up over processes: a gauge of one process counts what it has, and the fleet has the sum.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["counter", "gauge", "histogram"]
Scope = Literal["process", "shared"]
"""`process`: what one process did or has; it adds up. `shared`: the same whoever tells it; it is taken from one."""

Number = float | tuple[float, ...]
"""Of a histogram: how many values are in each bucket (not cumulated, the last one has no bound), then their sum."""


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric. `name` is what Prometheus shows, of a counter with `_total`; `bounds` are those of buckets."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    scope: Scope = "process"
    bounds: tuple[float, ...] = ()


class Histogram:
    """Values counted by bucket."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0.0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one value; a bound belongs to its bucket."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def number(self) -> tuple[float, ...]:
        """As a snapshot has it."""
        return (*self._counts, self._sum)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Numbers by the name of their instrument and the values of its labels. Not to be changed once it is handed on."""

    numbers: dict[str, dict[tuple[str, ...], Number]] = field(default_factory=dict)

    def put(self, name: str, value: Number, *labels: str) -> None:
        """Add a number to what stands there, nothing or another one."""
        of_name = self.numbers.setdefault(name, {})
        there = of_name.get(labels)
        of_name[labels] = value if there is None else _sum(there, value)

    def only(self, instruments: Iterable[Instrument]) -> Snapshot:
        """What it has of these."""
        return Snapshot({one.name: dict(self.numbers[one.name]) for one in instruments if one.name in self.numbers})

    def __iter__(self) -> Iterator[tuple[str, tuple[str, ...], Number]]:
        """Every number with its name and labels."""
        for name, of_name in self.numbers.items():
            for labels, value in of_name.items():
                yield name, labels, value

    @property
    def rows(self) -> list[list[Any]]:
        """As JSON has it."""
        return [
            [name, list(labels), list(value) if isinstance(value, tuple) else value] for name, labels, value in self
        ]

    @classmethod
    def of_rows(cls, rows: Any) -> Snapshot:
        """What `rows` was, read from JSON. Raises ValueError for anything else."""
        made = cls()
        try:
            for name, labels, value in rows:
                number = tuple(map(float, value)) if isinstance(value, list) else float(value)
                made.put(str(name), number, *map(str, labels))
        except TypeError as error:
            raise ValueError(f"no snapshot: {error}") from None
        return made


def added(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The sum of several."""
    made = Snapshot()
    for snapshot in snapshots:
        for name, labels, value in snapshot:
            made.put(name, value, *labels)
    return made


def _sum(one: Number, other: Number) -> Number:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return tuple(a + b for a, b in zip(one, other, strict=True))
    if isinstance(one, tuple) or isinstance(other, tuple):
        raise ValueError("a histogram and a plain number cannot be added")  # noqa: TRY004 - the sender's mistake
    return one + other
