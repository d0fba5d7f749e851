"""`native build` and `native path`: the module of the native twins, built from the sources that the package carries.

Source: issue "The native twins".
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from echomq_worker.cli.bar import progress_bar
from echomq_worker.cli.common import say
from echomq_worker.errors import ConfigError, NotBuilt


def native_app() -> typer.Typer:
    """The group `native`."""
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="The verbs as a module for Valkey: build it, find it.",
        epilog="Example: echomq-worker native build",
    )
    app.command("build", epilog="Example: echomq-worker native build --to /usr/local/lib/valkey")(build)
    app.command("path", epilog='Example: valkey-server --loadmodule "$(echomq-worker native path)"')(path)
    return app


def build(
    *,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="DIR", help="Put emq.so there; else into the user's cache.", show_default=False),
    ] = None,
) -> None:
    """Build the module and print its path.

    It needs make and a C compiler, and must be built on the system that its server runs on: see docs/native.md. The
    server's user must be able to read it.
    """
    from echomq_worker.module import build as built_in

    if to == "":
        raise ConfigError("--to='': expected a folder")
    with progress_bar("native build", counted=False):
        made = built_in(None if to is None else Path(to))
    say(str(made))


def path() -> None:
    """Print where the module of this release is.

    Exit code 1 where `native build` has put none into the cache yet.
    """
    from echomq_worker.module import built

    found = built()
    if found is None:
        raise NotBuilt("the module is not built yet, expected echomq-worker native build first")
    say(str(found))
