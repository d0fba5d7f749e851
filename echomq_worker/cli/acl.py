"""`acl`: the line that makes a user on the server, with the least rights that a role needs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from echomq_worker.errors import ConfigError

_PASSWORD_LIMIT = 1_024


def acl(
    role: Annotated[list[str], typer.Argument(metavar="ROLE...", help="producer, worker, operator, or several.")],
    *,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="QUEUE", help="Only this queue; repeat for more.", show_default=False),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="NAME", help="The user's name; else the roles'.", show_default=False),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--also",
            metavar="WHAT",
            help="cluster, dashboard, database, eviction, metrics, native, sentinel; repeat for more.",
            show_default=False,
        ),
    ] = None,
    password_stdin: Annotated[
        bool,
        typer.Option("--password-stdin", help="Read a password from standard input; its SHA-256 is in the line."),
    ] = False,
) -> None:
    """Print the ACL line of a user with the least rights."""
    from echomq_worker.acl import check_user, rules

    name = check_user("-".join(role) if user is None else user)
    made = rules(role, queue or (), also=also or ())
    if password_stdin:
        made = rules(role, queue or (), also=also or (), password=_password())
    # Not `say`, which would cut a line of many queues; every part of it was checked.
    sys.stdout.write(" ".join(("ACL SETUSER", name, *made)) + "\n")


def _password() -> str:
    if sys.stdin.isatty():
        from getpass import getpass

        text = getpass()
    else:
        text = sys.stdin.readline(_PASSWORD_LIMIT + 1)
    text = text.rstrip("\r\n")
    if not 0 < len(text) <= _PASSWORD_LIMIT:
        raise ConfigError(f"--password-stdin: expected one line of 1..{_PASSWORD_LIMIT} characters")
    return text
