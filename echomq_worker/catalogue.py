"""The scripts of the package as values: found in its `lua` folder, their header contracts checked.

Source: protocol section 4. A header states what a script promises:

    -- enqueue: admits a job to flat pending.
    -- KEYS[1] emq:{q}:job:<id>  the row
    -- KEYS[2] emq:{q}:pending
    -- ARGV[1] id
    -- ARGV[2] payload  opaque bytes
    -- returns 1 admitted | 0 duplicate | EMQKIND
    -- include: lane

`KEYS[3...]` and `ARGV[3...]` stand for any number from there on, none included. An include line is replaced by the text
of `include/<name>.lua`, each name once per script; it stands where its functions are first needed, as a call makes all
that are on its way.
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

from echomq_worker.errors import ScriptContract, ScriptMissing

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
        if len(keys) == self.keys and len(args) == self.args:
            return
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
