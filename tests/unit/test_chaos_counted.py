"""The comparison of metrics with a hand count can fail: each number that is wrong is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from bench.chaos.counted import Told, told
from bench.chaos.evidence import Exit, Scrape
from tests.unit.test_chaos_account import ID, OTHER, fault, of, run, seen

RUNS = (run(), run(OTHER, 1_500, outcome="failed"), run(OTHER, 2_500, attempts=2))
RIGHT = {("plain", "completed"): 2, ("plain", "retried"): 1}
COMPLETED = {"plain": 2}


def scrape(outcomes: Mapping[tuple[str, str], int], started: int = 3, *, last: bool = True, pid: int = 10) -> Scrape:
    """What worker 0 says, at the end."""
    return Scrape("0", pid, 5_000, {"plain": started}, outcomes, last=last)


def found(*scrapes: Scrape, completed: Mapping[str, int] = COMPLETED) -> bool:
    """Whether the account finds metrics that are wrong, and nothing else."""
    whats = of(*RUNS, scrapes=scrapes, completed=completed)
    assert whats <= {"metrics wrong"}
    return bool(whats)


def test_right_numbers_are_right() -> None:
    """Of one that ran to the end, and of one that was asked for the last time before its last runs."""
    assert not found(scrape(RIGHT))
    assert not found(scrape({("plain", "completed"): 1}, 1, last=False))
    assert not found()
    assert told(seen(*RUNS, scrapes=[scrape(RIGHT)], completed=COMPLETED)) == Told(1, 1, 2, 2)


@pytest.mark.parametrize(
    ("outcomes", "started"),
    [
        (RIGHT, 2),
        (RIGHT, 4),
        ({**RIGHT, ("plain", "completed"): 1}, 3),
        ({**RIGHT, ("plain", "completed"): 3}, 3),
        ({**RIGHT, ("plain", "retried"): 0}, 3),
        ({**RIGHT, ("plain", "dead"): 1}, 3),
        ({**RIGHT, ("plain", "delayed"): 1}, 3),
        ({**RIGHT, ("other", "completed"): 1}, 3),
    ],
)
def test_one_too_many_or_too_few_is_found(outcomes: Mapping[tuple[str, str], int], started: int) -> None:
    """Of a process that was asked at the end every number is exact."""
    assert found(scrape(outcomes, started))


def test_what_came_between_a_run_and_its_verdict_is_no_fault() -> None:
    """A lease that was lost makes one completion less; it does not make one more."""
    lost = {**RIGHT, ("plain", "completed"): 1, ("plain", "lost"): 1}
    fewer = {("plain", "completed"): 1}
    assert of(*RUNS, scrapes=[scrape(lost)], completed={"plain": 1}) == {"counted wrong"}
    assert not found(scrape(lost), completed={})
    assert found(scrape(fewer), completed={})


@pytest.mark.parametrize("name", ["pending", "ready", "dead", "completed", "died", "repeats"])
def test_what_stands_on_the_server_is_what_is_told(name: str) -> None:
    """At the end, by everybody; what was told before may have been so then."""
    stands = {("plain", "dead"): 3, ("plain", "completed"): 2, ("plain", name): 3}
    said = replace(scrape(RIGHT), stands=stands)
    assert of(*RUNS, scrapes=[said], completed=COMPLETED, stands=stands) == set()
    wrong = stands | {("plain", name): 4}
    assert of(*RUNS, scrapes=[said], completed=COMPLETED, stands=wrong) == {"metrics wrong"}
    assert of(*RUNS, scrapes=[replace(said, last=False)], completed=COMPLETED, stands=wrong) == set()


def test_nobody_has_counted_more_than_it_ran() -> None:
    """Not even a process that was killed; and what it has not told is all that the server may have more."""
    early = scrape({("plain", "completed"): 1}, 1, last=False)
    assert not found(early)
    assert found(replace(early, started={"plain": 4}))
    assert found(replace(early, outcomes={("plain", "completed"): 3}))
    assert found(scrape(RIGHT), scrape({("plain", "completed"): 1}, 0, pid=99))


def test_a_job_that_was_done_twice_may_be_told_twice() -> None:
    """Its completion was sent again and found no row: nobody can tell whose it was."""
    twice = (run(), run(start_ms=8_000, attempts=2))
    lost = [fault("kill", 1_050)]
    said = scrape({("plain", "completed"): 2}, 2)
    assert of(*twice, scrapes=[said], completed={"plain": 1}, faults=lost) == set()
    assert of(*twice, scrapes=[said], completed={"plain": 0}, faults=lost) >= {"metrics wrong"}


def test_a_supervisor_answers_for_its_processes() -> None:
    """Their runs are its count; one of them that was killed takes a part with it."""
    one = scrape(RIGHT, pid=7)
    fewer = replace(one, outcomes={("plain", "completed"): 1}, started={"plain": 1})
    answers = {10: 7}

    def whats(said: Scrape, **more: object) -> set[str]:
        return of(*RUNS, scrapes=[said], completed=COMPLETED, answers_for=answers, **more)

    assert whats(one) == set()
    assert whats(fewer) == {"metrics wrong"}
    assert whats(fewer, faults=[fault("kill", 4_000, pids=frozenset({10}))]) == set()
    assert whats(fewer, exits=[Exit("0", 10, -9, 4_000, fated=True)]) == set()
    assert ID != OTHER
