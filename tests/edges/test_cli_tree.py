"""The whole tree of commands: each helps with an example, and each refuses what it cannot use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from echomq_worker.cli import Exit, main
from tests.edges.test_cli_asking import FULL
from tests.support.cli import ID, Cli, Keyspace, cli, keyspace
from tests.support.cli_reference import commands, groups, parameters, tree, variable_of
from tests.support.plain import GROUP, QUEUE

__all__ = ["cli", "keyspace"]

# A line of each command that is right; what is tried are its parameters, each with what it must refuse.
TARGET = "examples.two_queues:worker"
RIGHT: dict[str, tuple[str, ...]] = {
    "run": (TARGET,),
    "demo": (),
    "enqueue": (QUEUE, "{}"),
    "events": (QUEUE,),
    "top": ("--once",),
    "web": (),
    "check": (TARGET,),
    "acl": ("worker",),
    "conformance": (),
    "ping": (),
    "health": (),
    "repeat add": (QUEUE, "daily", "1000", "{}"),
    "repeat cron": (QUEUE, "nightly", "0 3 * * *", "{}"),
    "repeat list": (QUEUE,),
    "repeat cancel": (QUEUE, "daily"),
    "queue stats": (QUEUE,),
    "queue list": (),
    "queue pause": (QUEUE,),
    "queue resume": (QUEUE,),
    "queue drain": (QUEUE, "--yes"),
    "queue obliterate": (QUEUE, "--yes", "--force"),
    "queue limit": (QUEUE, "5"),
    "queue rate": (QUEUE, "5", "1000"),
    "queue audit": (QUEUE, "--repair", "--yes"),
    "queue stalled": (QUEUE, "--yes"),
    "dead list": (QUEUE,),
    "dead show": (QUEUE, ID),
    "dead requeue": (QUEUE, ID),
    "dead delete": (QUEUE, ID, "--yes"),
    "dead trim": (QUEUE, "--max-count", "0", "--yes"),
    "job show": (QUEUE, ID),
    "job list": (QUEUE,),
    "job cancel": (QUEUE, ID),
    "job remove": (QUEUE, ID, "--yes"),
    "job reprocess": (QUEUE, ID),
    "job update": (QUEUE, ID, "{}"),
    "job progress": (QUEUE, ID, "50"),
    "job logs": (QUEUE, ID),
    "job log": (QUEUE, ID, "a line"),
    "lane list": (QUEUE,),
    "lane id": (GROUP,),
    "lane pause": (QUEUE, GROUP),
    "lane resume": (QUEUE, GROUP),
    "lane limit": (QUEUE, GROUP, "1"),
    "lane weight": (QUEUE, GROUP, "1"),
    "lane reassign": (QUEUE, ID, GROUP),
    "lane drain": (QUEUE, GROUP, "--yes"),
    "lane reap": (QUEUE, GROUP),
    "flow add": ("missing.json",),
    "flow show": (QUEUE, ID),
    "native build": (),
    "native path": (),
}
# An event of the log that is named as a command might be.
LOGGED = {"job dead"}
# By what the help calls a value. Of a name, its own name is shown too where the word stands for several kinds.
WRONG: dict[str, tuple[str, ...]] = {
    "CRON": ("0 3 * *", "0 25 * * *", "0 0 31 2 *", "daily", ""),
    "DIR": ("", "/dev/null"),
    "EVERY_MS": ("0", "-5", "often"),
    "FILE": ("missing.json", "."),
    "FORMAT": ("xml",),
    "GROUP": ("",),
    "HOST": ("", "a b"),
    "HOST:PORT": (
        "8080",
        "localhost",
        "localhost:",
        "localhost:http",
        ":8080",
        "::1:80",
        "a b:1",
        "127.0.0.1:99999",
    ),
    "ID": ("JOB1", ""),
    "KEY": ("",),
    "LEVEL": ("loud",),
    "MAX|none": ("0", "-1", "many"),
    "MODULE:ATTR": ("app", "app.py", ":worker"),
    "MS": ("-1", "soon"),
    "N": ("-1", "many"),
    "N|none": ("-1", "many"),
    "NAME": ("",),
    "NAME:PASSWORD": ("", "ada", "ada:short", ":a long password"),
    "QUEUE": ("bad queue", "emq", ""),
    "ROLE...": ("nobody",),
    "STATE": ("lost", ""),
    "TEXT": ("",),
    "TIME": ("tomorrow", "2030-01-01T00:00:00"),
    "TOKEN": ("", "too short"),
    "URL": ("nonsense", "redis://", "http://localhost"),
    "W": ("0", "heavy"),
    "WHAT": ("nothing",),
    "WINDOW_MS": ("0", "soon"),
    "WIRE": ("5", "native"),
    "ZONE": ("Europe/Nowhere", "Europe", ""),
}
# Any text is one.
FREE = {"LINE", "PAYLOAD|-", "VALUE"}
# Looked at when its module is there and signals are caught: tests/edges/test_cli_run.py has it.
ELSEWHERE = {("run", "QUEUE")}


@pytest.fixture(autouse=True)
def one_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree is made once and not for every line: it takes longer than what is tried."""
    monkeypatch.setattr("echomq_worker.cli.app.typer.main.get_command", lambda _app: tree())


def values_of(command: Any) -> list[Any]:
    """Its parameters that take a value."""
    return [one for one in command.params if one.metavar and not one.hidden]


def wrong_lines(name: str, command: Any) -> Iterator[tuple[str, ...]]:
    """A line for each wrong value of each parameter, the rest of it right."""
    right = RIGHT[name]
    arguments = [one for one in values_of(command) if one.param_type_name == "argument"]
    for one in values_of(command):
        if one.metavar in FREE or (name, one.metavar) in ELSEWHERE:
            continue
        for value in WRONG[one.metavar]:
            if one.param_type_name == "option":
                yield (*name.split(), *right, one.opts[0], value)
                continue
            place = arguments.index(one)
            options = [word for word in right if word.startswith("--")]
            words = [word for word in right if not word.startswith("--")]
            words[place:] = ["--", *words[:place], value, *words[place + 1 :]][place + 1 :]
            yield (*name.split(), *options, "--", *words)
    yield (*name.split(), *right, "--no-such-option")
    yield (
        *name.split(),
        *right,
        *["one word more"] * (8 if name not in {"acl", "events", "queue stats", "top"} else 1),
    )


def test_every_command_is_tried() -> None:
    """A command that is new needs a right line above, and a value of a new kind a wrong one."""
    assert sorted(commands()) == sorted(RIGHT)
    known = {*WRONG, *FREE}
    for name, command in commands().items():
        assert {one.metavar for one in values_of(command)} <= known, name


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_what_it_cannot_use_is_2_in_one_line_and_changes_nothing(cli: Cli, keyspace: Keyspace, name: str) -> None:
    """Each parameter with each wrong value, an option that is none, a word too many: before anything is done."""
    keyspace.put(FULL)
    before = keyspace.dump()

    for line in wrong_lines(name, commands()[name]):
        code, out, err = cli(*line)
        assert (code, out, err.count("\n"), err[:15]) == (2, "", 1, "echomq-worker: "), (line, code, out, err)
        assert keyspace.dump() == before, line


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_its_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line that begins with the command itself."""
    assert main([*name.split(), "--help"]) == 0

    text = " ".join(capsys.readouterr().out.split())
    assert re.search(rf"Examples?: .*\bechomq-worker {name}\b", text), text


@pytest.mark.parametrize("group", list(groups()))
def test_the_help_of_a_group_has_an_example(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A whole line with one of its commands; the root says what exit codes mean, too."""
    assert main([*group.split(), "--help"]) == 0

    text = capsys.readouterr().out
    (example,) = re.findall(r"Example: echomq-worker (.*)", text)
    assert example.startswith(tuple(name for name in commands() if name.startswith(group)))
    assert group or [code for code in Exit if f"{code.value:3}  {code.means}\n" not in text] == []


def test_an_option_that_is_a_setting_names_its_variable() -> None:
    """Whoever reads the help knows what to put into the environment in its place."""
    named = [
        (name, one.opts[0], wanted, wanted in (one.help or ""))
        for name, command in commands().items()
        for one in parameters(command)
        if (wanted := variable_of(name, one)) is not None
    ]

    assert len(named) > len(commands()) / 2
    assert [one for one in named if not one[3]] == []


@pytest.mark.parametrize("group", list(groups()))
def test_no_summary_is_cut(group: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On 80 columns each is one whole sentence."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*group.split(), "--help"]) == 0

    text = capsys.readouterr().out
    names = {name.removeprefix(group).split()[0] for name in commands() if name.startswith(group)}
    said = text[text.index("Commands:") :].split("\n\n")[0].splitlines()[1:]
    assert {line.split()[0] for line in said} == names
    assert [line for line in said if not line.endswith(".") or line.endswith("...")] == []


def test_the_commands_of_the_questions_page_exist() -> None:
    """What docs/questions.md tells a user to type is a command with these words, and its options are those of it."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "questions.md").read_text()
    known, found = commands(), 0
    for code in re.findall(r"`([^`]+)`", " ".join(page.split())):
        words = " ".join(code.split()[:2])
        if words.split()[0] not in groups() or words in LOGGED:
            continue
        assert words in known, code
        options = {option for parameter in known[words].params for option in parameter.opts}
        assert {word for word in code.split() if word.startswith("--")} <= options, code
        found += 1
    assert found > 10
