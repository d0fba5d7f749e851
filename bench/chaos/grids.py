"""The account of repeats of a fixed rate: no period fires twice, and one that did not fire has a fault to blame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.chaos.evidence import Evidence, Fire, Grid
from bench.chaos.explain import slow
from bench.chaos.finding import Finding

# After a fault a Pump waits on the degraded curve, a killed worker has to start, and the machine may be busy.
_AFTER_MS = 8_000


@dataclass(frozen=True, slots=True)
class Periods:
    """A repeat: how many periods it had, how many fired, and how many a fault kept from it."""

    name: str
    periods: int
    fired: int
    missed: int


def periods(seen: Evidence) -> tuple[list[Periods], list[Finding]]:
    """Each repeat's periods, and what is wrong with them."""
    counted: list[Periods] = []
    findings: list[Finding] = []
    for grid in seen.grids:
        # A set: the same occurrence may be sent again, to a server that does not know the script yet.
        by_period: dict[int, set[str]] = {}
        for fire in _fired(seen, grid):
            by_period.setdefault((fire.now_ms - grid.first_ms) // grid.every_ms, set()).add(fire.id)
        findings += [
            Finding("fired twice", grid.name, f"period {number} has {', '.join(sorted(ids))}")
            for number, ids in sorted(by_period.items())
            if len(ids) > 1
        ]
        # The last one may have been cancelled before a Pump came to it.
        whole = max(0, (_until_ms(seen, grid) - grid.first_ms) // grid.every_ms)
        missed = [number for number in range(whole) if number not in by_period]
        findings += list(_unexplained(seen, grid, missed))
        counted.append(Periods(grid.name, whole, whole - len(missed), len(missed)))
    return counted, findings


def _until_ms(seen: Evidence, grid: Grid) -> int:
    """When it was cancelled; or the server forgot it."""
    if seen.forgotten_ms is None:
        return grid.until_ms
    return min(grid.until_ms, round(seen.forgotten_ms + grid.host_minus_ms))


def _fired(seen: Evidence, grid: Grid) -> Iterator[Fire]:
    """Occurrences that came to be: of those that a Pump only asked for nothing was seen."""
    for fire in seen.fires:
        if fire.name == grid.name and (fire.id in seen.runs or fire.id in seen.places):
            yield fire


def _unexplained(seen: Evidence, grid: Grid, missed: list[int]) -> Iterator[Finding]:
    for number in missed:
        begin_ms = grid.first_ms + number * grid.every_ms - grid.host_minus_ms
        end_ms = begin_ms + grid.every_ms
        # Every Pump, or the server, must have been held up.
        if not all(slow(seen.faults, begin_ms - _AFTER_MS, end_ms, [pump]) for pump in seen.pumps):
            yield Finding("missed a period", grid.name, f"period {number}, and no fault explains that")
