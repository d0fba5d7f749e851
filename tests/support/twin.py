"""A script and its native twin on the same keyspace: the one in database 0, the other in database 1 of one server.

Source: protocol section 7 (native twins). Blocking, through clients of the tests' own; names of keys are those of queue
`q`, without their `emq:{q}:`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import redis

from echomq_worker.catalogue import scripts
from echomq_worker.keyspace import Keys
from echomq_worker.twins import TWINS
from tests.support.keyspace import Value, text
from tests.support.plain import QUEUE, State
from tests.support.valkey import ValkeyServer

BASE = Keys(QUEUE).base
_LATELY_MS = 10_000
# From here on a score may have been priced on the clock; what an example begins with lies far from any such.
_CLOCK_MS = 1_500_000_000_000
_SNAPSHOT = """
local found = {}
local read = {
  hash = function(key) return redis.call('HGETALL', key) end,
  zset = function(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end,
  list = function(key) return redis.call('LRANGE', key, 0, -1) end,
  set = function(key) return redis.call('SMEMBERS', key) end,
  string = function(key) return redis.call('GET', key) end,
}
for i, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  found[i] = {key, kind, redis.call('PTTL', key), read[kind](key)}
end
return found
"""


@dataclass(frozen=True, slots=True)
class Verb:
    """One call: the script's name, keys without `emq:{q}:`, arguments."""

    name: str
    keys: tuple[str, ...]
    args: tuple[Any, ...]

    def with_args(self, *args: Any) -> Verb:
        """The same call with other arguments."""
        return replace(self, args=args)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call answered, an error as `!text`, and the keyspace after; what expires with the milliseconds left."""

    reply: Any
    state: State
    expiring: dict[str, int]


def decoded(reply: Any) -> Any:
    """A reply with its bytes as text."""
    if isinstance(reply, bytes):
        return text(reply)
    return [decoded(one) for one in reply] if isinstance(reply, list) else reply


def short(name: bytes | str) -> str:
    """A key's name without its `emq:{q}:`."""
    return text(name).removeprefix(BASE)


def snapshot(client: redis.Redis) -> tuple[State, dict[str, int]]:
    """Every key of the database and its value, and what expires; one round trip."""
    ask: Any = client.eval
    found = sorted(ask(_SNAPSHOT, 0))
    state = {short(name): _value(text(kind), value) for name, kind, _ttl, value in found}
    return state, {short(name): ttl for name, _kind, ttl, _value_ in found if ttl >= 0}


def _value(kind: str, value: Any) -> Value:
    if kind == "string":
        return text(value)
    words = [text(one) for one in value]
    if kind == "hash":
        return dict(zip(words[::2], words[1::2], strict=True))
    if kind == "zset":
        return {member: float(score) for member, score in zip(words[::2], words[1::2], strict=True)}
    return set(words) if kind == "set" else words


class Twins:
    """Both ways of a call, over two databases of one server that has the module."""

    def __init__(self, server: ValkeyServer) -> None:
        self._scripted, self._native = (redis.Redis(port=server.port, db=db) for db in (0, 1))

    def close(self) -> None:
        """Close both connections."""
        self._scripted.close()
        self._native.close()

    def script(self, state: State, verb: Verb, *, full: bool = False, source: str | None = None) -> Outcome:
        """What the script makes of it, or another `source`; on a `full` server at its maxmemory."""
        text = source or scripts()[verb.name].source
        words = ("EVAL", text, len(verb.keys), *(BASE + key for key in verb.keys), *verb.args)
        return self._run(self._scripted, state, words, full=full)

    def command(self, state: State, verb: Verb, name: str | None = None, *, full: bool = False) -> Outcome:
        """What its twin makes of it, or the command `name`; on a `full` server at its maxmemory."""
        return self._run(self._native, state, self._words(verb, name), full=full)

    def _words(self, verb: Verb, name: str | None = None) -> tuple[Any, ...]:
        return (
            name or TWINS.get(verb.name, f"EMQ.{verb.name.upper()}"),
            len(verb.keys),
            *(BASE + key for key in verb.keys),
            *verb.args,
        )

    def raw(self, state: State, *words: Any) -> Outcome:
        """Any command on the twin's side, PING where none is given."""
        return self._run(self._native, state, words or ("PING",))

    def again(self, verb: Verb) -> Any:
        """One more command, on what stands on the twin's side: its reply, an error as `!text`."""
        client: Any = self._native
        try:
            return decoded(client.execute_command(*self._words(verb)))
        except redis.ResponseError as error:
            return f"!{error}"

    def replicated(self) -> None:
        """Return when a replica has what was written on the twin's side. AssertionError after 60 s."""
        assert self._native.wait(1, 60_000) == 1, "no replica has it all"

    def now(self) -> Outcome:
        """What stands on the twin's side; its reply is None."""
        return Outcome(None, *snapshot(self._native))

    def _run(self, client: Any, state: State, words: Sequence[Any], *, full: bool = False) -> Outcome:
        pipe = client.pipeline(transaction=False)
        pipe.flushdb()
        put(pipe, state)
        if full:
            pipe.config_set("maxmemory", 1)
        pipe.execute_command(*words)
        pipe.config_set("maxmemory", 0)
        *_before, answer, _after = pipe.execute(raise_on_error=False)
        reply = f"!{_said(answer)}" if isinstance(answer, redis.ResponseError) else decoded(answer)
        return Outcome(reply, *snapshot(client))


def _said(error: redis.ResponseError) -> str:
    """Its text; a pipeline puts the command in front."""
    return re.sub(r"^Command # \\d+ .*? of pipeline caused error: ", "", str(error), flags=re.DOTALL)


def put(pipe: Any, state: Mapping[str, Any]) -> None:
    """Write keys as Queue.put does, in a pipeline."""
    for name, value in state.items():
        key = BASE + name
        if isinstance(value, dict) and all(isinstance(one, int | float) for one in value.values()):
            if value:
                pipe.zadd(key, value)
        elif isinstance(value, dict):
            pipe.hset(key, mapping=value)
        elif isinstance(value, list):
            pipe.rpush(key, *value)
        elif isinstance(value, set):
            pipe.sadd(key, *value)
        else:
            pipe.set(key, value)


def assert_alike(scripted: Outcome, native: Outcome) -> None:
    """The same reply and the same keyspace, with times that were read from the clock moments apart."""
    assert scripted.reply == native.reply
    assert scripted.state.keys() == native.state.keys()
    for name, expected in scripted.state.items():
        assert _close(expected, native.state[name]), f"{name}: {expected} by the script, {native.state[name]} natively"
    assert scripted.expiring.keys() == native.expiring.keys()
    for name, left in scripted.expiring.items():
        assert abs(left - native.expiring[name]) < _LATELY_MS, name


def _close(one: Any, other: Any) -> bool:
    if not (isinstance(one, dict) and isinstance(other, dict)) or one.keys() != other.keys():
        return bool(one == other)
    return all(_near(value, other[name]) for name, value in one.items())


def _near(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and one > _CLOCK_MS:
        return abs(one - other) < _LATELY_MS
    if isinstance(one, str) and isinstance(other, str) and one.isdigit() and other.isdigit():
        return one == other or _near(float(one), float(other))
    return bool(one == other)
