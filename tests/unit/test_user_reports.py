"""docs/user-reports.md and the docstrings of the tests that it names say the same, and nothing is left out."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from tests.support.references import PROJECT, REFERENCE, docstrings, reports_of

PAGE = PROJECT / "docs" / "user-reports.md"
REPORT = re.compile(r"[\w.-]+/[\w.-]+#\d+")

# What must have a test; reports about payloads and memory, and of comfort, come on top.
LOSS = (1, 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15, 16, 17)
JOBS = (19, 20, 21, 22, 23, 24, 25, 26, 28, 29, 31, 32, 34, 36, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 123)
SHUTDOWN = (48, 49, 50, 51, 52, 53, 54, 56, 57, 58)
REPEATS = (60, 61, 63, 64, 65, 67, 68, 69, 71, 72, 74, 75, 76, 77, 78)
SURFACE = (92, 93, 94, 95, 97, 98, 100, 102, 103, 108, 111, 115, 119)
REQUIRED = {*LOSS, *JOBS, *SHUTDOWN, *REPEATS, *SURFACE}


@dataclass(frozen=True, slots=True)
class Row:
    """One report: `tests` are references, none where nothing is there yet."""

    number: int
    report: str
    symptom: str
    ours: str
    tests: tuple[str, ...]


def rows(page: str) -> list[Row]:
    """The rows of every table whose first cell is a number."""
    found = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and cells[0].isdigit():
            tests = tuple(REFERENCE.findall(cells[4])) if len(cells) > 4 else ()
            found.append(Row(int(cells[0]), cells[1], cells[2], cells[3], tests))
    return found


def disagreements(page: list[Row], said: dict[str, str]) -> list[str]:
    """What a row says and the docstring does not, what a docstring says and no row does, tests that are not there."""
    in_page = {(test, row.number, row.report) for row in page for test in row.tests}
    in_tests = {(test, number, report) for test, text in said.items() for number, report in reports_of(text)}
    found = [f"{test}: no such test, report {number} names it" for test, number, _ in in_page if test not in said]
    found += [
        f"{test}: expected `Report {number} ({report}).` in its docstring"
        for test, number, report in in_page - in_tests
        if test in said
    ]
    return sorted(
        found + [f"{test}: no row of report {number} ({report}) has it" for test, number, report in in_tests - in_page]
    )


def test_table_and_docstrings_agree() -> None:
    """Every test that a row names is there and names the report; every docstring with a report stands in its row."""
    assert disagreements(rows(PAGE.read_text()), docstrings()) == []


def test_a_disagreement_is_told() -> None:
    """In either direction, and a test that is gone."""
    page = [Row(1, "a/b#2", "", "", ("tests/x.py::test_a", "tests/x.py::test_gone"))]
    said = {"tests/x.py::test_a": "It holds.", "tests/x.py::test_b": "It holds. Report 3 (a/b#4)."}

    assert disagreements(page, said) == [
        "tests/x.py::test_a: expected `Report 1 (a/b#2).` in its docstring",
        "tests/x.py::test_b: no row of report 3 (a/b#4) has it",
        "tests/x.py::test_gone: no such test, report 1 names it",
    ]
    assert disagreements([Row(3, "a/b#4", "", "", ("tests/x.py::test_b",))], said) == []


def test_no_report_is_left_out() -> None:
    """Each of those that must have a test has one, and each number is one row."""
    page = rows(PAGE.read_text())
    numbers = [row.number for row in page]

    assert sorted(REQUIRED - {row.number for row in page if row.tests}) == []
    assert sorted({number for number in numbers if numbers.count(number) > 1}) == []


@pytest.mark.parametrize("row", rows(PAGE.read_text()), ids=lambda row: str(row.number))
def test_a_row_is_whole(row: Row) -> None:
    """A public report that can be looked up, its symptom, and what we do."""
    assert REPORT.fullmatch(row.report)
    assert row.symptom
    assert row.ours
