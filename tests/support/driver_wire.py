"""The driver's wire: one blocking socket, many commands a write; and the scripts that it sends, ours and foreign ones.

Source: protocol section 4. Scripts are the package's own files, so that a test can also load them with one piece of
text changed (a mutation) and show that the driver notices. The foreign bodies are those of `tests.support.foreign`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import hiredis

from echomq_worker.script import parse
from tests.support import foreign
from tests.support.driver_audit import AUDIT
from tests.support.driver_operator import OPERATOR

LUA = Path(__file__).resolve().parents[2] / "lua"
_TIMEOUT_S = 30.0
_READ = 1 << 18

Packed = bytes

_FOREIGN = {
    "f:enqueue": foreign._ENQUEUE,
    "f:genqueue": foreign._GENQUEUE,
    "f:claim": foreign._CLAIM,
    "f:gclaim": foreign._GCLAIM,
    "f:complete": foreign._COMPLETE,
    "f:retry": foreign._RETRY,
    "f:delay": foreign._DELAY,
    "f:promote": foreign._PROMOTE,
    "f:reap": foreign._REAP,
    "f:reprocess": foreign._REPROCESS,
}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault put into a script or include (`include/lane`): the one place that says `text` becomes `becomes`."""

    file: str
    text: str
    becomes: str

    def apply(self, source: str) -> str:
        """The changed source; ValueError unless exactly one place of it says so."""
        if (count := source.count(self.text)) != 1:
            raise ValueError(f"mutation of {self.file}: {self.text!r} is there {count} times, expected once")
        return source.replace(self.text, self.becomes)


def sources(mutations: Sequence[Mutation] = (), folder: Path = LUA) -> Mapping[str, str]:
    """Every script by name as it is sent: the package's, `f:` the foreign client's, `op:` the operator's, `audit`."""
    found = folder.rglob("*.lua")
    texts = {path.relative_to(folder).as_posix().removesuffix(".lua"): path.read_text() for path in found}
    for mutation in mutations:
        texts[mutation.file] = mutation.apply(texts[mutation.file])
    includes = {name.removeprefix("include/"): text for name, text in texts.items() if name.startswith("include/")}
    ours = {name: parse(name, text, includes).source for name, text in texts.items() if "/" not in name}
    return {**ours, **_FOREIGN, **OPERATOR, "audit": AUDIT}


class Pipe:
    """A blocking connection on the server's unix socket: `send` commands, `receive` as many replies, in order."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_TIMEOUT_S)
        self._socket.connect(str(path))
        self._reader = hiredis.Reader()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, packed: Sequence[Packed]) -> None:
        """Write commands, all in one go."""
        self._socket.sendall(b"".join(packed))

    def receive(self, count: int) -> list[Any]:
        """The next `count` replies; an error reply stands in place as hiredis.ReplyError."""
        replies: list[Any] = []
        while len(replies) < count:
            reply = self._reader.gets()
            if reply is False:
                data = self._socket.recv(_READ)
                if not data:
                    raise ConnectionError("the server closed the driver's connection")
                self._reader.feed(data)
            else:
                replies.append(reply)
        return replies

    def call(self, *words: Any) -> Any:
        """One command and its reply; raises an error reply."""
        self.send([pack(words)])
        (reply,) = self.receive(1)
        if isinstance(reply, Exception):
            raise reply
        return reply


def pack(words: Sequence[Any]) -> Packed:
    """A command as it goes over the wire."""
    return cast("bytes", hiredis.pack_command(tuple(words)))


class Scripts:
    """The scripts on one server: loaded once, then sent by their digests."""

    def __init__(self, pipe: Pipe, texts: Mapping[str, str]) -> None:
        self._digests = {name: pipe.call("SCRIPT", "LOAD", text) for name, text in texts.items()}
        self.unused = set(self._digests)
        """The names of those that were never sent."""

    def __call__(self, name: str, keys: Sequence[str], values: Sequence[Any]) -> Packed:
        """One call of a script, packed."""
        self.unused.discard(name)
        return pack(("EVALSHA", self._digests[name], len(keys), *keys, *values))
