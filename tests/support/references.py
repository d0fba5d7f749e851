"""Tests as the pages name them: `tests/folder/test_file.py::test_name`, and the docstrings that these have."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
REFERENCE = re.compile(r"\btests/[\w/]+\.py::\w+")
_REPORT = re.compile(r"Report (\d+) \(([\w.-]+/[\w.-]+#\d+)\)")


@cache
def docstrings() -> dict[str, str]:
    """Every test of the project under its reference, with its docstring on one line."""
    found: dict[str, str] = {}
    for path in sorted((PROJECT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                text = " ".join((ast.get_docstring(node) or "").split())
                found[f"{path.relative_to(PROJECT)}::{node.name}"] = text
    return found


def reports_of(text: str) -> set[tuple[int, str]]:
    """The reports that a docstring names: number and `owner/repository#issue`."""
    return {(int(number), report) for number, report in _REPORT.findall(text)}
