"""The scripts as they are run: EVALSHA first, their text where the server does not know them yet.

Source: protocol section 4 ("Scripts run EVALSHA first, load once on NOSCRIPT"). A connector on wire 6 or auto sends
a command of the server's in place of an EVALSHA, see `twins`. What a header states is in `catalogue`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from echomq_worker.catalogue import Script, load, parse, scripts
from echomq_worker.connector import Wire
from echomq_worker.errors import ConnectionLost, ScriptMissing, ServerError, Unreachable

__all__ = ["Call", "Script", "evaluate", "evaluate_many", "load", "parse", "preload", "scripts"]

Call = tuple[str, Sequence[str | bytes], Sequence[Any]]
"""One call of a script: its name, its keys, its arguments."""


def _checked(name: str, keys: Sequence[Any], args: Sequence[Any]) -> Script:
    script = scripts().get(name)
    if script is None:
        raise ScriptMissing(f"script {name!r}: there is none of that name")
    script.check(keys, args)
    return script


async def evaluate(wire: Wire, name: str, keys: Sequence[str | bytes], args: Sequence[Any]) -> Any:
    """Run a script and return its reply.

    Raises its refusal (a subclass of Refused), ScriptMissing or ScriptContract before anything is sent, and what
    `Connector.call` raises.
    """
    script = _checked(name, keys, args)
    try:
        return await wire.call("EVALSHA", script.sha, len(keys), *keys, *args)
    except ServerError as error:
        if error.code != "NOSCRIPT":
            raise
    return await wire.call("EVAL", script.source, len(keys), *keys, *args)


async def preload(wire: Wire) -> int:
    """Have the server know every script before the first call of one, in one round trip; answers how many it took.

    A server that refuses SCRIPT LOAD gets their text at the first call. Raises what `Wire.pipeline` raises.
    """
    replies = await wire.pipeline([("SCRIPT", "LOAD", script.source) for script in scripts().values()])
    return sum(not isinstance(reply, Exception) for reply in replies)


async def evaluate_many(wire: Wire, calls: Sequence[Call], *, beside: Sequence[Sequence[Any]] = ()) -> list[Any]:
    """Run scripts in one round trip and return their replies in order, refusals and other errors in place; before them
    those of the plain commands `beside` them.

    Where the server does not know a script, those calls alone are sent again with its text: they have not run. Where
    that does not reach the server any more it is ConnectionLost, as the replies of the others are lost with it.
    """
    checked = [_checked(name, keys, args) for name, keys, args in calls]
    replies = await wire.pipeline(
        [
            *beside,
            *(
                ("EVALSHA", script.sha, len(keys), *keys, *args)
                for script, (_, keys, args) in zip(checked, calls, strict=True)
            ),
        ]
    )
    first = len(beside)
    unknown = [
        i for i, reply in enumerate(replies[first:]) if isinstance(reply, ServerError) and reply.code == "NOSCRIPT"
    ]
    if unknown:
        texts = [("EVAL", checked[i].source, len(calls[i][1]), *calls[i][1], *calls[i][2]) for i in unknown]
        try:
            again = await wire.pipeline(texts)
        except Unreachable as error:
            if len(unknown) == len(replies):
                raise
            raise ConnectionLost(str(error)) from error
        for i, reply in zip(unknown, again, strict=True):
            replies[first + i] = reply
    return replies
