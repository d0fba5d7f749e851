"""Everything that may take over a second shows a bar on a terminal, and none in a pipe.

Source: issue "Made for the people who run it" (In the terminal).
"""

from __future__ import annotations

import io
import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from echomq_worker import module
from echomq_worker.cli.bar import progress_bar
from tests.edges.test_cli_asking import FULL
from tests.support.cli import ID, Cli, Keyspace, cli, keyspace
from tests.support.cli_reference import commands
from tests.support.plain import GROUP, QUEUE
from tests.support.waiting import wait_until_sync

__all__ = ["cli", "keyspace"]

FLOW = {"queue": "reports", "payload": 1, "children": [{"queue": "pages", "payload": 2}]}
# Each with what stands beside its bar.
LONG: dict[str, tuple[tuple[str, ...], str]] = {
    "conformance": (("--only", "mint"), "conformance"),
    "dead delete": ((QUEUE, "--all", "--yes"), "delete q"),
    "dead list": ((QUEUE,), "q"),
    "dead requeue": ((QUEUE, "--all"), "requeue q"),
    "dead trim": ((QUEUE, "--max-count", "0", "--yes"), "trim q"),
    "enqueue": ((QUEUE, "--from-file", "jobs.jsonl"), "enqueue jobs.jsonl"),
    "flow add": (("flow.json",), "flow add"),
    "flow show": ((QUEUE, ID), f"flow {ID}"),
    "job list": ((QUEUE,), "q"),
    "job logs": ((QUEUE, ID), "q"),
    "lane drain": ((QUEUE, GROUP, "--yes"), f"drain {GROUP}"),
    "native build": ((), "native build"),
    "queue audit": ((QUEUE, "--repair", "--yes"), "repair q"),
    "queue drain": ((QUEUE, "--yes"), "drain q"),
    "queue list": ((), "keys"),
    "queue obliterate": ((QUEUE, "--yes", "--force"), "obliterate q"),
    "queue stalled": ((QUEUE, "--yes"), "stalled q"),
    "queue stats": ((QUEUE,), "queues"),
    "top": (("--once", "--interval-ms", "100"), "keys"),
}
# One call of one script, or nothing of the server, or a view that lasts.
SHORT = {
    *("acl", "check", "demo", "events", "health", "native path", "ping", "run", "web", "dead show", "lane list"),
    *("job cancel", "job log", "job progress", "job remove", "job reprocess", "job show", "job update"),
    *("lane id", "lane limit", "lane pause", "lane reap", "lane reassign", "lane resume", "lane weight"),
    *("queue limit", "queue pause", "queue rate", "queue resume"),
    *("repeat add", "repeat cancel", "repeat cron", "repeat list"),
}


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """It is."""
        return True


class AtOnce:
    """A timer that does not wait."""

    daemon = False

    def __init__(self, _after_s: float, function: Callable[[], None]) -> None:
        self.start = function

    def cancel(self) -> None:
        """Too late."""

    def join(self) -> None:
        """It has ended."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Bars come at once; what commands read is in the current directory; nothing is compiled."""
    monkeypatch.setattr("echomq_worker.cli.bar.threading.Timer", AtOnce)
    monkeypatch.setattr(module, "build", lambda folder: tmp_path / "emq.so")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.jsonl").write_text("1\n" * 3)
    (tmp_path / "flow.json").write_text(json.dumps(FLOW))


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal in the place of stderr; in the test's body, since pytest captures anew before it."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def test_every_command_is_judged() -> None:
    """A command that is new needs a place above: it shows a bar, or there is a reason why it is short."""
    assert (sorted({*LONG, *SHORT}), {*LONG} & SHORT) == (sorted(commands()), set())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", sorted(LONG))
def test_what_takes_long_has_a_bar(cli: Cli, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """On stderr, gone at the end, and not a byte of it in the output."""
    line, label = LONG[name]
    keyspace.put(FULL)
    screen = on_terminal(monkeypatch)

    _, out, _ = cli(*name.split(), *line)

    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert re.search(rf"(^|\r|\n){re.escape(label)} [━╸╺ ]", drawn), drawn
    assert "━" not in out
    # The last that is drawn takes it away again, and shows the cursor.
    assert screen.getvalue().rfind("\x1b[2K") > screen.getvalue().rfind("━")
    assert screen.getvalue().count("\x1b[?25h") == screen.getvalue().count("\x1b[?25l")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", sorted(LONG))
def test_a_pipe_gets_no_bar(cli: Cli, keyspace: Keyspace, name: str) -> None:
    """However long it takes: neither in the output nor beside it."""
    keyspace.put(FULL)

    _, out, err = cli(*name.split(), *LONG[name][0])

    assert "━" not in out + err
    assert "\x1b" not in out + err


def test_what_is_over_sooner_leaves_the_screen_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves no thread."""
    screen, before = on_terminal(monkeypatch), threading.active_count()
    monkeypatch.setattr("echomq_worker.cli.bar._AFTER_S", 60)

    with progress_bar("drain emails") as bar:
        bar(1, 10)

    assert (screen.getvalue(), threading.active_count()) == ("", before)


def test_it_comes_by_itself_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while nothing is counted yet; what is called like markup is shown as it is."""
    screen = on_terminal(monkeypatch)
    monkeypatch.setattr("echomq_worker.cli.bar._AFTER_S", 0.01)

    with progress_bar("drain [red]emails[/red]") as bar:
        wait_until_sync(lambda: "drain [red]emails[/red]" in screen.getvalue(), "the bar is drawn")
        bar(2, 10)
        wait_until_sync(lambda: "2/10" in screen.getvalue(), "it counts")


def test_lines_printed_meanwhile_go_where_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a pipe as they are; on the same terminal above the bar."""
    monkeypatch.setattr("echomq_worker.cli.bar.threading.Timer", AtOnce)
    screen, pipe = on_terminal(monkeypatch), io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    with progress_bar("conformance"):
        print("to the pipe")  # noqa: T201 - it is what is tried
    monkeypatch.setattr(sys, "stdout", Terminal())
    with progress_bar("conformance"):
        print("to the terminal")  # noqa: T201 - it is what is tried

    assert pipe.getvalue() == "to the pipe\n"
    assert "to the pipe" not in screen.getvalue()
    assert "to the terminal" in screen.getvalue()
