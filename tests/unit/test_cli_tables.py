"""A listing on a terminal fits it, and what somebody copies from it is whole."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker.cli.tables import draw

HEADERS = ("id", "state", "attempts", "group", "last error")
ERROR = "ValueError: no such address in all of the address book that was given"
ROWS = [("JOB0SUth14uylE", "dead", "3", "-", ERROR), ("JOB0SUth14uylF", "dead", "13", "-", "-")]


def drawn(monkeypatch: pytest.MonkeyPatch, columns: int, rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines on a terminal of so many columns."""
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]  # it says so
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    draw(HEADERS, rows, nothing="-")
    return re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()


def test_a_table_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids whole, errors folded, numbers to the right, an empty column left out."""
    lines = drawn(monkeypatch, 60, ROWS)

    assert [line for line in lines if "JOB0SUth14uylE" in line]
    assert not [line for line in lines if "group" in line]
    (three,), (thirteen,) = ([line for line in lines if f"JOB0SUth14uyl{end}" in line] for end in "EF")
    assert three.index(" 3 ") + 1 == thirteen.index("13") + 1
    assert max(map(len, lines)) <= 60


def test_a_record_where_no_table_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row below its id, a line for each of the others."""
    lines = drawn(monkeypatch, 40, ROWS)

    assert [line.split()[0] for line in lines if "──" in line] == ["JOB0SUth14uylE", "JOB0SUth14uylF"]
    assert [line for line in lines if line.split() == ["attempts", "13"]]
    assert max(map(len, lines)) <= 40


@given(
    columns=st.integers(40, 200),
    texts=st.lists(st.text(st.characters(codec="ascii", categories=("L", "N", "P")), max_size=90), max_size=8),
)
def test_nothing_is_lost_and_nothing_is_too_long(columns: int, texts: list[str]) -> None:
    """Whatever the texts and the width: every id stands there whole, every character of every text is there."""
    rows = [(f"JOB{n:011d}", "dead", str(n), "-", text or "-") for n, text in enumerate(texts)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        lines = drawn(monkeypatch, columns, rows)

    said = "".join("".join(lines).split())
    assert [row[0] for row in rows if not any(row[0] in line for line in lines)] == []
    assert all(said.count(letter) >= "".join(row[4] for row in rows).count(letter) for letter in set("".join(texts)))
    assert max(map(len, lines), default=0) <= columns
