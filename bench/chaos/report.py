"""The account in words, and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.chaos import counted
from bench.chaos.account import Account
from bench.chaos.evidence import STARVED, Evidence
from bench.chaos.finding import Finding

_SHOWN = 20
_LOG_LINES = 40


@dataclass(frozen=True, slots=True)
class Told:
    """What a report is made of: the account and its evidence, the seed, faults that found nothing to hit, the drain."""

    account: Account
    seen: Evidence
    seed: int
    missed: Mapping[str, int]
    drained_ms: float


def text(told: Told) -> str:
    """The compact report."""
    account, seen, missed = told.account, told.seen, told.missed
    kinds = Counter(fault.kind for fault in seen.faults if fault.kind != STARVED)
    starved = sum(1 for fault in seen.faults if fault.kind == STARVED)
    total = sum(account.runs[count] * count for count in account.runs)
    places = ", ".join(f"{count:,} {place}" for place, count in sorted(account.places.items()))
    worst = account.longest_wait
    terms, metrics = seen.terms, counted.told(seen)
    limit = f"at most lease {terms.lease_ms} + beat {terms.beat_ms} + margin {terms.margin_ms}"
    held_up = sum(1 for wait in account.waits if wait.fault is not None)
    lines = [
        f"seed            {told.seed}",
        f"faults          {sum(kinds.values())} of {len(kinds)} kinds ({sum(missed.values())} found nothing to hit)",
        f"                {_list(kinds)}",
        f"machine         stood still {starved} times by itself, for 0.4 s or more",
        f"enqueued        {account.enqueued:,} ids ({account.unsure:,} more had no answer and never were)",
        f"where they are  {places}",
        f"runs            {total:,}; by id: {_list(account.runs)}",
        f"asked again     {_list(account.again)}",
        f"duplicates      {sum(account.duplicates.values())}: {_list(account.duplicates)}",
        f"after a kill    {len(account.waits)} jobs started again, {held_up} of them later, held up by another fault",
        f"longest wait    {f'{worst.ms:.0f} ms ({worst.id})' if worst else 'none'}; {limit}",
        f"flows           {account.flows}",
        *(
            f"repeat {one.name:<8} {one.fired} fired of {one.periods} periods, {one.missed} held up by faults"
            for one in account.fires
        ),
        f"exits           {_list(account.exits)}",
        f"metrics         {metrics.processes} asked, {metrics.whole} of them to the end; {metrics.several} of a fleet",
        f"                completions: {metrics.completed:,} told, {metrics.counted:,} on the server",
        f"                {metrics.stands} numbers of what stands on the server, each as its keys have it",
        f"drained         {told.drained_ms / 1000:.1f} s after the last fault",
        f"left over       {len(seen.leftovers)}",
        f"account         {'balanced' if account.balanced else f'NOT balanced: {len(account.findings)} findings'}",
    ]
    return "\n".join(lines)


def history(finding: Finding, seen: Evidence, folder: Path) -> str:
    """Everything that is known of the id of a finding, in order of time."""
    id = finding.id
    begun = min((one.sent_ms for tries in seen.tries.values() for one in tries), default=0.0)
    events = sorted(_events(id, seen))
    order = seen.orders.get(id)
    lines = [f"## {finding}", *([f"   {order}"] if order else [])]
    lines += [f"   {(at - begun) / 1000:10.3f} s  {what}" for at, what in events]
    if id in seen.places:
        lines.append(f"   at the end: {seen.places[id]}")
    return "\n".join([*lines, *(f"   log: {line}" for line in _logged(id, folder))])


def findings(told: Told, folder: Path) -> Iterator[str]:
    """The histories of the first findings."""
    account, seen = told.account, told.seen
    for finding in account.findings[:_SHOWN]:
        yield history(finding, seen, folder)
    if len(account.findings) > _SHOWN:
        yield f"and {len(account.findings) - _SHOWN} more: {_list(Counter(one.what for one in account.findings))}"


def as_json(told: Told) -> str:
    """The same as one JSON object."""
    account, seen = told.account, told.seen
    worst = account.longest_wait
    found: dict[str, Any] = {
        "seed": told.seed,
        "balanced": account.balanced,
        "terms": {"lease_ms": seen.terms.lease_ms, "beat_ms": seen.terms.beat_ms, "margin_ms": seen.terms.margin_ms},
        "faults": Counter(fault.kind for fault in seen.faults),
        "missed": dict(told.missed),
        "enqueued": account.enqueued,
        "unsure": account.unsure,
        "places": account.places,
        "runs_by_id": account.runs,
        "asked_again": account.again,
        "duplicates": account.duplicates,
        "waits": len(account.waits),
        "longest_wait_ms": None if worst is None else round(worst.ms),
        "flows": account.flows,
        "repeats": [
            {"name": one.name, "periods": one.periods, "fired": one.fired, "missed": one.missed}
            for one in account.fires
        ],
        "exits": account.exits,
        "metrics": asdict(counted.told(seen)),
        "drained_ms": round(told.drained_ms),
        "findings": [{"what": one.what, "id": one.id, "sentence": one.sentence} for one in account.findings],
    }
    return json.dumps(found, indent=2)


def _list(counts: Counter[Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda one: str(one[0]))) or "none"


def _events(id: str, seen: Evidence) -> Iterator[tuple[float, str]]:
    first, last = float("inf"), 0.0
    for one in seen.tries.get(id, ()):
        first, last = min(first, one.sent_ms), max(last, one.sent_ms)
        yield one.sent_ms, "sent"
        if one.answered_ms != float("inf"):
            yield one.answered_ms, f"answered: {one.answer}"
    for run in seen.runs.get(id, ()):
        first, last = min(first, run.start_ms), max(last, run.end_ms or run.start_ms)
        where = f"worker {run.worker} (pid {run.pid}), claim {run.held}"
        yield run.start_ms, f"run begins on {where}, attempt {run.attempts}"
        if run.end_ms is not None:
            yield run.end_ms, f"run ends {run.outcome} on {where}"
    lease_ms = seen.terms.lease_ms
    for fault in seen.faults:
        if fault.begin_ms <= last + 2 * lease_ms and fault.end_ms >= first - 2 * lease_ms:
            yield fault.begin_ms, f"  fault: {fault}"


def _logged(id: str, folder: Path) -> list[str]:
    if not id.startswith("JOB"):
        return []
    found: list[str] = []
    for path in sorted(folder.glob("log-*")):
        with path.open(errors="replace") as file:
            found += [f"{path.name}: {line.rstrip()[:400]}" for line in file if id in line]
    return found[:_LOG_LINES]
