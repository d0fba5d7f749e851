"""Traced: an admission as a script call, and what it becomes when its rows are to say which span they come from.

Source: decision 0040 (the row field `trace`), script `admit_traced`. A producer's verb is known by the script that it
sends. Values, no input or output: who sends is `tracing`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from echomq_worker.catalogue import scripts
from echomq_worker.errors import KindRefused

_QUEUE = re.compile(r"emq:\{([^}]*)\}:")
_STRIDE = 8
_REFUSED = -1
_NOW = ("", "", "", "", "", "")

Job = tuple[Any, ...]
"""id, payload, group, mode, value, dedup key, its time to live, expires: as `admit_many` takes it."""


class Admission:
    """One call that admits jobs: `ids` in `queue`. `admitted` and `error` are what its reply said."""

    __slots__ = ("_args", "_jobs", "_keys", "_name", "admitted", "error", "ids", "queue")

    def __init__(self, name: str, queue: str, keys: Sequence[Any], args: Sequence[Any]) -> None:
        self.queue = queue
        self.admitted = 0
        self.error: Exception | None = None
        self._name = name
        self._keys = keys
        self._args = args
        read = _READ.get(name)
        self._jobs = None if read is None else read(args)
        self.ids = [_text(args[0])] if self._jobs is None else [_text(job[0]) for job in self._jobs]

    def told(self, trace: str, *, text: bool = False) -> tuple[Any, ...]:
        """The command to send, with `trace` for its rows ('': none), as EVALSHA or with the script's text."""
        name, keys, args = self._name, self._keys, self._args
        if trace and self._jobs is not None:
            base = f"emq:{{{self.queue}}}:"
            name, keys = "admit_traced", (f"{base}pending", f"{base}schedule")
            args = (base, trace, *(value for job in self._jobs for value in job))
        elif trace and name == "flow_child":
            args = (*args[:4], *(args[4:] or ("fp", "")), trace)
        elif trace:
            args = (*args, "trace", trace)
        script = scripts()[name]
        return (*(("EVAL", script.source) if text else ("EVALSHA", script.sha)), len(keys), *keys, *args)

    def answered(self, reply: Any) -> Any:
        """What the caller's own script would have answered."""
        if isinstance(reply, Exception):
            self.error = reply
            return reply
        verdicts = reply if isinstance(reply, list) else [reply]
        self.admitted = sum(verdict == 1 for verdict in verdicts)
        if self._name in _MANY or not isinstance(reply, list):
            return reply
        if reply[0] == _REFUSED:
            self.error = KindRefused("EMQKIND job id must be JOB-namespaced")
            return self.error
        return reply[0]


def admission_of(command: Sequence[Any]) -> Admission | None:
    """The admission that a command is; None for any other."""
    if command[0] not in {"EVALSHA", "EVAL"}:
        return None
    name = _names().get(command[1])
    if name is None:
        return None
    keys, args = command[3 : 3 + command[2]], command[3 + command[2] :]
    match = _QUEUE.match(_text(keys[0]))
    return None if match is None or not args else Admission(name, match[1], keys, args)


@cache
def _names() -> Mapping[str, str]:
    """The script that admits, by its hash and by its text."""
    found = {name: scripts()[name] for name in (*_READ, *_FLOWS)}
    return {key: name for name, script in found.items() for key in (script.sha, script.source)}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _pairs(args: Sequence[Any]) -> list[Job]:
    return [(args[at], args[at + 1], *_NOW) for at in range(1, len(args) - 1, 2)]


def _eights(args: Sequence[Any]) -> list[Job]:
    return [tuple(args[at : at + _STRIDE]) for at in range(1, len(args), _STRIDE)]


_READ: Mapping[str, Callable[[Sequence[Any]], list[Job]]] = {
    "enqueue": lambda args: [(args[0], args[1], *_NOW)],
    "schedule": lambda args: [(args[0], args[1], "", args[2], args[3], "", "", "")],
    "lane_enqueue": lambda args: [(args[0], args[1], args[2], *_NOW[1:])],
    "enqueue_many": _pairs,
    "admit_many": _eights,
}
_MANY = {"enqueue_many", "admit_many"}
_FLOWS = ("flow_child", "flow_hold")
