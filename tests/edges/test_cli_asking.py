"""The operator's commands: what they ask before something is lost, and what they refuse."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from tests.support.cli import DEAD, ID, Cli, Keyspace, answers, cli, keyspace
from tests.support.control import REPEATS
from tests.support.own import flat, lane, merged
from tests.support.plain import GROUP, QUEUE, State, job, row

__all__ = ["answers", "cli", "keyspace"]

EXPIRED: State = {f"job:{job(11)}": row("active", 1), "active": {job(11): 1}}
FULL: State = merged(DEAD, flat(7), lane(8, 9), {"meta": {"paused": "1"}}, {"schedule": {job(10): 5}}, EXPIRED, REPEATS)
DESTRUCTIVE: dict[str, tuple[str, ...]] = {
    "drain": ("queue", "drain", QUEUE),
    "obliterate": ("queue", "obliterate", QUEUE, "--force"),
    "stalled": ("queue", "stalled", QUEUE),
    "repair": ("queue", "audit", QUEUE, "--repair"),
    "delete": ("dead", "delete", QUEUE, "--all"),
    "trim": ("dead", "trim", QUEUE, "--max-count", "0"),
    "remove": ("job", "remove", QUEUE, ID),
    "lane drain": ("lane", "drain", QUEUE, GROUP),
}


@pytest.mark.parametrize("case", DESTRUCTIVE)
def test_without_a_terminal_nothing_is_destroyed(
    cli: Cli, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Nobody to ask: 2, a line that names --yes, nothing changed."""
    keyspace.put(FULL)
    before = keyspace.dump()
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))

    code, out, err = cli(*DESTRUCTIVE[case])

    assert (code, out, err.count("\n"), "--yes" in err) == (2, "", 1, True)
    assert keyspace.dump() == before


@pytest.mark.parametrize("case", DESTRUCTIVE)
def test_a_no_changes_nothing(cli: Cli, keyspace: Keyspace, answers: Callable[[str], None], case: str) -> None:
    """The question says what and of which queue; a no is 1, and so is a bare return."""
    keyspace.put(FULL)
    before = keyspace.dump()

    for answer in ("n\n", "\n"):
        answers(answer)
        code, _, err = cli(*DESTRUCTIVE[case])
        assert (code, f"{QUEUE}" in err, "nothing was changed" in err) == (1, True, True)

    assert keyspace.dump() == before


@pytest.mark.parametrize("case", DESTRUCTIVE)
def test_a_yes_goes_on(cli: Cli, keyspace: Keyspace, answers: Callable[[str], None], case: str) -> None:
    """And something is gone."""
    keyspace.put(FULL)
    before = keyspace.dump()
    answers("y\n")

    code, _, err = cli(*DESTRUCTIVE[case])

    assert (code, "[y/N]" in err) == (0, True)
    assert keyspace.dump() != before


def test_the_question_says_how_many(cli: Cli, keyspace: Keyspace, answers: Callable[[str], None]) -> None:
    """Of what is about to be lost."""
    keyspace.put(FULL)
    told = []
    for arguments in (
        ("queue", "drain", QUEUE, "--schedule"),
        ("dead", "delete", QUEUE, "--error", "Timeout 2"),
        ("lane", "drain", QUEUE, GROUP),
        ("queue", "stalled", QUEUE),
        ("queue", "stalled", QUEUE, "--max-stalled", "3"),
    ):
        answers("n\n")
        told.append(cli(*arguments)[2])

    assert "3 waiting jobs and 1 scheduled ones of q" in told[0]
    assert "Delete 1 dead jobs of q?" in told[1]
    assert f"Delete 2 waiting jobs of the lane {GROUP} of q?" in told[2]
    assert "Count a lost lease for 1 jobs of q; each is dead?" in told[3]
    assert "Count a lost lease for 1 jobs of q; one is dead that has lost 3?" in told[4]


BAD = [
    *(("queue", verb, "bad queue", "--yes") for verb in ("drain", "obliterate")),
    *(("queue", verb, "emq") for verb in ("stats", "pause", "resume", "audit")),
    ("queue", "limit", QUEUE, "0"),
    ("queue", "limit", QUEUE, "many"),
    ("queue", "limit", QUEUE),
    ("queue", "limit", "emq", "1"),
    ("queue", "rate", QUEUE, "0", "1000"),
    ("queue", "rate", QUEUE, "5"),
    ("queue", "rate", QUEUE, "5", "0"),
    ("queue", "rate", QUEUE, "5", "soon"),
    ("queue", "rate", QUEUE, "none", "1000"),
    ("queue", "stats"),
    ("dead", "list", "emq"),
    ("dead", "list", QUEUE, "--limit", "0"),
    ("dead", "list", QUEUE, "--offset", "-1"),
    ("dead", "show", QUEUE, "JOB1"),
    ("dead", "requeue", QUEUE),
    ("dead", "requeue", QUEUE, ID, "--all"),
    ("dead", "requeue", QUEUE, "JOB1"),
    ("dead", "requeue", QUEUE, "--older-than-ms", "-1"),
    ("dead", "requeue", QUEUE, "--limit", "0"),
    ("dead", "delete", QUEUE, "--yes"),
    ("dead", "delete", QUEUE, "JOB1", "--yes"),
    ("dead", "trim", QUEUE, "--yes"),
    ("dead", "trim", QUEUE, "--max-age-ms", "-1", "--yes"),
    ("dead", "trim", QUEUE, "--max-count", "few", "--yes"),
    ("job", "show", QUEUE, "JOB1"),
    ("job", "list", QUEUE, "--state", "lost"),
    ("job", "list", QUEUE, "--state", "dead", "--group", GROUP),
    ("job", "remove", QUEUE, "JOB1", "--yes"),
    ("job", "remove", "emq", ID, "--yes"),
    ("job", "reprocess", QUEUE, "JOB1"),
    ("job", "update", QUEUE, "JOB1", "x"),
    ("job", "update", QUEUE, ID),
    ("job", "progress", QUEUE, "JOB1", "x"),
    ("job", "logs", QUEUE, "JOB1"),
    ("job", "logs", QUEUE, ID, "--limit", "0"),
    ("job", "log", QUEUE, "JOB1", "x"),
    ("job", "log", QUEUE, ID, "x", "--keep", "0"),
    ("lane", "list", "emq"),
    ("lane", "pause", QUEUE, ""),
    ("lane", "pause", "emq", GROUP),
    ("lane", "limit", QUEUE, GROUP, "-1"),
    ("lane", "limit", QUEUE, GROUP, "x"),
    ("lane", "weight", QUEUE, GROUP, "0"),
    ("lane", "weight", QUEUE, GROUP, "heavy"),
    ("lane", "reassign", QUEUE, "JOB1", GROUP),
    ("lane", "drain", "emq", GROUP, "--yes"),
    ("lane", "reap", QUEUE, GROUP, "--limit", "0"),
    ("lane", "weigh", QUEUE, GROUP),
]


def test_bad_input_is_2_in_one_line_and_changes_nothing(cli: Cli, keyspace: Keyspace) -> None:
    """Every verb: a wrong queue, id, number, option or choice."""
    keyspace.put(FULL)
    before = keyspace.dump()

    for arguments in BAD:
        code, out, err = cli(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), (arguments, code, out, err)
        assert keyspace.dump() == before, arguments


def test_a_server_that_is_not_there_is_3(cli: Cli) -> None:
    """One line for each of the new commands; a wrong name is told even so."""
    for arguments in (
        ("queue", "list"),
        ("queue", "pause", QUEUE),
        ("queue", "drain", QUEUE, "--yes"),
        ("dead", "list", QUEUE),
        ("dead", "requeue", QUEUE, "--all"),
        ("job", "logs", QUEUE, ID),
        ("lane", "list", QUEUE),
    ):
        code, out, err = cli(*arguments, "--url", "redis://127.0.0.1:1/0")
        assert (code, out, err.count("\n")) == (3, "", 1), arguments
    assert cli("queue", "pause", "emq", "--url", "redis://127.0.0.1:1/0")[0] == 2
