"""The command line's small parts: times, tables, exit codes, the command of a child."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_worker import cli
from echomq_worker.cli import Exit, main
from echomq_worker.cli.check import ServerFacts, complaints
from echomq_worker.cli.common import as_text, at_ms, print_table
from echomq_worker.cli.run import child_command, child_environments, loop_factory
from echomq_worker.errors import (
    AuthenticationFailed,
    CommandTimeout,
    ConfigError,
    FenceRefused,
    InvalidArgument,
    InvalidId,
    InvalidQueueName,
    KindRefused,
    ScriptMissing,
    ServerError,
    Unavailable,
    Unreachable,
)
from echomq_worker.settings import load_settings
from echomq_worker.supervisor import Plan


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("-5", -5),
        ("1767225600000", 1_767_225_600_000),
        ("2026-01-01T00:00:00Z", 1_767_225_600_000),
        ("2026-01-01T01:00:00+01:00", 1_767_225_600_000),
        ("2026-01-01T00:00:00.250Z", 1_767_225_600_250),
    ],
)
def test_at_takes_a_number_or_a_moment_with_a_zone(text: str, ms: int) -> None:
    """Milliseconds since 1970, or ISO 8601."""
    assert at_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    ["tomorrow", "2026-01-01T00:00:00", "2026-01-01", "", "1.5", "٣", "9" * 5_000, "x" * 5_000, "--1"],
)
def test_at_refuses_everything_else(text: str) -> None:
    """A moment without a zone could be meant in two ways, so it is refused like any other text; in a short line."""
    with pytest.raises(ConfigError, match=r"^--at=.{,150}$"):
        at_ms(text)


@given(st.binary())
def test_any_payload_can_be_shown(payload: bytes) -> None:
    """Bytes that are no text are shown as escapes; text stays as it is."""
    shown = as_text(payload)

    assert shown is not None
    shown.encode()


def test_a_table_is_aligned_and_clean(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns line up, None is a dash, and no cell reaches the terminal raw."""
    print_table(("name", "n"), [("a\x1b[2J", 1), (None, 22)])

    assert capsys.readouterr().out == "name      n\na\\x1b[2J  1\n-         22\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (InvalidArgument("x"), 2),
        (InvalidId("x"), 2),
        (InvalidQueueName("x"), 2),
        (KindRefused("x"), 2),
        (Unreachable("x"), 3),
        (CommandTimeout("x"), 3),
        (Unavailable("x"), 3),
        (AuthenticationFailed("x"), 3),
        (ServerError("x"), 3),
        (FenceRefused("echomq:3.0.0", "echomq:2.4.2"), 4),
        (ScriptMissing("x"), 1),
    ],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_every_error_of_ours_is_one_line_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    grouped: bool,
) -> None:
    """No trace, one line, the documented code; also when a task group has wrapped it."""

    def failing(_arguments: list[str]) -> int:
        raise ExceptionGroup("tasks", [ExceptionGroup("inner", [error])]) if grouped else error

    monkeypatch.setattr(cli, "_dispatch", failing)

    assert main(["run"]) == code
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("echomq-worker: ")
    assert written.err.count("\n") == 1


@pytest.mark.parametrize("error", [RuntimeError("bug"), ExceptionGroup("tasks", [ConfigError("x"), KeyError("bug")])])
def test_a_bug_keeps_its_trace(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """What is no error of ours is raised: the interpreter prints the trace and exits with 1."""

    def failing(_arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_dispatch", failing)

    with pytest.raises(type(error)):
        main(["run"])


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at a command that does not listen to signals ends it quietly."""

    def interrupted(_arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_dispatch", interrupted)

    assert main([]) == Exit.INTERRUPTED


def test_a_reader_that_left_is_quiet_and_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Output that nobody reads any more ends the command without a word; what is left goes nowhere."""
    moved: list[int] = []

    class Left:
        """Standard output whose reader left."""

        def fileno(self) -> int:
            """Its number."""
            return 77

    def broken(_arguments: list[str]) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(cli, "_dispatch", broken)
    monkeypatch.setattr("os.dup2", lambda _source, target: moved.append(target))
    monkeypatch.setattr("sys.stdout", Left())

    code = main(["queue", "stats", "q"])

    assert (code, moved, capsys.readouterr().err) == (1, [77], "")


def test_an_error_text_cannot_make_a_second_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A server's text with line breaks and escapes is one clean line."""
    cli.say_error("one\ntwo\x1b[2J")

    assert capsys.readouterr().err == "echomq-worker: one two [2J\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "No such command"),
        (["run"], "Missing argument"),
        (["repeat"], "Missing command"),
        (["run", "app:worker", "--processes", "0"], "--processes"),
        (["enqueue", "q", "x", "--in-ms", "soon"], "--in-ms"),
        (["enqueue", "q", "x", "--nope"], "--nope"),
        (["ping", "--nope"], "--nope"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """What was wrong, and where the help is."""
    assert main(arguments) == 2

    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert "--help)" in error


def test_no_command_is_the_help_and_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Called with nothing, it shows what there is."""
    assert main([]) == 2
    assert "Commands" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["run", "-h"], ["repeat", "--help"], ["--version"]])
def test_help_and_version_are_0(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Help asked for is no error."""
    assert main(arguments) == 0
    assert capsys.readouterr().out


def test_every_argument_reaches_the_child() -> None:
    """The child is given our own arguments; what is added comes behind them, before a `--`, and wins.

    Report 98 (taskiq-python/taskiq#472).
    """
    added = ["--processes", "1", "--no-embedded", "--no-reload", "--supervised"]
    mine = ["run", "app:worker", "--queue", "a", "--processes", "4", "--burst"]

    assert child_command(mine) == ([sys.executable, "-m", "echomq_worker", *mine, *added], [])
    command, tail = child_command(["run", "--burst", "--", "app:worker"])
    assert (command[3:], tail) == (["run", "--burst", *added], ["--", "app:worker"])
    plan = Plan(command=command, tail=tail, environments=[{}], grace_ms=0)
    assert plan.line("--reports", "7")[3:] == ["run", "--burst", *added, "--reports", "7", "--", "app:worker"]


def test_children_get_the_embedded_url_and_node_ids_of_their_own() -> None:
    """The URL of a private server goes through the environment; ids of two children cannot collide by setting."""
    plain, numbered = load_settings(), load_settings({"node_id": 1_023})

    assert child_environments(plain, 2, own_url=None) == [{}, {}]
    assert child_environments(numbered, 2, own_url="unix:///x") == [
        {"ECHOMQ_URL": "unix:///x", "ECHOMQ_NODE_ID": "1023"},
        {"ECHOMQ_URL": "unix:///x", "ECHOMQ_NODE_ID": "0"},
    ]


def test_the_loop_is_uvloop_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `fast` is used when it is there; without it asyncio's own loop is."""
    made = loop_factory()
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    assert loop_factory() is None
    assert made is None or made.__module__ == "uvloop"


def test_complaints_name_what_can_cost_jobs() -> None:
    """Skew above a second, an eviction policy, no append-only file: a sentence each; unknown is no complaint."""
    good = ServerFacts("redis://h", "9.1.2", "echomq:3.0.0", 1_000, "noeviction", append_only=True)
    bad = ServerFacts("redis://h", "9.1.2", "echomq:3.0.0", -1_001, "allkeys-lru", append_only=False)
    silent = ServerFacts("redis://h", "unknown", "echomq:3.0.0", 0, None, None)

    assert complaints(good) == complaints(silent) == []
    assert [re.split(r"[ :]", text)[0] for text in complaints(bad)] == ["this", "maxmemory-policy", "append-only"]
