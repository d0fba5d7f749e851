"""What the commands share: tables on a terminal, questions, numbers, moments."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest
import typer

from echomq_worker.cli.common import (
    can_ask,
    confirm,
    moment,
    number_or_none,
    prepared,
    print_lines,
    print_table,
    yes_no,
)
from echomq_worker.errors import ConfigError, InvalidQueueName


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """It is."""
        return True


def terminal(monkeypatch: pytest.MonkeyPatch, name: str, text: str = "") -> Terminal:
    """Puts a terminal of 60 columns in a stream's place; in the test's body, since pytest captures anew before it."""
    made = Terminal(text)
    monkeypatch.setattr(sys, name, made)
    monkeypatch.setenv("COLUMNS", "60")
    return made


def test_a_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too long is folded, nothing is lost; what looks like markup is text; None is a dash."""
    screen = terminal(monkeypatch, "stdout")

    print_table(("id", "last error"), [("JOB0KHTOWnGLuC", "[bold]x[/bold] " + "word " * 30), ("JOB0KHTOWnGLuD", None)])

    text = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    assert all(len(line) <= 60 for line in text.splitlines())
    assert "[bold]x[/bold]" in text
    assert text.count("word") == 30
    assert "JOB0KHTOWnGLuD" in text


def test_a_table_shows_no_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a payload reaches the terminal raw."""
    screen = terminal(monkeypatch, "stdout")

    print_table(("id",), [("\x1b[2Jgone",)])

    assert "gone" in screen.getvalue()
    assert "\x1b[2J" not in screen.getvalue()


def test_lines_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One for each, in ASCII; nothing for none."""
    print_lines([{"a": "ü"}, [1]])
    print_lines([])

    out = capsys.readouterr().out
    assert [json.loads(line) for line in out.splitlines()] == [{"a": "ü"}, [1]]
    assert out.isascii()


def test_yes_asks_nobody() -> None:
    """Whatever stdin is."""
    confirm("Delete all?", yes=True)
    can_ask(yes=True)


def test_nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe is nobody, even if it says yes."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))

    with pytest.raises(ConfigError, match=r"Delete all\? Expected --yes"):
        confirm("Delete all?", yes=False)
    with pytest.raises(ConfigError, match="--yes"):
        can_ask(yes=False)


@pytest.mark.parametrize(("answer", "goes_on"), [("y\n", True), ("yes\n", True), ("n\n", False), ("\n", False)])
def test_the_answer_counts(monkeypatch: pytest.MonkeyPatch, answer: str, goes_on: bool) -> None:
    """Only a yes goes on; anything else is exit code 1."""
    terminal(monkeypatch, "stdin", answer)

    if goes_on:
        confirm("Delete all?", yes=False)
        return
    with pytest.raises(typer.Exit) as caught:
        confirm("Delete all?", yes=False)

    assert caught.value.exit_code == 1


@pytest.mark.parametrize(("text", "number"), [("none", None), ("None", None), ("0", 0), ("17", 17)])
def test_a_number_or_none(text: str, number: int | None) -> None:
    """The word, or an integer of at least so much."""
    assert number_or_none("N", text, at_least=0) == number


@pytest.mark.parametrize("text", ["", "-1", "1.5", "x", "٣", "9" * 500, " 1"])
def test_what_is_neither_is_refused(text: str) -> None:
    """In one short line."""
    with pytest.raises(ConfigError) as caught:
        number_or_none("N", text, at_least=0)

    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, None),
        (0, None),
        (1_000, "1970-01-01T00:00:01.000+00:00"),
        (9_007_199_254_740_991, "9007199254740991"),
        (float("inf"), "inf"),
    ],
)
def test_a_moment(ms: float | None, text: str | None) -> None:
    """ISO 8601 where a calendar reaches, else the number."""
    assert moment(ms) == text


def test_a_wrong_queue_comes_before_everything_else() -> None:
    """Also where there is no URL."""
    with pytest.raises(InvalidQueueName):
        prepared(None, "good", "emq")
    assert prepared(None, "good").url is None


def test_yes_no() -> None:
    """For a person."""
    assert (yes_no(value=True), yes_no(0)) == ("yes", "no")
