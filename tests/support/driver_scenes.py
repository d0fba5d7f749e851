"""Scenes of the driver: every consumer parks, the tokens are used up, and then work that can be claimed comes free.

Source: protocol section 4 ("Readiness tokens"): whoever frees it pushes a token. A scene is a list of plain steps; what
does not apply when its turn comes is skipped, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.support.driver_model import GROUPS, WORKERS
from tests.support.driver_repeats import NAMES
from tests.support.driver_world import READ, Step

_SLOTS = 50
_CEILING = 2

Scene = Callable[[int, Sequence[int], Sequence[int]], list[Step]]
"""Queue, numbers of its jobs, and some numbers that nobody has had."""


def _all_park(q: int) -> list[Step]:
    return [*((q, "claim", w, _SLOTS, READ) for w in range(WORKERS)), (q, "live", 0)]


def _released(q: int, numbers: Sequence[int], fresh: Sequence[int]) -> list[Step]:
    """Jobs in hand are given back."""
    jobs = (*fresh, *numbers)
    return [(q, "flood", tuple(fresh)), *_all_park(q), *((q, "release", w, jobs, READ) for w in range(WORKERS))]


def _resumed(q: int, numbers: Sequence[int], fresh: Sequence[int]) -> list[Step]:
    """A paused queue has got jobs."""
    return [*_all_park(q), (q, "halt", 1), (q, "flood", tuple(fresh)), *_all_park(q), (q, "halt", 0)]


def _settled(q: int, numbers: Sequence[int], fresh: Sequence[int]) -> list[Step]:
    """Below a ceiling that is full, by a worker of ours."""
    verdicts = tuple(("c", n, 1) for n in (*fresh, *numbers))
    held: list[Step] = [(q, "ceiling", _CEILING), (q, "flood", tuple(fresh)), *_all_park(q), (q, "look", _SLOTS)]
    return [*held, *((q, "settle", w, verdicts, READ) for w in range(WORKERS)), (q, "ceiling", 0)]


def _completed(q: int, numbers: Sequence[int], fresh: Sequence[int]) -> list[Step]:
    """The same, by a plain verb of a foreign client's that took more than the ceiling lets ours have."""
    held: list[Step] = [(q, "ceiling", 1), (q, "flood", tuple(fresh)), (q, "fbatch", 1), *_all_park(q)]
    return [*held, *((q, "fend", "c", n, 0, 1) for n in (*fresh, *numbers)), (q, "ceiling", 0)]


def _added(q: int, numbers: Sequence[int], fresh: Sequence[int]) -> list[Step]:
    """A flow by the plain verb, and the dead live again."""
    parent, *children = fresh
    return [*_all_park(q), (q, "fadd", parent, tuple(children)), *_all_park(q), (q, "requeue", _SLOTS, 1)]


def _swept(q: int, numbers: Sequence[int], fresh: Sequence[int]) -> list[Step]:
    """What is due, and what has run out."""
    due: list[Step] = [(q, "due", tuple(numbers)), (q, "promote")]
    return [*_all_park(q), *due, *_all_park(q), (q, "expire", tuple(numbers)), (q, "reap")]


def _fired(q: int, numbers: Sequence[int], fresh: Sequence[int]) -> list[Step]:
    """Two Pumps have read that repeats are due, a period and a half late, and fire them; of two ids one is taken."""
    rings = [(q, "ring", p, tuple(fresh[p : p + 1])) for p in range(2)]
    names: list[Step] = [(q, "register", name, 500, 0, fixed, 0) for fixed, name in enumerate(NAMES[:2])]
    calendar: list[Step] = [(q, "calendar", NAMES[2], 1, 1), (q, "tick", 60_000)]
    late = [*names, (q, "tick", 750), *(rings * 5), *calendar, *(rings * 9)]
    return [*_all_park(q), *((q, "rcrash", p) for p in range(2)), *late]


def _in_turn(q: int, numbers: Sequence[int], fresh: Sequence[int]) -> list[Step]:
    """A lane with a weight above its limit."""
    group = GROUPS[0]
    filled: list[Step] = [(q, "flood", tuple(fresh)), *((q, "reassign", n, group) for n in fresh)]
    limits: list[Step] = [(q, "resume", group), (q, "weight", group, 4), (q, "limit", group, 2), (q, "look", _SLOTS)]
    return [*filled, *limits, *[(q, "fwclaim")] * len(GROUPS)]


SCENES: tuple[Scene, ...] = (_released, _resumed, _settled, _completed, _added, _swept, _fired, _in_turn)
