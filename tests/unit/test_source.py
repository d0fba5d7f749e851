"""Nothing that a server or a user sends is run as code: the package has no way to.

Source: issue "The five promises", Security ("nothing is unpickled or evaluated").
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import echomq_worker

FILES = sorted(Path(echomq_worker.__file__).parent.rglob("*.py"))
MODULES = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "jsonpickle",
    "yaml",
    "code",
    "codeop",
    "xmlrpc",
}
CALLS = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
# `os.system`, `subprocess.getoutput` and the like hand a text to a shell.
SHELLS = {"system", "popen", "getoutput", "getstatusoutput", "create_subprocess_shell"}


def _dangers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import {one.name}" for one in node.names if one.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield f"from {node.module}"
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in CALLS:
                yield called.id
            if isinstance(called, ast.Attribute) and called.attr in SHELLS and ast.unparse(called.value) != "platform":
                yield called.attr
            if any(word.arg == "shell" for word in node.keywords):
                yield "shell="


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import yaml as y",
        "from marshal import loads",
        "eval(x)",
        "exec(x)",
        "os.system(x)",
        "subprocess.run(x, shell=True)",
        "def f():\n    __import__(x)",
    ],
)
def test_a_danger_is_found(source: str) -> None:
    """The look at the source is one."""
    assert list(_dangers(ast.parse(source)))


def test_nothing_is_unpickled_or_evaluated() -> None:
    """No module of the package can turn data into code, nor give a text to a shell."""
    assert len(FILES) > 60
    assert {path.name: found for path in FILES if (found := list(_dangers(ast.parse(path.read_text()))))} == {}
