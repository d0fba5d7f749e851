"""Users on the server: the least set of commands, keys and channels for a producer, a worker and an operator.

Source: issue "The five promises", Topologies. What scripts call is read from the scripts; what this package sends by
itself stands here. That nothing lacks and nothing is more than needed is shown with a real server
(tests/edges/test_acl_suites.py).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TypeVar

from echomq_worker.errors import ConfigError, shown
from echomq_worker.keyspace import FENCE_KEY, Keys
from echomq_worker.script import scripts
from echomq_worker.twins import REQUEUE, RESCHEDULE, TWINS

# `redis.call('HGET', …`, and the helpers of lua/include that take a command's name.
_CALLED = re.compile(r"(?:\bp?call\(|(?:ask|call)_chunked\(|find_lanes\(work,)\s*'([A-Z]+)'")
_COMMENT = re.compile(r"--.*$", re.MULTILINE)
_USER = re.compile(r"[A-Za-z0-9._-]{1,128}")

# The word for the commands of the module, which a server without it does not take in a rule.
NATIVE = "native"
# They stand in for no script.
_ALONE = {"worker": (REQUEUE,), "operator": (RESCHEDULE, REQUEUE)}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Role:
    """What one kind of user does: the scripts that it runs, and the commands that it sends besides, as ACL names them.

    `writes_fence`: it may write the fence of a deployment that has none; the others can only read it.
    """

    scripts: tuple[str, ...]
    commands: tuple[str, ...]
    writes_fence: bool = False


# What every connection sends: its name, the fence, scripts by their hash and by their text.
_CONNECTION = ("client|setname", "get", "evalsha", "eval")
_REPORTS = ("flow_deliver", "flow_deliver_death")
_HANDS = ("claim_many", "settle", "keep", "look", "release", "disown", "repeat_fire", "cron_fire")


@cache
def roles() -> Mapping[str, Role]:
    """The roles by name."""
    return MappingProxyType(
        {
            "producer": Role(
                (
                    *(
                        "enqueue",
                        "schedule",
                        "enqueue_many",
                        "admit_many",
                        "admit_traced",
                        "lane_enqueue",
                        "flow_child",
                        "flow_hold",
                    ),
                    *("repeat_register", "cron_register", "repeat_cancel", *_REPORTS),
                ),
                # Flows look before they add, and read what children have returned; Repeat reads its registry.
                ("hmget", "hexists", "lrange", "hgetall", "hkeys", "zcard", "zrange", "zmscore"),
            ),
            "worker": Role(
                (
                    *(*_HANDS, "reap", "promote", "recount", "extend_lock", "update_progress", "add_log"),
                    *("remove_job", "flow_set_aside", *_REPORTS),
                ),
                (
                    *("blpop", "lpush", "pexpire", "ltrim", "client|id", "client|unblock"),  # parking
                    *("subscribe", "publish", "ping"),  # requests to cancel, events, health
                    *("script|load", "time", "role"),  # at the start
                    *("zrangebyscore", "zrange", "zmscore", "zcard", "lrange", "lrem", "hmget"),  # the Pump
                    *("hgetall", "hkeys"),  # a flow's parent reads its children
                    *("llen", "hexists", "zcount"),  # a burst looks whether anything is left
                    "hget",  # tracing asks the rows of a claim
                ),
            ),
            # All scripts that other clients run, too; not those by which a worker of ours takes and ends jobs.
            "operator": Role(
                tuple(name for name in scripts() if name not in _HANDS),
                (
                    *("subscribe", "ping", "time", "info", "dbsize", "scan", "zscan"),
                    *("smembers", "zcount", "lrange", "zrange", "hkeys", "hgetall", "zmscore", "del"),
                ),
                writes_fence=True,
            ),
        }
    )


@cache
def extras() -> Mapping[str, tuple[str, ...]]:
    """Commands that only some deployments need, by the word that `--also` takes."""
    return MappingProxyType(
        {
            # A URL that names a database other than 0.
            "database": ("select",),
            "cluster": ("asking", "cluster|slots", "role"),
            # On the primary and its replicas; the sentinels have users of their own.
            "sentinel": ("role",),
            # Wire 6 and auto. What a role may send beside it depends on its scripts, see `commands`.
            NATIVE: ("command|list", "command|docs"),
            # A worker that answers /metrics reads its queues.
            "metrics": ("hget", "smembers"),
            # How long payloads are, and which lanes are paused.
            "dashboard": ("hstrlen", "smismember"),
            # The worker's look at maxmemory_policy. Not CONFIG GET: whoever may send that reads passwords, too.
            "eviction": ("info",),
        }
    )


def called(name: str) -> frozenset[str]:
    """The commands that a script calls, in lower case."""
    source = _COMMENT.sub("", scripts()[name].source)
    return frozenset(found.lower() for found in _CALLED.findall(source))


def commands(names: Collection[str], also: Collection[str] = ()) -> list[str]:
    """Every command that the server has to permit to a user of these roles, sorted. Raises ConfigError for a name that
    is none.
    """
    found = set(_CONNECTION)
    for name in names:
        role = _known("role", name, roles())
        found.update(role.commands, *(called(script) for script in role.scripts))
        if role.writes_fence:
            found.add("set")
        if NATIVE in also:
            twins = [TWINS[script] for script in role.scripts if script in TWINS]
            found.update(command.lower() for command in (*twins, *_ALONE.get(name, ())))
    for word in also:
        found.update(_known("--also", word, extras()))
    return sorted(found)


def rules(
    names: Collection[str], queues: Sequence[str] = (), *, also: Collection[str] = (), password: str | None = None
) -> list[str]:
    """What `ACL SETUSER <user>` is given: from nothing to exactly what these roles need on these queues (none: all).

    Without a password nobody can log in; of one only its SHA-256 is in the answer. Raises ConfigError,
    InvalidQueueName.
    """
    allowed = commands(names, also)
    fence = "~" if any(roles()[name].writes_fence for name in names) else "%R~"
    bases = [Keys(queue).base for queue in queues] or ["emq:{*}:"]
    login = [] if password is None else [f"#{hashlib.sha256(password.encode()).hexdigest()}"]
    return [
        *("reset", "on", *login),
        *(f"~{base}*" for base in bases),
        f"{fence}{FENCE_KEY}",
        *(f"&{base}*" for base in bases),
        *(f"+{command}" for command in allowed),
    ]


def check_user(name: str) -> str:
    """A name of a user that needs no quotes anywhere; ConfigError for another."""
    if _USER.fullmatch(name) is None:
        raise ConfigError(f"user {shown(name)}: expected 1..128 of A-Z a-z 0-9 . _ -")
    return name


def _known(what: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise ConfigError(f"{what} {shown(name)}: expected one of {', '.join(known)}")
    return known[name]
