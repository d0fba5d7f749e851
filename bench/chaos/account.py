"""The account of every id: where it ended, how often it ran and why, how long it waited. A value made of evidence.

Source: issue "The five promises": done + dead + pending + scheduled + active = enqueued, runs per id, longest wait
after a crash, duplicate runs and the fault that explains each. What cannot be explained is a finding, and a run with
findings has failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.chaos import counted, family, grids, lanes
from bench.chaos.evidence import DEADLY, Evidence, Happened, Order, Run
from bench.chaos.explain import KILLS, Why, admitted_again, slow, why_again
from bench.chaos.finding import Finding
from bench.chaos.plan import SERVER

# Claims in a row that never ended bury a job; as many faults must have been there.
_CRASHES = 5
CRASHED = "crashed:"
# What a worker that starts while the server is away ends with, and how long before that a fault may lie.
_UNREACHABLE = 3
_EXIT_MS = 15_000


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a job of a killed process waited for its next run; `fault`: another one that made it too long."""

    id: str
    ms: float
    fault: Happened | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """The whole account. `places` counts ids by where they ended; `lost_by_server` those that the server forgot."""

    enqueued: int
    unsure: int
    places: Counter[str]
    runs: Counter[int]
    again: Counter[str]
    duplicates: Counter[str]
    waits: Sequence[Wait]
    fires: Sequence[grids.Periods]
    flows: int
    lost_by_server: int
    exits: Counter[str]
    findings: Sequence[Finding]

    @property
    def balanced(self) -> bool:
        """Whether every id is somewhere, and nothing is left unexplained."""
        return not self.findings and sum(self.places.values()) == self.enqueued

    @property
    def longest_wait(self) -> Wait | None:
        """The longest wait after a crash that no other fault explains; None where there was none."""
        return max((wait for wait in self.waits if wait.fault is None), key=lambda wait: wait.ms, default=None)


def make_account(seen: Evidence) -> Account:
    """The account of `seen`."""
    orders = {**seen.orders, **{fire.id: _occurrence(fire.id) for fire in seen.fires if _known(seen, fire.id)}}
    places: Counter[str] = Counter()
    findings: list[Finding] = []
    enqueued = unsure = forgotten = 0
    for id, order in orders.items():
        acked = _acknowledged(seen, id)
        if not acked and not _known(seen, id):
            unsure += 1
            continue
        enqueued += 1
        place, finding = _ended(seen, order)
        if place == "lost" and _forgotten(seen, id):
            place, finding = "lost by the server", None
            forgotten += 1
        places[place] += 1
        findings += [finding] if finding is not None else []
    ordinary, duplicates, unexplained = _repetitions(seen)
    waits, late = _waits(seen)
    fires, odd_fires = grids.periods(seen)
    flows, odd_flows = family.check(seen)
    exits, odd_exits = _exits(seen)
    findings += [*_strangers(seen, orders), *unexplained, *late, *odd_fires, *odd_flows, *odd_exits]
    findings += [*lanes.check(seen), *counted.check(seen), *_counts(seen, orders)]
    findings += [Finding("left over", "", what) for what in seen.leftovers]
    runs = Counter(len(of_id) for of_id in seen.runs.values())
    return Account(
        enqueued, unsure, places, runs, ordinary, duplicates, waits, fires, flows, forgotten, exits, findings
    )


def _ended(seen: Evidence, order: Order) -> tuple[str, Finding | None]:
    """Where an id ended, and what is wrong with that."""
    id = order.id
    place, error = seen.places.get(id, ("", ""))
    runs = seen.runs.get(id, ())
    done = any(run.outcome == "done" for run in runs)
    if place and place != "dead":
        return place, Finding("not drained", id, f"it is still in {place} though every fault has ended")
    doomed = order.does in DEADLY or family.doomed(seen, order)
    if place == "dead":
        if doomed or (error.startswith(CRASHED) and _hit(seen, id) >= _CRASHES):
            return "dead", None
        return "dead", Finding("dead without reason", id, f"expected done, its last error is {error!r}")
    if doomed and (done or not runs or order.does in DEADLY):
        return "lost", Finding("lost", id, "expected dead, but it is in no set and has no row")
    if done:
        return "done", None
    return "lost", Finding("lost", id, "it was enqueued, no run of it is done, and it is in no set")


def _acknowledged(seen: Evidence, id: str) -> bool:
    return any(one.answer != "unsure" for one in seen.tries.get(id, ()))


def _known(seen: Evidence, id: str) -> bool:
    return id in seen.runs or id in seen.places


def _occurrence(id: str) -> Order:
    return Order(id, "ticks")


def _forgotten(seen: Evidence, id: str) -> bool:
    """Whether the server lost it with everything else: it was sent before that."""
    if seen.forgotten_ms is None:
        return False
    sent = [one.sent_ms for one in seen.tries.get(id, ())] + [fire.at_ms for fire in seen.fires if fire.id == id]
    return bool(sent) and min(sent) <= seen.forgotten_ms


def _hit(seen: Evidence, id: str) -> int:
    """Faults between the first run of an id and the end of its last one's lease."""
    runs = seen.runs.get(id, ())
    if not runs:
        return 0
    from_ms, until_ms = runs[0].start_ms, runs[-1].start_ms + 2 * seen.terms.lease_ms
    return sum(1 for fault in seen.faults if fault.begin_ms <= until_ms and fault.end_ms >= from_ms)


def _strangers(seen: Evidence, orders: dict[str, Order]) -> Iterator[Finding]:
    for id in (*seen.runs, *seen.places):
        if id not in orders:
            yield Finding("stranger", id, "nobody enqueued it")


def _repetitions(seen: Evidence) -> tuple[Counter[str], Counter[str], list[Finding]]:
    ordinary: Counter[str] = Counter()
    duplicates: Counter[str] = Counter()
    findings: list[Finding] = []
    for id, runs in seen.runs.items():
        for first, again in pairwise(runs):
            why = _why(seen, first, again)
            if why.reason and not why.duplicate:
                ordinary[why.reason] += 1
                continue
            duplicates[why.reason or "unexplained"] += 1
            if not why.reason:
                findings.append(Finding("unexplained duplicate", id, _said(first, again)))
        if len({run.held for run in runs}) < len(runs):
            findings.append(Finding("one claim, two runs", id, "two runs have the same claim"))
    return ordinary, duplicates, findings


def _why(seen: Evidence, first: Run, again: Run) -> Why:
    why = why_again(first, again, tries=seen.tries.get(first.id, ()), faults=seen.faults, terms=seen.terms)
    if why.reason or seen.forgotten_ms is None or not first.start_ms <= seen.forgotten_ms <= again.start_ms:
        return why
    # The server forgot the id, and its producer, who had no answer, enqueued it anew.
    return Why("server_forget")


def _said(first: Run, again: Run) -> str:
    ended = "never ended" if first.end_ms is None else f"was {first.outcome} {first.end_ms - first.start_ms:.0f} ms on"
    return (
        f"worker {first.worker} (attempt {first.attempts}) {ended}; worker {again.worker} (attempt {again.attempts}) "
        f"began {again.start_ms - first.start_ms:.0f} ms after it, and no fault explains that"
    )


def _waits(seen: Evidence) -> tuple[list[Wait], list[Finding]]:
    """From the kill of a process to the next run of each job that it had in hand."""
    terms = seen.terms
    limit_ms = terms.lease_ms + terms.beat_ms + terms.margin_ms
    kills = [fault for fault in seen.faults if fault.kind in KILLS]
    waits: list[Wait] = []
    findings: list[Finding] = []
    for id, runs in seen.runs.items():
        for first, again in pairwise(runs):
            kill = next((one for one in kills if first.end_ms is None and _killed(one, first, again)), None)
            if kill is None:
                continue
            others = seen.serves.get(first.queue, ())
            ms, held_up = again.start_ms - kill.begin_ms, None
            # What came in time needs no excuse.
            if ms > limit_ms:
                able = [one for one in others if one != kill.target]
                held_up = slow(seen.faults, kill.begin_ms + 1, again.start_ms, able)
            waits.append(Wait(id, ms, held_up))
            if ms > limit_ms and held_up is None:
                findings.append(Finding("waited too long", id, f"{ms:.0f} ms after a kill, at most {limit_ms}"))
    return waits, findings


def _killed(kill: Happened, first: Run, again: Run) -> bool:
    return kill.touches(first.worker, first.pid) and first.start_ms <= kill.begin_ms <= again.start_ms


def _exits(seen: Evidence) -> tuple[Counter[str], list[Finding]]:
    """How workers ended. 0 where they were asked to, a signal where a fault was one, 3 where the server was away."""
    counts: Counter[str] = Counter()
    findings: list[Finding] = []
    for one in seen.exits:
        counts[f"code {one.code}" if one.code >= 0 else f"signal {-one.code}"] += 1
        if one.fated or (one.asked and one.code == 0):
            continue
        if one.code == _UNREACHABLE and _near(seen, one.worker, one.at_ms):
            continue
        asked = "asked to stop" if one.asked else "not asked to stop"
        findings.append(Finding("bad exit", f"worker {one.worker}", f"pid {one.pid} ended with {one.code}, {asked}"))
    return counts, findings


def _near(seen: Evidence, worker: str, at_ms: float) -> bool:
    return any(
        fault.target in {SERVER, worker} and fault.begin_ms <= at_ms and fault.end_ms >= at_ms - _EXIT_MS
        for fault in seen.faults
    )


def _counts(seen: Evidence, orders: dict[str, Order]) -> Iterator[Finding]:
    """The server's own count of completions against ours: each job that is done was completed once."""
    if seen.forgotten_ms is not None:
        return
    done: Counter[str] = Counter()
    more: Counter[str] = Counter()
    for id, order in orders.items():
        if id not in seen.places and any(run.outcome == "done" for run in seen.runs.get(id, ())):
            done[order.queue] += 1
            tries = seen.tries.get(id, ())
            more[order.queue] += len(tries) - 1 if admitted_again(tries, float("inf")) else 0
    for queue, count in seen.completed.items():
        if not done[queue] <= count <= done[queue] + more[queue]:
            expected = f"{done[queue]} to {done[queue] + more[queue]}" if more[queue] else str(done[queue])
            yield Finding("counted wrong", queue, f"the server counts {count} completions, expected {expected}")
