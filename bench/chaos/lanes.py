"""The account of lanes: no more jobs of a group in flight than its limit, as long as no lease was lost."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bench.chaos.evidence import Evidence, Run
from bench.chaos.explain import lost_lease
from bench.chaos.finding import Finding


def check(seen: Evidence) -> Iterator[Finding]:
    """A finding for each moment at which a lane was above its limit and no fault can have done that."""
    by_group: dict[str, list[Run]] = {}
    for of_id in seen.runs.values():
        for run in of_id:
            # A server that forgot everything has no limits any more.
            if run.group in seen.limits and run.start_ms < (seen.forgotten_ms or math.inf):
                by_group.setdefault(run.group, []).append(run)
    for group, runs in by_group.items():
        yield from _above(seen, group, sorted(runs, key=lambda run: run.start_ms))


def _above(seen: Evidence, group: str, runs: list[Run]) -> Iterator[Finding]:
    running: list[Run] = []
    limit = seen.limits[group]
    for run in runs:
        running = [one for one in running if _end_ms(seen, one) > run.start_ms]
        running.append(run)
        if len(running) > limit and not any(_may_have_lost(seen, one, run.start_ms) for one in running):
            yield Finding("above the limit", group, f"{len(running)} jobs run, at most {limit} may: {_ids(running)}")


def _ids(running: list[Run]) -> str:
    return ", ".join(run.id for run in running)


def _end_ms(seen: Evidence, run: Run) -> float:
    """The end of a run; of one that never ended, the next run of its id, or a lease."""
    if run.end_ms is not None:
        return run.end_ms
    after = [one.start_ms for one in seen.runs[run.id] if one.start_ms > run.start_ms]
    return min(after, default=run.start_ms + seen.terms.lease_ms)


def _may_have_lost(seen: Evidence, run: Run, until_ms: float) -> bool:
    """Whether the run's claim may be over though the run is not: its lease was lost, or its process ended."""
    touching = [fault for fault in seen.faults if fault.touches(run.worker, run.pid)]
    ended = any(fault.kind in {"kill", "deploy"} and fault.begin_ms <= until_ms for fault in touching)
    return ended or lost_lease(touching, run.start_ms, until_ms, seen.terms) is not None
