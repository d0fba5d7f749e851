"""From a long list of steps that breaks a promise to a shortest one: delta debugging (Zeller's ddmin).

Steps are self-contained, and one that does not apply is skipped, so any part of a list can be tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Step = tuple[Any, ...]
Fails = Callable[[Sequence[Step]], bool]


def shrink(steps: Sequence[Step], fails: Fails) -> list[Step]:
    """A part of `steps` that still fails, and does not when any one step, or one job of a step, is left out."""
    current = list(steps)
    while True:
        before = list(current)
        current = _fewer(current, fails)
        current = _smaller(current, fails)
        if current == before:
            return current


def _fewer(steps: list[Step], fails: Fails) -> list[Step]:
    size = max(1, len(steps) // 2)
    while True:
        at, removed = 0, False
        while at < len(steps):
            candidate = steps[:at] + steps[at + size :]
            if candidate and fails(candidate):
                steps, removed = candidate, True
            else:
                at += size
        if size == 1 and not removed:
            return steps
        size = max(1, size // 2)


def _smaller(steps: list[Step], fails: Fails) -> list[Step]:
    for at in range(len(steps)):
        tried = True
        while tried:
            tried = False
            for simpler in _simpler(steps[at]):
                candidate = [*steps[:at], simpler, *steps[at + 1 :]]
                if fails(candidate):
                    steps, tried = candidate, True
                    break
    return steps


def _simpler(step: Step) -> Iterator[Step]:
    for at, value in enumerate(step):
        if isinstance(value, tuple) and len(value) > 1:
            for without in range(len(value)):
                yield (*step[:at], (*value[:without], *value[without + 1 :]), *step[at + 1 :])
