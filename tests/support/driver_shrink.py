"""From a long list of steps that breaks a promise to a shortest one: delta debugging (after Zeller's ddmin).

Steps are self-contained, and one that does not apply is skipped, so any part of a list can be tried. Several candidates
are tried at a time: they wait for the server together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

AT_ONCE = 16

Step = tuple[Any, ...]
FirstFailing = Callable[[Sequence[Sequence[Step]]], int | None]
"""Of several lists of steps the first one that fails, or None."""


def shrink(steps: Sequence[Step], first_failing: FirstFailing) -> list[Step]:
    """A part of `steps` that still fails, and does not when any one step, or one job of a step, is left out."""
    current = list(steps)
    while True:
        before = current
        current = _fewer(current, first_failing)
        for at in range(len(current)):
            for place in range(len(current[at])):
                current = _smaller(current, at, place, first_failing)
        if current == before:
            return current


def _fewer(items: list[Any], first_failing: Callable[[list[list[Any]]], int | None]) -> list[Any]:
    size = max(1, len(items) // 2)
    while True:
        # From the end: what came later depends on what came before.
        end, removed = len(items), False
        while end > 0:
            ends = list(range(end, 0, -size))[:AT_ONCE]
            candidates = [items[: max(0, last - size)] + items[last:] for last in ends]
            found = first_failing(candidates)
            if found is not None:
                items, removed = candidates[found], True
            end = ends[-1 if found is None else found] - size
        if size == 1 and not removed:
            return items
        size = max(1, size // 2)


def _smaller(steps: list[Step], at: int, place: int, first_failing: FirstFailing) -> list[Step]:
    value = steps[at][place]
    if not isinstance(value, tuple) or len(value) < 2:
        return steps

    def with_jobs(jobs: list[Any]) -> list[Step]:
        return [*steps[:at], (*steps[at][:place], tuple(jobs), *steps[at][place + 1 :]), *steps[at + 1 :]]

    return with_jobs(_fewer(list(value), lambda tried: first_failing([with_jobs(jobs) for jobs in tried])))
