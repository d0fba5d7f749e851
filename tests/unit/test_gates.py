"""What matters is a gate: sizes, docstrings, reasons beside exceptions, and what the built package holds.

Source: design section 1 (no file over 400 lines, no function over 50), style anchor 19. A change that would raise a
limit splits instead. Import directions are import-linter's, see pyproject.toml.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = ("echomq_worker", "tests", "bench", "examples")
FILE_LINES = 400
FUNCTION_LINES = 50
# The one file of the tests that sleeps, and whose functions do.
SLEEPER = "tests/support/waiting.py"
SLEEPING = ("asyncio", "anyio", "time")
_PAGES = {".html", ".css", ".js", ".svg"}


class Function(NamedTuple):
    """What the rules look at."""

    name: str
    line: int
    lines: int
    documented: bool


# An exception to a rule, and two words or more that say why.
EXCEPTION = re.compile(r"#\s*(noqa|type:\s*ignore|pragma:\s*no)\b")
REASONED = re.compile(
    r"#\s*(noqa:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*|type:\s*ignore\[[a-z, -]+\]|pragma:\s*no (cover|branch))"
    r"\s+[-#]\s*\S+\s+\S+"
)


def python_files() -> list[Path]:
    """All Python of the project."""
    return sorted(path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py"))


@functools.cache
def functions(source: str) -> list[Function]:
    """Every function in it, nested ones too."""
    return [
        Function(node.name, node.lineno, (node.end_lineno or 0) - node.lineno + 1, bool(ast.get_docstring(node)))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def long_files(sizes: dict[str, int]) -> list[str]:
    """The files over the limit, with their size."""
    return [f"{name}: {lines} lines, at most {FILE_LINES}" for name, lines in sizes.items() if lines > FILE_LINES]


def long_functions(name: str, source: str) -> list[str]:
    """The functions over the limit, with their size, the decorators not counted."""
    return [
        f"{name}:{one.line} {one.name}: {one.lines} lines, at most {FUNCTION_LINES}"
        for one in functions(source)
        if one.lines > FUNCTION_LINES
    ]


def silent_tests(name: str, source: str) -> list[str]:
    """The tests without a docstring."""
    return [
        f"{name}:{one.line} {one.name}: no docstring, expected the promise it shows"
        for one in functions(source)
        if one.name.startswith("test_") and not one.documented
    ]


def unexplained(name: str, source: str) -> list[str]:
    """The lines that switch a rule off and do not say why."""
    return [
        f"{name}:{number}: {line.strip()}: no reason beside it"
        for number, line in enumerate(source.splitlines(), 1)
        if EXCEPTION.search(line) and not REASONED.search(line)
    ]


def sleeps(name: str, source: str) -> list[str]:
    """The places of tests that sleep, by whatever name of `sleep`; a turn of the loop (`sleep(0)`) is none."""
    if not name.startswith("tests/") or name == SLEEPER or "sleep" not in source:
        return []
    tree = ast.parse(source)
    called = {f"{module}.sleep" for module in SLEEPING}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in SLEEPING:
            called |= {one.asname or one.name for one in node.names if one.name == "sleep"}
    return [
        f"{name}:{node.lineno}: {ast.unparse(node)}, expected a name of {SLEEPER}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in called
        and [ast.unparse(one) for one in node.args] != ["0"]
    ]


def test_no_file_is_too_long() -> None:
    """No file of Python or Lua has more than 400 lines."""
    paths = [*python_files(), *(PROJECT / "lua").rglob("*.lua")]
    sizes = {str(path.relative_to(PROJECT)): len(path.read_text().splitlines()) for path in paths}
    assert long_files(sizes) == []
    assert len(sizes) > 50


@pytest.mark.parametrize("check", [long_functions, unexplained, silent_tests, sleeps])
def test_rules_that_no_linter_has(check: object) -> None:
    """No function has more than 50 lines, no rule is switched off without a reason, no test is without its promise, and
    none sleeps: it waits for a condition, or says which time has to pass.
    """
    assert callable(check)
    found = [line for path in python_files() for line in check(str(path.relative_to(PROJECT)), path.read_text())]
    assert found == []


def test_the_gates_can_fail() -> None:
    """Each check names what breaks its rule."""
    body = "    x = 1\n" * FUNCTION_LINES
    assert long_files({"a.py": FILE_LINES, "b.py": FILE_LINES + 1}) == ["b.py: 401 lines, at most 400"]
    assert long_functions("a.py", f"async def f():\n{body}") == ["a.py:1 f: 51 lines, at most 50"]
    assert long_functions("a.py", f"@d\ndef f():\n{body[10:]}") == []
    silent = "class T:\n    def test_it(self): pass\ndef helper(): pass\ndef test_b():\n    '''It holds.'''\n"
    assert silent_tests("a.py", silent) == ["a.py:2 test_it: no docstring, expected the promise it shows"]
    naps = "from time import sleep as nap\nnap(1)\nasyncio.sleep(x)\nasyncio.sleep(0)\nours.sleep(1)\n"
    assert sleeps("tests/a.py", naps) == [
        f"tests/a.py:2: nap(1), expected a name of {SLEEPER}",
        f"tests/a.py:3: asyncio.sleep(x), expected a name of {SLEEPER}",
    ]
    assert sleeps("bench/a.py", naps) == sleeps(SLEEPER, naps) == []
    mark = "# no" + "qa"
    source = f"a  {mark}\nb  {mark}: S101\nc  {mark}: S101 - a test speaks\nd  # type: " + "ignore[misc]  # as above\n"
    assert unexplained("a.py", source) == [
        f"a.py:1: a  {mark}: no reason beside it",
        f"a.py:2: b  {mark}: S101: no reason beside it",
    ]


def test_the_built_package_holds_every_script(tmp_path: Path) -> None:
    """A wheel made from the source archive has all Lua and C, includes too, the typing marker and the program."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(PROJECT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        scripts = {path.relative_to(PROJECT / "lua"): path.read_bytes() for path in (PROJECT / "lua").rglob("*.lua")}
        assert {path.parent.name for path in scripts} == {"", "include"}
        sources = {path.name: path.read_bytes() for path in (PROJECT / "native").glob("*.[ch]")}
        assert {name: archive.read(f"echomq_worker/native/{name}") for name in sources} == sources
        packed = {path: archive.read(f"echomq_worker/lua/{path}") for path in scripts}
        names = archive.namelist()
        entry_points = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
        metadata = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    assert packed == scripts
    assert {"echomq_worker/py.typed", "echomq_worker/native/Makefile"} <= set(names)
    pages = [path for path in (PROJECT / "echomq_worker" / "web").rglob("*.*") if path.suffix in _PAGES]
    assert {str(path.relative_to(PROJECT)) for path in pages} <= set(names)
    assert len(pages) > 20
    assert "echomq-worker = echomq_worker.cli:main" in entry_points
    assert not [name for name in names if name.startswith("tests/") or name.endswith((".pyc", ".so"))]
    check_description(metadata)
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def check_description(metadata: str) -> None:
    """What an index shows: no link or picture that leads nowhere there, no path of a clone in its first commands."""
    text = metadata.partition("\n\n")[2]
    assert text.startswith("# echomq-worker\n")
    assert re.findall(r"\]\((?!https?:)[^)]*\)|<(?:img|a)\b", text) == []
    assert "pip install 'echomq-worker[embedded]' && echomq-worker demo\n" in text
    assert "See it, with Python" in text
    assert "`docs/tutorial.md`" in text
    assert re.findall(r"^Project-URL", metadata, re.MULTILINE) == []


def test_scripts_are_found_where_the_package_is() -> None:
    """The links into the package lead to the scripts and the C sources of the source tree."""
    assert (PROJECT / "echomq_worker" / "lua").resolve() == PROJECT / "lua"
    assert (PROJECT / "echomq_worker" / "native").resolve() == PROJECT / "native"
