"""Where a command belongs in a cluster, as a value. Every command that the package sends has its place in the table
here, on purpose; any other is an error, not a guess.

Source: the cluster's specification (a command belongs to the owner of its keys' slot), protocol section 1 (all keys of
a queue share one slot, and its channels bear its name).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from echomq_worker.errors import InvalidArgument, shown
from echomq_worker.keyspace import slot

ANY = -1
"""No key: any node can answer. In a pipeline it goes where the first command with a key goes."""
EVERY = -2
"""Every primary has to do it; one answer is made of theirs."""

# The key, or the first of keys that share a slot, is the first argument.
_KEY_FIRST = frozenset(
    {
        *("DEL", "EXISTS", "EXPIRE", "PERSIST", "PEXPIRE", "PTTL", "TTL", "TYPE", "UNLINK"),
        *("GET", "INCR", "SET", "STRLEN"),
        *("HDEL", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HPEXPIRE", "HPTTL", "HSET", "HSTRLEN"),
        *("LINDEX", "LLEN", "LPOS", "LPUSH", "LRANGE", "LREM", "LTRIM", "RPUSH"),
        *("SADD", "SCARD", "SISMEMBER", "SMEMBERS", "SMISMEMBER", "SREM"),
        *("ZADD", "ZCARD", "ZCOUNT", "ZLEXCOUNT", "ZMSCORE", "ZRANGE", "ZRANGEBYSCORE", "ZREM", "ZSCAN", "ZSCORE"),
    }
)
_SEVERAL_KEYS = frozenset({"DEL", "EXISTS", "UNLINK"})
_SCRIPTS = frozenset({"EVAL", "EVALSHA"})
_TWIN = "EMQ."
_NO_KEY = frozenset({"CLIENT", "CONFIG", "DISCARD", "ECHO", "EXEC", "INFO", "MULTI", "PING", "TIME"})
# Where the first two words decide.
_PAIRS = {("SCRIPT", "LOAD"): EVERY, ("PUBSUB", "CHANNELS"): ANY}
# A pattern whose hash tag holds no wildcard: all keys that match it share one slot.
_TAGGED = re.compile(rb"[^*?\[\]\\{}]*\{([^*?\[\]\\{}]+)\}.*", re.DOTALL)


def route(command: Sequence[Any]) -> int:
    """The slot of a command's keys or channel, ANY or EVERY. Raises InvalidArgument for a command without a place."""
    name = _word(command, 0)
    if name in _SCRIPTS or name.startswith(_TWIN):
        # The number of keys stands before the keys. A script without keys could run on any node, so it has no place
        # here.
        first = 3 if name in _SCRIPTS else 2
        if len(command) > first and str(command[first - 1]) != "0":
            return slot(_key(command[first]))
    elif name in _KEY_FIRST or name == "PUBLISH":
        if len(command) > 1:
            return slot(_key(command[1]))
    elif name in _NO_KEY:
        return ANY
    elif name == "DBSIZE":
        return EVERY
    elif name == "PUBSUB" and _word(command, 1) == "NUMSUB" and len(command) > 2:
        return slot(_key(command[2]))
    elif name == "SCAN":
        raise InvalidArgument("command SCAN: it has no place in a pipeline of a cluster, expected a call of its own")
    elif (name, _word(command, 1)) in _PAIRS:
        return _PAIRS[name, _word(command, 1)]
    raise InvalidArgument(f"command {shown(name)}: it is not known where in a cluster it belongs")


def routes(commands: Sequence[Sequence[Any]]) -> list[int]:
    """The routes of a pipeline's commands; those without a key go along with the first that has one.

    Raises InvalidArgument, also where a pipeline with MULTI has keys of several slots.
    """
    found = [route(command) for command in commands]
    first = next((where for where in found if where >= 0), ANY)
    found = [first if where == ANY else where for where in found]
    if is_transaction(commands) and len(set(found)) > 1:
        raise InvalidArgument("command MULTI: the keys behind it are of several slots, expected those of one")
    return found


def is_transaction(commands: Sequence[Sequence[Any]]) -> bool:
    """Whether a pipeline is a transaction, which is done as a whole or not at all."""
    return any(_word(command, 0) == "MULTI" for command in commands)


def may_be_asked(command: Sequence[Any]) -> bool:
    """Whether ASK may be followed: of a slot that moves key by key the new node answers for single keys only.

    Not for a script: it derives keys, and one that is still with the old node would look to it as if it were not there.
    """
    name = _word(command, 0)
    return name in _KEY_FIRST and not (name in _SEVERAL_KEYS and len(command) > 2)


def slot_of_pattern(pattern: str | bytes) -> int | None:
    """The slot that all keys like a glob pattern share, None where they need not share one."""
    tagged = _TAGGED.fullmatch(pattern.encode() if isinstance(pattern, str) else pattern)
    return None if tagged is None else slot(b"{" + tagged[1] + b"}")


def together(command: Sequence[Any], replies: Sequence[Any]) -> Any:
    """The one reply to a command that every primary has answered: the first error, else the sum of numbers, else the
    first.
    """
    for reply in replies:
        if isinstance(reply, Exception):
            return reply
    return sum(replies) if _word(command, 0) == "DBSIZE" else replies[0]


def _word(command: Sequence[Any], at: int) -> str:
    word = command[at] if at < len(command) else ""
    return (word.decode("ascii", "replace") if isinstance(word, bytes) else str(word)).upper()


def _key(value: Any) -> bytes:
    if isinstance(value, (bytes, memoryview)):
        return bytes(value)
    return str(value).encode("utf-8", "surrogateescape")
