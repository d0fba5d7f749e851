"""MODULE:ATTR: the Worker, or one line that says what is wrong with it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from echomq_worker.cli import HandlersFailed, main
from echomq_worker.cli.load import load_worker
from echomq_worker.errors import ConfigError

GOOD = """
from echomq_worker import Worker
worker = Worker()
empty = Worker()
number = 5
class inner:
    worker = worker
@worker.handler("emails")
async def send(payload: bytes) -> None:
    pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, and a module path that is as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("cli_app"):
            del sys.modules[name]


def test_the_current_directory_is_on_the_path(folder: Path) -> None:
    """A module beside the user is found, its attribute too, also one inside another."""
    (folder / "cli_app.py").write_text(GOOD)

    worker = load_worker("cli_app:worker")

    assert [bound.options.queue for bound in worker.handlers] == ["emails"]
    assert load_worker("cli_app:inner.worker") is worker


@pytest.mark.parametrize("verb", ["run", "check"])
def test_a_target_of_another_form_is_told_before_a_url_that_is_missing(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever has both wrong is told what stands in the command line first."""
    monkeypatch.delenv("ECHOMQ_URL", raising=False)

    assert main([verb, "app.py"]) == 2

    assert capsys.readouterr().err == (
        "echomq-worker: 'app.py': expected MODULE:ATTR, a module's name and not a file, such as app:worker\n"
    )


def test_a_package_is_a_module_too(folder: Path) -> None:
    """Dotted names work, with or without an __init__."""
    (folder / "cli_app_pkg").mkdir()
    (folder / "cli_app_pkg" / "jobs.py").write_text(GOOD)

    assert len(list(load_worker("cli_app_pkg.jobs:worker").handlers)) == 1


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("cli_app", "'cli_app': expected MODULE:ATTR, such as app:worker"),
        ("cli_app:", "expected MODULE:ATTR"),
        (":worker", "expected MODULE:ATTR"),
        ("cli-app:worker", "expected MODULE:ATTR"),
        ("", "expected MODULE:ATTR"),
        ("jobs/cli_app.py:worker", "a module's name and not a file, such as jobs.cli_app:worker"),
        ("cli_app_nowhere:worker", "no module 'cli_app_nowhere', neither in "),
        ("cli_app_nowhere.jobs:worker", "no module 'cli_app_nowhere', neither in "),
        ("cli_app:missing", "'cli_app:missing': cli_app has no missing, expected cli_app:worker"),
        ("cli_app:number", "'cli_app:number' is of type int, expected a Worker"),
        ("cli_app:send", "'cli_app:send' is of type function, expected a Worker"),
        ("cli_app:empty", "'cli_app:empty' has no handlers"),
    ],
)
def test_a_wrong_target_is_one_line(folder: Path, target: str, said: str) -> None:
    """Each way to be wrong says what was expected."""
    (folder / "cli_app.py").write_text(GOOD)

    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        load_worker(target)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "import a_module_that_is_not_installed",
        "from echomq_worker import NoSuchName",
        "1 / 0",
        "def (",
        "raise SystemExit(3)",
    ],
)
def test_a_module_that_fails_shows_its_trace_and_exits_with_2(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """Whatever the user's module raises: the trace is shown, the last line says what happened, the code is 2.

    Report 95 (Bogdanp/dramatiq#11).
    """
    (folder / "cli_app_bad.py").write_text(source)
    monkeypatch.setenv("ECHOMQ_URL", "redis://127.0.0.1:1")

    code = main(["check", "cli_app_bad:worker"])

    error = capsys.readouterr().err.splitlines()
    assert code == 2
    assert any("cli_app_bad.py" in line for line in error)
    assert error[-1].startswith("echomq-worker: 'cli_app_bad:worker': importing cli_app_bad failed")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Worker().handler('bad name')", "queue 'bad name': expected"),
        ("Worker().handler('a', concurrency=0)", "concurrency"),
        ("Worker().handler('a')(lambda ctx, to: None)", "parameters ctx, to: expected one of them, for the payload"),
    ],
)
def test_what_registering_refuses_is_one_line_with_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    """A handler that cannot be one is told as any wrong argument is: file, line, what was expected; no trace."""
    (folder / "cli_app_wrong.py").write_text(f"from echomq_worker import Worker\n{line}\n")
    monkeypatch.setenv("ECHOMQ_URL", "redis://127.0.0.1:1")

    code = main(["check", "cli_app_wrong:worker"])

    error = capsys.readouterr().err.splitlines()
    assert (code, len(error)) == (2, 1)
    assert error[0].startswith(f"echomq-worker: 'cli_app_wrong:worker': {folder / 'cli_app_wrong.py'}:2: ")
    assert said in error[0]


def test_a_missing_dependency_is_not_taken_for_a_missing_module(folder: Path) -> None:
    """An import inside the module that fails is the module's failure, with its trace."""
    (folder / "cli_app_dep.py").write_text("import cli_app_dependency")

    with pytest.raises(HandlersFailed, match="No module named 'cli_app_dependency'"):
        load_worker("cli_app_dep:worker")


def test_a_current_directory_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a release that was put in another one's place: one line, and no trace."""
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(ConfigError, match=r"^the current directory: No such file or directory, expected one"):
        load_worker("app:worker")
