"""The scripts: found in the package's `lua` folder, their header contracts checked, sent as EVALSHA first.

Source: protocol section 4 ("Scripts run EVALSHA first, load once on NOSCRIPT"). A header states what a script promises:

    -- enqueue: admits a job to flat pending.
    -- KEYS[1] emq:{q}:job:<id>  the row
    -- KEYS[2] emq:{q}:pending
    -- ARGV[1] id
    -- ARGV[2] payload  opaque bytes
    -- returns 1 admitted | 0 duplicate | EMQKIND
    -- include: lane

`KEYS[3...]` and `ARGV[3...]` stand for any number from there on, none included. An include line is replaced by the text
of `include/<name>.lua`, each name once per script.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any

from echomq_worker.connector import Wire
from echomq_worker.errors import ConnectionLost, ScriptContract, ScriptMissing, ServerError, Unreachable

Call = tuple[str, Sequence[str | bytes], Sequence[Any]]
"""One call of a script: its name, its keys, its arguments."""

_INCLUDE = re.compile(r"^-- include: (\S+)$")
_SLOT = re.compile(r"^-- (KEYS|ARGV)\[(\d+)(\.\.\.)?\]\s+\S")
_SLOT_LIKE = re.compile(r"^--\s*(?:KEYS|ARGV)\b", re.IGNORECASE)
_RETURNS = re.compile(r"^-- returns \S")
_USED = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")
_COMMENT = re.compile(r"--.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A script as it is sent: `keys` and `args` count what its header names, a variadic tail not included."""

    name: str
    source: str
    sha: str
    keys: int
    keys_variadic: bool
    args: int
    args_variadic: bool

    def check(self, keys: Sequence[Any], args: Sequence[Any]) -> None:
        """Raise ScriptContract where a call has not as many keys and arguments as the header states."""
        for what, given, stated, variadic in (
            ("keys", len(keys), self.keys, self.keys_variadic),
            ("arguments", len(args), self.args, self.args_variadic),
        ):
            if given < stated or (given > stated and not variadic):
                more = " or more" if variadic else ""
                raise ScriptContract(f"script {self.name}: {given} {what}, its header states {stated}{more}")


@cache
def scripts() -> Mapping[str, Script]:
    """Every script of the package by name, read once; raises ScriptMissing or ScriptContract."""
    return load(files("echomq_worker") / "lua")


def load(folder: Traversable) -> Mapping[str, Script]:
    """Every `*.lua` of a folder by name, with what its `include` folder holds; raises ScriptMissing, ScriptContract."""
    if not folder.is_dir():
        raise ScriptMissing(f"scripts: the folder {folder} is not there")
    found = {name: _text(entry) for entry in folder.iterdir() if (name := _name(entry))}
    if not found:
        raise ScriptMissing(f"scripts: the folder {folder} holds no *.lua file")
    shared = folder / "include"
    includes = {name: _text(entry) for entry in shared.iterdir() if (name := _name(entry))} if shared.is_dir() else {}
    return MappingProxyType({name: parse(name, found[name], includes) for name in sorted(found)})


def _name(entry: Traversable) -> str:
    return entry.name.removesuffix(".lua") if entry.name.endswith(".lua") and entry.is_file() else ""


def _text(entry: Traversable) -> str:
    return entry.read_text(encoding="utf-8")


def parse(name: str, text: str, includes: Mapping[str, str]) -> Script:
    """A script from its text; raises ScriptContract naming the line that is wrong, ScriptMissing for an include."""
    header = _header(name, text)
    keys, keys_variadic = _slots(name, header, "KEYS")
    args, args_variadic = _slots(name, header, "ARGV")
    if not any(_RETURNS.match(line) for line in header):
        raise ScriptContract(f"script {name}: its header has no line such as '-- returns 1 admitted | 0 duplicate'")
    source = _expand(name, text, includes, set())
    for table, index in _USED.findall(_COMMENT.sub("", source)):
        stated, variadic = (keys, keys_variadic) if table == "KEYS" else (args, args_variadic)
        if not 1 <= int(index) <= stated and not (variadic and int(index) > stated):
            raise ScriptContract(f"script {name}: it uses {table}[{index}], its header states {stated}")
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, sha, keys, keys_variadic, args, args_variadic)


def _header(name: str, text: str) -> list[str]:
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    header = lines[:end]
    if not header or not re.match(rf"-- {re.escape(name)}: \S", header[0]):
        raise ScriptContract(f"script {name}, line 1: expected '-- {name}: what it promises'")
    for number, line in enumerate(header, 1):
        if _SLOT_LIKE.match(line) and not _SLOT.match(line):
            raise ScriptContract(f"script {name}, line {number}: expected '-- KEYS[1] meaning' or '-- ARGV[1] meaning'")
    return header


def _slots(name: str, header: Sequence[str], table: str) -> tuple[int, bool]:
    count, variadic = 0, False
    for number, line in enumerate(header, 1):
        match = _SLOT.match(line)
        if match is None or match[1] != table:
            continue
        if variadic:
            raise ScriptContract(f"script {name}, line {number}: nothing can follow {table}[{count + 1}...]")
        if int(match[2]) != count + 1:
            raise ScriptContract(f"script {name}, line {number}: {table}[{match[2]}], expected {table}[{count + 1}]")
        if match[3]:
            variadic = True
        else:
            count += 1
    return count, variadic


def _expand(name: str, text: str, includes: Mapping[str, str], seen: set[str]) -> str:
    lines: list[str] = []
    for line in text.splitlines():
        match = _INCLUDE.match(line)
        if match is None:
            lines.append(line)
            continue
        if match[1] not in includes:
            raise ScriptMissing(f"script {name}: include/{match[1]}.lua is not there")
        if match[1] not in seen:
            seen.add(match[1])
            lines.append(_expand(name, includes[match[1]], includes, seen))
    return "\n".join(lines)


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


async def evaluate_many(wire: Wire, calls: Sequence[Call]) -> list[Any]:
    """Run scripts in one round trip and return their replies in order, refusals and other errors in place.

    Where the server does not know a script, those calls alone are sent again with its text: they have not run. Where
    that does not reach the server any more it is ConnectionLost, as the replies of the others are lost with it.
    """
    checked = [_checked(name, keys, args) for name, keys, args in calls]
    replies = await wire.pipeline(
        [
            ("EVALSHA", script.sha, len(keys), *keys, *args)
            for script, (_, keys, args) in zip(checked, calls, strict=True)
        ]
    )
    unknown = [i for i, reply in enumerate(replies) if isinstance(reply, ServerError) and reply.code == "NOSCRIPT"]
    if unknown:
        texts = [("EVAL", checked[i].source, len(calls[i][1]), *calls[i][1], *calls[i][2]) for i in unknown]
        try:
            again = await wire.pipeline(texts)
        except Unreachable as error:
            if len(unknown) == len(calls):
                raise
            raise ConnectionLost(str(error)) from error
        for i, reply in zip(unknown, again, strict=True):
            replies[i] = reply
    return replies
