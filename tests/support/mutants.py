"""Mutants: a script with some text replaced, sent in place of the package's own.

Nothing of the package is changed: what a wire sends is exchanged on its way.

Source: issue "Every control" ("each can fail: prove it by mutating the script it covers").
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from echomq_worker.connector import Wire
from echomq_worker.script import Script, scripts


def mutated(name: str, old: str, new: str) -> Script:
    """A script of the package, its includes in place, with `old` replaced by `new` wherever it stands."""
    script = scripts()[name]
    assert old in script.source, f"script {name}: {old!r} does not stand in it any more, expected a mutation that fits"
    source = script.source.replace(old, new)
    return dataclasses.replace(
        script, source=source, sha=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    )


class MutantWire:
    """A wire on which some scripts are others than the package sends."""

    def __init__(self, wire: Wire, mutants: Sequence[Script]) -> None:
        self._wire = wire
        self._instead: Mapping[str, str] = {
            text: mutant_text
            for mutant in mutants
            for text, mutant_text in (
                (scripts()[mutant.name].sha, mutant.sha),
                (scripts()[mutant.name].source, mutant.source),
            )
        }

    async def call(self, *args: Any) -> Any:
        """As the wire has it, but for the script."""
        return await self._wire.call(*self._exchanged(args))

    async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """As the wire has it, but for the scripts."""
        return await self._wire.pipeline([self._exchanged(command) for command in commands])

    def _exchanged(self, command: Sequence[Any]) -> Sequence[Any]:
        if command[0] not in {"EVALSHA", "EVAL"} or command[1] not in self._instead:
            return command
        return command[0], self._instead[command[1]], *command[2:]
