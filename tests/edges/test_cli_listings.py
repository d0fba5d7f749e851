"""Every listing: a table on a terminal, a line of JSON for each row with --json, the same columns as text in a pipe."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest

from tests.edges.test_cli_asking import FULL
from tests.support.cli import ID, Cli, Keyspace, cli, keyspace
from tests.support.plain import QUEUE
from tests.support.terminal import Terminal

__all__ = ["cli", "keyspace"]

LISTINGS: dict[str, tuple[str, ...]] = {
    "queue list": (),
    "queue stats": (QUEUE,),
    "queue audit": (QUEUE,),
    "queue stalled": (QUEUE, "--yes"),
    "lane list": (QUEUE,),
    "job list": (QUEUE, "--state", "dead"),
    "job logs": (QUEUE, ID),
    "dead list": (QUEUE,),
    "repeat list": (QUEUE,),
    "flow show": (QUEUE, ID),
    "top": ("--once", "--interval-ms", "100"),
}


@pytest.mark.parametrize("name", sorted(LISTINGS))
def test_with_json_every_line_is_an_object(cli: Cli, keyspace: Keyspace, name: str) -> None:
    """In plain ASCII, whatever the rows hold; without it the same is text."""
    keyspace.put(FULL | {f"job:{ID}:logs": ["a line \x1b[31m with é", "another"]})

    _, out, err = cli(*name.split(), *LISTINGS[name], "--json")
    lines = out.splitlines()
    assert (err, len(lines) > 0) == ("", True)
    assert out.isascii()
    assert [line for line in lines if not isinstance(json.loads(line), dict | str)] == []

    keyspace.put(FULL)
    _, text, _ = cli(*name.split(), *LISTINGS[name])
    assert text
    assert "\x1b" not in text


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """It is."""
        return True


# A log is lines.
@pytest.mark.parametrize("name", sorted(set(LISTINGS) - {"job logs"}))
def test_each_is_a_table_on_a_terminal(
    cli: Cli, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A line below the heading, no line longer than the terminal is wide; with --json the lines are as in a pipe."""
    keyspace.put(FULL)
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "70")

    cli(*name.split(), *LISTINGS[name])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()
    assert any("──" in line for line in lines), lines
    assert max(map(len, lines)) <= 70
    screen.truncate(0)
    screen.seek(0)
    cli(*name.split(), *LISTINGS[name], "--json")
    assert [line for line in screen.getvalue().splitlines() if not isinstance(json.loads(line), dict)] == []


@pytest.mark.parametrize("name", ["repeat list"])
def test_on_a_terminal_it_is_a_table(url: str, keyspace: Keyspace, name: str) -> None:
    """With a line below its heading, as wide as the terminal at most; with --json a line of JSON all the same."""
    keyspace.put(FULL)

    with Terminal(*name.split(), *LISTINGS[name], env={"ECHOMQ_URL": url}, columns=60) as terminal:
        assert terminal.ended() == 0
        lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.shown).splitlines()
    assert any("──" in line for line in lines)
    assert max(map(len, lines)) <= 60
    with Terminal(*name.split(), *LISTINGS[name], "--json", env={"ECHOMQ_URL": url}, columns=60) as terminal:
        assert terminal.ended() == 0
        assert isinstance(json.loads(terminal.shown.splitlines()[0]), dict)
