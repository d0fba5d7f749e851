"""The site of docs/: it builds strictly, its API page has every public name, and the tutorial can be followed.

Source: issue "Made for the people who run it and the people who write handlers", Docs.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import echomq_worker
from echomq_worker import Worker, sync, testing
from echomq_worker.cli.app import make_app
from echomq_worker.jobs import Jobs
from echomq_worker.repeat import Repeat
from echomq_worker.settings import Settings
from tests.support.cli import Cli, cli
from tests.support.process import WorkerProcess
from tests.support.valkey import ValkeyServer

__all__ = ["cli"]

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
KEYWORDS = {
    name
    for function in (Worker.handler, Jobs.enqueue, Repeat.register)
    for name in inspect.signature(function).parameters
}


def blocks(page: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page, in its order: language and text."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def here() -> list[str]:
    """The names in the column "here" of docs/coming-from.md."""
    rows = [line.split(" | ") for line in (DOCS / "coming-from.md").read_text().splitlines() if line.startswith("| ")]
    return sorted({name for row in rows for name in re.findall(r"`([^`]+)`", row[1])})


def command_exists(words: list[str]) -> bool:
    """Whether the program has this command."""
    found = get_command(make_app())
    for word in words:
        commands: dict[str, object] = getattr(found, "commands", {})
        if word not in commands:
            return False
        found = commands[word]  # type: ignore[assignment]  # a command of click, or a group of them
    return not hasattr(found, "commands")


def exists(name: str) -> bool:
    """Whether a name of the page is a command, a setting, a keyword, or something public (of a class, of a module)."""
    if name.startswith("echomq-worker "):
        return command_exists(name.split()[1:])
    if name.startswith("ECHOMQ_"):
        return name.removeprefix("ECHOMQ_").lower() in Settings.model_fields
    if name.endswith("="):
        return name.removesuffix("=") in KEYWORDS
    found: object = {"sync": sync, "testing": testing}.get(name.partition(".")[0], echomq_worker)
    path = name.split(".")[1:] if found is not echomq_worker else name.split(".")
    fields = set[str]()
    for part in path:
        if part in fields:
            return True
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
        fields = set(inspect.get_annotations(found)) if isinstance(found, type) else set()
    return True


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Every link and anchor leads somewhere on the site, each page is in the menu, each name of the API is found."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}

    ended = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, text=True, timeout=150, check=False)

    # Not --quiet: what is not logged does not count for --strict.
    said = (ended.stdout + ended.stderr).splitlines()
    assert (ended.returncode, [line for line in said if not line.startswith("INFO")]) == (0, [])
    api = (tmp_path / "site" / "api" / "index.html").read_text()
    assert [name for name in echomq_worker.__all__ if f'id="echomq_worker.{name}"' not in api] == []
    # Diagrams are drawn where there is no other network, too.
    assert 'src="../assets/mermaid.tiny.js"' in (tmp_path / "site" / "concepts" / "index.html").read_text()
    # Text of the docstring, which stands in no page: what is shown comes from the code.
    assert "returns it unchanged" in api


def test_the_api_page_has_every_public_name() -> None:
    """Each once, and nothing that is not public."""
    named = re.findall(r"^::: echomq_worker\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)

    assert sorted(named) == sorted([*echomq_worker.__all__, "errors", "observers", "sync", "testing", "tracing"])


@pytest.mark.parametrize("name", here())
def test_what_the_page_maps_to_exists(name: str) -> None:
    """Whatever somebody who comes from arq, celery, rq or dramatiq is sent to is there."""
    assert exists(name)


def test_a_name_that_is_not_there_is_noticed() -> None:
    """The check above can fail: for each kind of name."""
    wrong = (
        "echomq-worker purge",
        "echomq-worker queue",
        "ECHOMQ_NOPE",
        "priority=",
        "Jobs.result",
        "Task",
        "sync.Nope",
    )

    assert [name for name in wrong if exists(name)] == []


def follow(line: str, folder: Path, url: str, cli: Cli) -> str:
    """What one line of the tutorial prints; it has to end with 0."""
    program, *words = shlex.split(line)
    if program == "echomq-worker":
        code, said, errors = cli(*words)
    else:
        module = {"python": (), "pytest": ("-m", "pytest", "-p", "no:cacheprovider")}[program]
        env = {**os.environ, "ECHOMQ_URL": url, "PYTHONPATH": str(PROJECT)}
        ended = subprocess.run(
            [sys.executable, *module, *words],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        code, said, errors = ended.returncode, ended.stdout, ended.stderr
    assert code == 0, f"{line}: {said}{errors}"
    return said


@pytest.mark.timeout(300)
def test_the_tutorial_can_be_followed(tmp_path: Path, url: str, server: ValkeyServer, cli: Cli) -> None:
    """Its files and its commands, in its order, up to the dashboard: what it says of the log and the lists is so."""
    page = blocks("tutorial.md")
    for language, text in page:
        if language in {"python", "ini"}:
            (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
    lines = [line for language, text in page if language == "sh" for line in text.splitlines()]
    start = lines.index("echomq-worker run app:worker --embedded")
    end = lines.index("echomq-worker web")

    with WorkerProcess("run", "app:worker", env={"ECHOMQ_URL": url}, cwd=tmp_path) as worker:
        said = dict[str, str]()
        for line in lines[start + 1 : end]:
            if line == "echomq-worker repeat cancel orders test-order":
                worker.saw_sync("order 0 is confirmed")
            if not line.startswith("export "):
                said[line] = follow(line, tmp_path, url, cli)

        assert "2 passed" in said["pytest -q"]
        assert '"job retried"' in worker.saw_sync("the mail server did not answer")
        for number in (1, 2, 3, 13):
            worker.saw_sync(f"order {number} is confirmed")
        assert "test-order" in said["echomq-worker repeat list orders"]
        worker.saw_sync('"job dead"')
        assert worker.records("job dead")[0]["attempt"] == 3
        assert "no such address" in follow("echomq-worker dead list orders", tmp_path, url, cli)
        worker.send(signal.SIGINT)
        assert worker.ended_sync() == 0
    assert server.admin.zcard("emq:{orders}:dead") == 1
