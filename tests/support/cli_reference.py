"""The command line as docs/cli.md has it: every command with its arguments, options and example, from the tree itself.

Source: issue "Made for the people who run it", Docs (references generated from the code).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from typer.main import get_command

from echomq_worker.cli import Exit
from echomq_worker.cli.app import make_app
from echomq_worker.settings import Settings, variable

# Where more is said of it.
PAGES = {
    "acl": "acl.md",
    "conformance": "conformance.md",
    "dead requeue": "operating.md",
    "enqueue": "producing.md",
    "events": "events.md",
    "flow add": "flows.md",
    "flow show": "flows.md",
    "health": "running.md",
    "job cancel": "handlers.md#by-a-request",
    "native build": "native.md",
    "repeat add": "producing.md",
    "repeat cron": "producing.md",
    "queue audit": "operating.md",
    "run": "running.md",
    "web": "dashboard.md",
}
_VARIABLE = re.compile(r"\bECHOMQ_[A-Z_]+\b")
_HEAD = "| argument or option | meaning | takes | default | variable |\n|---|---|---|---|---|"
_KINDS = {int: "an integer", str: "text"}


@cache
def tree() -> Any:
    """The root of the commands."""
    return get_command(make_app())


def commands() -> dict[str, Any]:
    """Every command by its words, in the order of the help."""

    def below(group: Any, words: str) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from below(command, f"{words}{name} ")
            else:
                yield f"{words}{name}", command

    return dict(below(tree(), ""))


def groups() -> dict[str, Any]:
    """The root as '', and every group of commands by its name."""
    return {"": tree(), **{name: one for name, one in tree().commands.items() if hasattr(one, "commands")}}


def parameters(command: Any) -> list[Any]:
    """What a user may give it, `--help` left out."""
    return [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]


def is_argument(one: Any) -> bool:
    """Whether it is given by its place."""
    return bool(one.param_type_name == "argument")


def variable_of(name: str, one: Any) -> str | None:
    """The environment variable that a command's option stands for, by its name, or None."""
    if is_argument(one) or (name, one.name) == ("web", "http"):
        # That one is the dashboard's own address, ECHOMQ_HTTP a worker's.
        return None
    names = [f"web_{one.name}", one.name] if name == "web" else [one.name]
    return next((variable(setting) for setting in names if setting in Settings.model_fields), None)


def flags_of(setting: str) -> list[str]:
    """The options that stand for a setting, each once, in the order of the help."""
    found = [
        one.opts[0]
        for name, command in commands().items()
        for one in parameters(command)
        if variable_of(name, one) == variable(setting)
    ]
    return list(dict.fromkeys(found))


def summary(command: Any) -> str:
    """Its first sentence."""
    return str(command.get_short_help_str(200))


def overview() -> str:
    """A line for each command."""
    rows = ["| command | does |", "|---|---|"]
    for name, command in commands().items():
        anchor = name.replace(" ", "-")
        rows.append(f"| [`{name}`](#{anchor}) | {summary(command)} |")
    return "\n".join(rows)


def exit_codes() -> str:
    """The table of exit codes."""
    return "\n".join(["| code | means |", "|---|---|", *(f"| {code.value} | {code.means} |" for code in Exit)])


def reference() -> str:
    """What the program itself takes, and a section for each command."""
    own = "\n".join([_HEAD, *(_row("", one) for one in parameters(tree()))])
    return f"{own}\n\n" + "\n\n".join(_section(name, command) for name, command in commands().items())


def _section(name: str, command: Any) -> str:
    given = parameters(command)
    places = " ".join(_place(one) for one in given if is_argument(one))
    usage = f"echomq-worker {name} {'[OPTIONS] ' if len(given) > len(places.split()) else ''}{places}".rstrip()
    example = str(command.epilog).removeprefix("Example: ")
    parts = [f"### {name}", f"```\n{usage}\n```", _prose(command.help)]
    if given:
        parts.append("\n".join([_HEAD, *(_row(name, one) for one in given)]))
    parts.append(f"For example:\n\n```\n{example}\n```")
    if name in PAGES:
        parts.append(f"More in [{PAGES[name].partition('#')[0]}]({PAGES[name]}).")
    return "\n\n".join(parts)


def _place(one: Any) -> str:
    shown = one.metavar if not one.multiple and one.nargs == 1 else f"{one.metavar.removesuffix('...')}..."
    return shown if one.required else f"[{shown}]"


def _prose(text: str) -> str:
    """A docstring's paragraphs, a line each; what looks like an option or a variable is code."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return "\n\n".join(_coded(paragraph) for paragraph in paragraphs)


def _coded(text: str) -> str:
    return re.sub(r"(?<![\w`-])(--[a-z][a-z-]*[a-z]|ECHOMQ_[A-Z_]+)(?![\w`])", r"`\1`", text)


def _row(name: str, one: Any) -> str:
    words = one.metavar if is_argument(one) else " / ".join((*one.opts, *one.secondary_opts))
    shown = words if is_argument(one) or one.is_flag else f"{words} {one.metavar}"
    # A bar in a table's code needs an escape on a forge, which the site would show.
    named = f"<code>{shown.replace('|', '&#124;')}</code>" if "|" in shown else f"`{shown}`"
    stands_for = variable_of(name, one)
    meaning = _coded(re.sub(r" \(ECHOMQ_[A-Z_]+\)", "", str(one.help)))
    cells = (named, meaning, _takes(one), _default(one, stands_for), f"`{stands_for}`" if stands_for else "")
    return "| " + " | ".join(cells) + " |"


def _takes(one: Any) -> str:
    if getattr(one, "is_flag", False):
        return "a flag"
    kind = one.type_descriptor.annotation
    many = getattr(kind, "__args__", None)
    said = _KINDS[many[0] if many else kind]
    if one.min is not None:
        said += f" from {one.min} to {one.max}" if one.max is not None else f" of {one.min} or more"
    return f"{said}, more than once" if one.multiple or one.nargs != 1 else said


def _default(one: Any, variable_name: str | None) -> str:
    if one.required:
        return "required"
    if variable_name is not None and one.default is None:
        return "the variable's"
    if one.default is None:
        return "none"
    if getattr(one, "is_flag", False):
        return "yes" if one.default else "no"
    return f"`{one.default}`"
