"""The root of the command line, the one command that lasts, and how a command line is carried out.

Apart from the other commands: a daemon's memory is counted, and `run` has no use for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from echomq_worker.cli import Exit, say_error
from echomq_worker.cli.run import run

# What typer raises for a wrong command line; which package it comes from depends on typer's version.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]

_EPILOG = "\n\n".join(
    (
        "Example: echomq-worker run app:worker",
        "ECHOMQ_URL, such as redis://localhost:6379/0, is the server.",
        "\b\n" + "\n".join(("Exit codes:", *(f"  {code.value:3}  {code.means}" for code in Exit))),
    )
)


def bare_app() -> typer.Typer:
    """The root, without a command."""
    app = typer.Typer(
        name="echomq-worker",
        help="A worker for EchoMQ job queues on Valkey.",
        epilog=_EPILOG,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback(invoke_without_command=True)(_root)
    return app


def add_run(app: typer.Typer) -> None:
    """The command `run`."""
    app.command("run", epilog="Example: echomq-worker run app:worker --processes 2")(run)


def carry_out(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run one command line; a wrong one is a line on stderr and 2. Errors of ours are raised."""
    command = typer.main.get_command(app)
    try:
        answer = command.main(
            args=list(arguments), prog_name="echomq-worker", standalone_mode=False, obj=tuple(arguments)
        )
    except _UsageError as error:
        say_error(f"{_said(error)} (see echomq-worker {_where(error)}--help)")
        return Exit.USAGE
    except typer.Abort:
        return Exit.INTERRUPTED
    return answer if isinstance(answer, int) else Exit.OK


def _said(error: Exception) -> str:
    told = getattr(error, "format_message", None)
    return str(told() if callable(told) else error).rstrip(".")


def _where(error: Exception) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", "")
    inner = path.removeprefix("echomq-worker").strip()
    return f"{inner} " if inner else ""


def _root(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from echomq_worker import __version__

        typer.echo(__version__)
        raise typer.Exit(Exit.OK)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(Exit.USAGE)
