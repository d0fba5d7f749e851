"""The seeded random driver: every promise is kept, each fault put into a script turns it red, and what it finds is
shrunk to a sequence that can be read.

Source: protocol section 4; style anchor 15. A longer run: `python -m tests.support.driver --steps 1000000 --seed 7`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.driver import Failure, driver, main, read_steps
from tests.support.driver_shrink import shrink
from tests.support.driver_wire import LUA, Mutation

STEPS = 30_000
SEED = 1

NO_SLOT_FREED = Mutation("include/endings", "leave_lanes(p, known)\n  free_slots(p, known)", "leave_lanes(p, known)")

# What is broken, and what says so: the kinds of violation that it may show first.
FAULTS = {
    "settle frees no slot": NO_SLOT_FREED,
    "settle leaves held": Mutation("include/verdicts", "redis.call('HDEL', key, 'held', 'crashes')", ""),
    "settle counts a verdict twice": Mutation("include/verdicts", "settled_answer(row[SETTLED], token)", "nil"),
    "settle leaves the other sets": Mutation("include/completions", "if sizes[i] > 0", "if i == 1 and sizes[i] > 0"),
    "a crash is counted without held": Mutation(
        "include/candidates", "return row[HELD] and before + 1 or before", "return before + 1"
    ),
    "a suspect is handed out freely": Mutation("include/candidates", "if claim.suspects < 1 then", "if false then"),
    "a claim takes what somebody holds": Mutation(
        "include/candidates", "if lease and tonumber(lease) > claim.now then", "if false then"
    ),
    "a claim leaves the schedule": Mutation("claim_many", "if scheduled > 0 then", "if false then"),
    "a claim leaves no receipt": Mutation(
        "claim_many", "redis.call('SET', KEYS[5],", "redis.call('SET', KEYS[5] .. 'x',"
    ),
    "a slot is freed twice": Mutation("include/lane", "g, -count)", "g, -2 * count)"),
    "the random is not compared": Mutation(
        "include/held", "return row_held and held ~= token and row_held ~= held", "return false"
    ),
    "promote releases what somebody holds": Mutation("promote", "not (lease and lease > now) and", ""),
    "reap loses the row": Mutation(
        "include/recovery",
        "redis.call('HSET', p .. 'job:' .. member.id, 'state', 'pending')",
        "redis.call('DEL', p .. 'job:' .. member.id)",
    ),
    "release, disown and keep have no fence": Mutation(
        "include/holding", "elseif is_stale(one.row[1], one.row[2], held) then", "elseif false then"
    ),
    "disown leaves held": Mutation("disown", "'held')", "'nothing')"),
    "recount repairs no counter": Mutation("recount", "if stored[group] ~= right then", "if false then"),
}


# What the driver has found in a script, shrunk, and the fault that it found.
FOUND = {
    "a suspect in flat pending and in its lane was dropped from both": (
        Mutation("include/candidates", "if not stays then", "if true then"),
        """
        ["admit", [5, 6, 7, 8], 0]
        ["admit", [11], 0]
        ["admit", [13, 14], 1]
        ["fclaim", 1]
        ["enqueue", "plain", 26]
        ["fgclaim", 1]
        ["claim", 2, 50, 0]
        ["admit", [59, 61], 0]
        ["fgclaim", 0]
        ["expire", [5, 7, 61]]
        ["limit", "GRP00000000002", 2]
        ["reap"]
        ["fend", "d", 61, 0, 0]
        ["fgclaim", 0]
        ["due", [61]]
        ["fend", "c", 61, 0, 0]
        ["fclaim", 0]
        ["fpromote"]
        """,
    ),
    "complete of a job that was gone left the skeleton that promote had made": (
        Mutation("complete", "redis.call('UNLINK', unpack(erased))", "if attempts then redis.call('DEL', KEYS[2]) end"),
        """
        ["enqueue", "foreign", 17]
        ["fgclaim", 1]
        ["fend", "r", 17, 0, 1]
        ["due", [17]]
        ["fend", "c", 17, 0, 0]
        ["promote"]
        ["fend", "c", 17, 0, 1]
        """,
    ),
}


def first_failure(mutation: Mutation, steps: int = 30_000) -> Failure | None:
    """What the driver finds with a fault in the scripts."""
    with driver([mutation]) as driven:
        try:
            driven.run(steps, SEED)
        except Failure as failure:
            return failure
        return None


@pytest.mark.timeout(300)
def test_every_promise_is_kept() -> None:
    """In 30,000 steps no job is held by two workers of ours, in two sets or lost; counters and reasons are right.

    Report 23 (tobymao/saq#124). Report 38 (rq/rq#2061).
    """
    with driver() as driven:
        try:
            driven.run(STEPS, SEED)
        except Failure as failure:
            pytest.fail(str(driven.shrunk(failure)), pytrace=False)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_script_is_found(fault: str) -> None:
    """A run is red with each of these faults in a script."""
    failure = first_failure(FAULTS[fault])
    assert failure is not None, f"{fault}: nothing was found"


@pytest.mark.parametrize("found", FOUND)
def test_what_was_found_stays_repaired(found: str) -> None:
    """Each sequence that the driver has found keeps every promise now, and breaks one with the fault put back."""
    fault, lines = FOUND[found]
    steps = read_steps(lines)
    with driver() as repaired:
        assert repaired.replay(steps) is None
    with driver([fault]) as broken:
        assert broken.replay(steps) is not None


def test_a_failure_is_shrunk_to_what_it_takes() -> None:
    """A settle that frees no slot is told in fewer than 15 steps, which fail again, and not with the right script."""
    with driver([NO_SLOT_FREED]) as driven:
        with pytest.raises(Failure) as found:
            driven.run(30_000, SEED)
        shrunk = driven.shrunk(found.value)
        again = driven.replay(shrunk.steps)
    assert len(shrunk.steps) < 15
    assert again is not None
    assert again.kind == shrunk.violation.kind == found.value.violation.kind
    with driver() as sound:
        assert sound.replay(shrunk.steps) is None


def test_a_seed_says_it_all() -> None:
    """The same seed fails at the same step for the same reason."""
    failures = [first_failure(NO_SLOT_FREED) for _ in range(2)]
    assert failures[0] is not None
    assert failures[1] is not None
    assert str(failures[0]) == str(failures[1])


def test_the_command_runs_and_replays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`--steps --seed` prints the rate or a failure as steps; `--replay` runs those again; the exit code says which."""
    broken = tmp_path / "lua"
    shutil.copytree(LUA, broken)
    path = broken / f"{NO_SLOT_FREED.file}.lua"
    path.write_text(NO_SLOT_FREED.apply(path.read_text()))
    steps = tmp_path / "failure.jsonl"

    assert main(["--steps", "500", "--seed", "3"]) == 0
    assert "every promise was kept" in capsys.readouterr().out
    assert main(["--steps", "30000", "--seed", str(SEED), "--scripts", str(broken)]) == 1
    steps.write_text(printed := capsys.readouterr().out)
    assert main(["--replay", str(steps), "--scripts", str(broken)]) == 1
    assert main(["--replay", str(steps)]) == 0
    assert 0 < len(read_steps(printed)) < 15


@given(st.lists(st.integers(0, 30), max_size=60, unique=True), st.data())
def test_shrinking_finds_what_matters(numbers: list[int], data: st.DataObject) -> None:
    """Of any list that fails for some of its steps, just those are left, and of a step just the jobs that matter."""
    culprits = set(data.draw(st.lists(st.sampled_from(numbers), max_size=4))) if numbers else set()
    steps = [("step", n, (1, 2, 3)) for n in numbers]

    def first_failing(lists: Sequence[Any]) -> int | None:
        fails = (culprits <= {n for _, n, jobs in tried if 2 in jobs} for tried in lists)
        return next((i for i, failed in enumerate(fails) if failed), None)

    assert {(n, jobs) for _, n, jobs in shrink(steps, first_failing)} == {(n, (2,)) for n in culprits}


def test_a_mutation_that_does_not_fit_is_told() -> None:
    """A fault whose text is not in the script exactly once is an error, so that none of them rots unseen."""
    for source in ("", "x x"):
        with pytest.raises(ValueError, match="is there"):
            Mutation("settle", "x", "y").apply(source)
