"""The package's own code driven a round trip at a time: its coroutines speak to a wire that hands every trip out, so
that anything may happen in between, or nothing any more.

Source: protocol section 6 (a producer that dies half-way; deliver before trim).
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator, Sequence
from typing import Any

from hiredis import ReplyError

from echomq_worker.connection import reply_error
from echomq_worker.script import scripts

Command = tuple[Any, ...]
Trips = Coroutine[list[Command], list[Any] | None, Any]
"""Code of the package's that is under way: it takes the replies of a trip (None at first), it gives the next one's
commands.
"""

SCRIPTS = scripts()
NAMES = {script.sha: name for name, script in SCRIPTS.items()}


@types.coroutine
def _trip(commands: list[Command]) -> Generator[list[Command], list[Any], list[Any]]:
    return (yield commands)


class Calls:
    """A wire whose round trips are done by whoever drives the coroutine."""

    async def call(self, *args: Any) -> Any:
        """One command."""
        (reply,) = await _trip([args])
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Many, error replies in place."""
        return await _trip([tuple(command) for command in commands])


def as_reply(reply: Any) -> Any:
    """A reply as a wire of the package's gives it."""
    return reply_error(str(reply)) if isinstance(reply, ReplyError) else reply


def word(value: Any) -> str:
    """An argument of a command as text."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
