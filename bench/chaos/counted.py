"""The workers' own metrics against the hand count: what the notes of their processes say, and what the server counted.

Source: issue "Made for the people who run it" (metrics equal a hand count after the chaos run).

A process that lived to the end was asked after its last verdict: its numbers are exactly those of its notes, and what
it says of the queues is what the server's keys hold. One that
was killed, or stopped, was asked up to a second before: it cannot have counted more than its notes have, and what it
has not told makes the difference to the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.chaos.evidence import Evidence, Scrape
from bench.chaos.finding import Finding

# How a run ends in the notes, and what becomes of it where nothing comes between.
_ENDS = {"done": ("completed",), "failed": ("retried", "dead"), "delayed": ("delayed",)}
# What may have come between a run and its verdict.
_BETWEEN = ("lost", "stale", "gone", "refused", "released", "disowned", "left")

Runs = Mapping[int, Mapping[tuple[str, str], int]]


def check(seen: Evidence) -> Iterator[Finding]:
    """What the metrics have wrong."""
    runs = _by_process(seen)
    for scrape in seen.scrapes:
        yield from _process(scrape, runs.get(scrape.pid, {}), whole=_is_whole(seen, scrape))
        yield from _stands(seen, scrape)
    if seen.scrapes and seen.forgotten_ms is None:
        yield from _all(seen, runs)


@dataclass(frozen=True, slots=True)
class Told:
    """How many processes were asked for their metrics, how many of them to the end, and the completions that they told
    together, beside those that the server counted. `several`: supervisors that answer for more than themselves;
    `stands`: numbers of what stands on the server that were told at the end.
    """

    processes: int
    whole: int
    completed: int
    counted: int
    several: int = 0
    stands: int = 0


def told(seen: Evidence) -> Told:
    """What there was to compare."""
    whole = sum(1 for scrape in seen.scrapes if _is_whole(seen, scrape))
    outcomes = Counter[str]()
    for scrape in seen.scrapes:
        for (_, outcome), count in scrape.outcomes.items():
            outcomes[outcome] += count
    several = sum(1 for scrape in seen.scrapes if scrape.pid in seen.answers_for.values())
    stands = sum(len(scrape.stands) for scrape in seen.scrapes if scrape.last)
    return Told(len(seen.scrapes), whole, outcomes["completed"], sum(seen.completed.values()), several, stands)


def _by_process(seen: Evidence) -> Runs:
    """Runs by the process that answers for them, queue and outcome; `start` counts all of them."""
    found: dict[int, Counter[tuple[str, str]]] = {}
    for of_id in seen.runs.values():
        for run in of_id:
            counts = found.setdefault(seen.answers_for.get(run.pid, run.pid), Counter())
            counts[run.queue, "start"] += 1
            counts[run.queue, run.outcome] += 1
    return found


def _is_whole(seen: Evidence, scrape: Scrape) -> bool:
    """Whether nothing that it counts was lost: it was asked at the end, and no process of its own was killed."""
    own = {pid for pid, answers in seen.answers_for.items() if answers == scrape.pid}
    killed = {pid for fault in seen.faults if fault.kind == "kill" for pid in fault.pids or ()}
    return scrape.last and not own & (killed | {one.pid for one in seen.exits})


def _process(scrape: Scrape, runs: Mapping[tuple[str, str], int], *, whole: bool) -> Iterator[Finding]:
    queues = {queue for queue, _ in (*runs, *scrape.outcomes)} | set(scrape.started)
    for queue in sorted(queues):
        starts, told = runs.get((queue, "start"), 0), scrape.started.get(queue, 0)
        if told > starts or (whole and told < starts):
            yield _finding(scrape, queue, f"{told} runs started, its notes have {starts}")
        between = sum(scrape.outcomes.get((queue, outcome), 0) for outcome in _BETWEEN)
        for end, outcomes in _ENDS.items():
            noted = runs.get((queue, end), 0)
            told = sum(scrape.outcomes.get((queue, outcome), 0) for outcome in outcomes)
            if told > noted or (whole and told + between < noted):
                yield _finding(scrape, queue, f"{told} {' or '.join(outcomes)}, its notes have {noted} {end}")


def _stands(seen: Evidence, scrape: Scrape) -> Iterator[Finding]:
    """What it says of the server when all has drained, against the server's keys: whoever tells it, it is the same."""
    if not scrape.last or not seen.stands:
        return
    for (queue, name), told in sorted(scrape.stands.items()):
        counted = seen.stands.get((queue, name))
        if told != counted:
            yield _finding(scrape, queue, f"{told} {name}, on the server are {counted}")


def _all(seen: Evidence, runs: Runs) -> Iterator[Finding]:
    """The completions of all processes together against the server's."""
    told = {scrape.pid: scrape for scrape in seen.scrapes}
    whole = {scrape.pid for scrape in seen.scrapes if _is_whole(seen, scrape)}
    for queue, counted in seen.completed.items():
        summed = sum(scrape.outcomes.get((queue, "completed"), 0) for scrape in seen.scrapes)
        untold = 0
        for pid, of_process in runs.items():
            if pid not in whole:
                known = told[pid].outcomes.get((queue, "completed"), 0) if pid in told else 0
                untold += max(0, of_process.get((queue, "done"), 0) - known)
        # A verdict that is sent again and finds no row any more was taken before, or the job's other run has ended it.
        twice = _done_twice(seen, queue)
        if not summed - twice <= counted <= summed + untold:
            expected = f"{summed - twice} to {summed + untold}" if twice or untold else str(summed)
            yield Finding("metrics wrong", queue, f"the server counts {counted} completions, the workers {expected}")


def _done_twice(seen: Evidence, queue: str) -> int:
    """How many runs were done of jobs that another run had done."""
    done = ([run for run in of_id if run.outcome == "done" and run.queue == queue] for of_id in seen.runs.values())
    return sum(len(runs) - 1 for runs in done if runs)


def _finding(scrape: Scrape, queue: str, sentence: str) -> Finding:
    return Finding("metrics wrong", f"worker {scrape.worker}", f"pid {scrape.pid}, {queue}: {sentence}")
