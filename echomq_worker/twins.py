"""Twins: the commands of the module `emq` that stand in for scripts, and how one connector speaks them.

Source: protocol section 7, native/README.md (the names). Every verb is written as an EVALSHA of its script; what leaves
is chosen here, for each connection anew: on wire 6 the command, and a verb without one is refused before anything is
sent; on auto the command where this very node has it, else the script. A command that declines has written nothing, so
on auto the script is sent then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from echomq_worker.catalogue import scripts
from echomq_worker.connection import Link
from echomq_worker.errors import ConfigError, EchoMQError, LaneNotServed, NoTwin, ServerError, StateRefused, WireError
from echomq_worker.packing import pack

MODULE: Final = "emq"
SCRIPTS: Final = "4"
COMMANDS: Final = "6"
AUTO: Final = "auto"
WIRES: Final = (SCRIPTS, COMMANDS, AUTO)

_VERBS: Final = (
    *("enqueue", "enqueue_many", "admit_many", "admit_traced", "lane_enqueue"),
    *("claim", "claim_batch", "claim_many", "lane_claim", "lane_claim_weighted"),
    *("complete", "settle", "schedule", "promote", "delay", "stalled_check", "reprocess", "retry", "reap"),
    *("keep", "disown", "look"),
)
_NAMED_OTHERWISE: Final = {"extend_lock": "EMQ.EXTEND"}
TWINS: Final[Mapping[str, str]] = MappingProxyType(
    {**{verb: f"EMQ.{verb.upper().replace('_', '.')}" for verb in _VERBS}, **_NAMED_OTHERWISE}
)
"""Command by script."""
RESCHEDULE: Final = "EMQ.RESCHEDULE"
REQUEUE: Final = "EMQ.REQUEUE"
ALONE: Final = (RESCHEDULE, REQUEUE)
"""These have no script."""

VERSION: Final = "1"
"""Of the module: the keys, arguments and replies of its commands are those of this package's scripts."""
_ASKED: Final = (("COMMAND", "LIST", "FILTERBY", "MODULE", MODULE), ("COMMAND", "DOCS", "EMQ.SCHEDULE"))
_NOT_TOLD: Final = "COMMAND: "
_UNKNOWN: Final = "ERR unknown command"
# Refusals of the commands alone, each before the first write: of a lane, of a rare case, of an argument that the script
# takes.
_DECLINED: Final = re.compile(r"EMQSTATE .*lane not native|ERR EMQ\.")
_NO_LANES: Final = "wire 6 alone serves no lanes, expected ECHOMQ_WIRE=auto"


def known_wire(wire: object) -> str:
    """`4`, `6` or `auto`. Raises ConfigError for anything else."""
    text = str(wire).lower()
    if isinstance(wire, bool) or text not in WIRES:
        raise ConfigError(f"wire={str(wire)[:40]!r}: expected one of {', '.join(WIRES)}")
    return text


@cache
def _names() -> Mapping[str, str]:
    """Script by its sha."""
    return {script.sha: name for name, script in scripts().items()}


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a connector speaks: the wire that was asked for, the commands that its server has, and why it has none."""

    wire: str
    commands: frozenset[str] = frozenset()
    lack: str = ""

    @property
    def has_scripts(self) -> bool:
        """Whether a verb without a command can be called."""
        return self.wire != COMMANDS

    def is_command(self, verb: str) -> bool:
        """Whether that script's verb goes as a command."""
        return verb in TWINS and (self.wire == COMMANDS or TWINS[verb] in self.commands)

    @property
    def is_known(self) -> bool:
        """Whether the server has told what it has: it may refuse to."""
        return not self.lack.startswith(_NOT_TOLD)

    def __str__(self) -> str:
        if self.wire == SCRIPTS:
            return "4 (scripts)"
        if self.lack:
            return f"{self.wire} ({'scripts' if self.wire == AUTO else 'no command'}: {self.lack})"
        rest = ", scripts for the rest" if self.wire == AUTO else ""
        return f"{self.wire} ({len(self.commands)} commands{rest})"


def least(several: Iterable[Spoken], otherwise: Spoken | None = None) -> Spoken:
    """Of what several connections speak, that with the fewest commands."""
    found = sorted(several, key=lambda one: len(one.commands))
    return found[0] if found else otherwise or Spoken(SCRIPTS)


def _told(listed: Any, described: Any) -> tuple[frozenset[str], str]:
    """The module's commands, and what is wrong with them, if anything."""
    for reply in (listed, described):
        if not isinstance(reply, list):
            return frozenset(), f"{_NOT_TOLD}{reply}"
    found = frozenset(name.decode("ascii", "replace").upper() for name in listed)
    if not found:
        return found, f"the server has no module {MODULE}"
    facts = described[1] if len(described) > 1 else []
    version = dict(zip(facts[::2], facts[1::2], strict=False)).get(b"since", b"unknown").decode("ascii", "replace")
    return found, "" if version == VERSION else f"its module {MODULE} is of version {version}, expected {VERSION}"


class Twins:
    """How one connector of wire 6 or auto speaks. `find` is asked with every new connection."""

    __slots__ = ("_heads", "spoken")

    def __init__(self, wire: str) -> None:
        self.spoken = Spoken(wire, lack="not connected yet")
        self._heads: dict[str, str] = {}

    async def find(self, link: Link) -> None:
        """Learn what the server behind `link` has; one that does not tell has nothing for auto.

        Raises WireError; on wire 6 ConfigError where the module is of another version.
        """
        answer = await link.submit(b"".join(map(pack, _ASKED)), len(_ASKED))
        if isinstance(answer, WireError):
            raise answer
        found, lack = _told(*answer)
        wire = self.spoken.wire
        if found and lack and wire == COMMANDS:
            raise ConfigError(f"{link.peer}: wire 6: {lack}")
        self.spoken = Spoken(wire, frozenset() if lack else found, lack)
        # On wire 6 there is no script to fall back to: the server's reply to the command is the answer.
        usable = frozenset(TWINS.values()) if wire == COMMANDS else self.spoken.commands
        self._heads = {sha: TWINS[name] for sha, name in _names().items() if TWINS.get(name) in usable}

    def spell(self, command: Sequence[Any]) -> Sequence[Any]:
        """The command as it leaves: an EVALSHA as its twin where there is one, anything else as it is.

        Raises NoTwin on wire 6 for a script of ours that has none.
        """
        if command[0] != "EVALSHA":
            return command
        twin = self._heads.get(command[1])
        if twin is not None:
            return (twin, *command[2:])
        if self.spoken.wire == COMMANDS and command[1] in _names():
            raise NoTwin(_names()[command[1]])
        return command

    def read(self, sent: Sequence[Any], reply: Any) -> tuple[Any, bool]:
        """The reply as the caller gets it, and whether the script is to be sent instead: the twin has done nothing."""
        if not isinstance(reply, EchoMQError):
            return reply, False
        text, name = str(reply), str(sent[0])
        absent = text.startswith(_UNKNOWN) or (isinstance(reply, ServerError) and reply.code == "NOPERM")
        declined = _DECLINED.match(text) is not None
        if self.spoken.wire == AUTO:
            if absent:
                self._forget(name, text)
            return reply, absent or declined
        if absent and not text.startswith("NOPERM"):
            said = f"ERR wire 6: the server does not have {name}, expected the module {MODULE}, or ECHOMQ_WIRE=auto"
            return ServerError(said), False
        if declined and isinstance(reply, StateRefused):
            return LaneNotServed(f"{text} ({_NO_LANES})"), False
        return reply, False

    def _forget(self, twin: str, why: str) -> None:
        """The node has it no more, or this user may not call it: nobody tries it until the next connection."""
        self._heads = {sha: head for sha, head in self._heads.items() if head != twin}
        left = self.spoken.commands - {twin}
        self.spoken = Spoken(self.spoken.wire, left, "" if left else why)
