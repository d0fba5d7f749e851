"""The schedule of faults: a value that is made from the seed up front, without I/O.

Source: issue "The five promises" (the seed reproduces the fault schedule). Kinds are dealt like cards: every kind comes
once before one comes twice, so that a short run meets many of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.chaos.roles import role_of

Scope = Literal["worker", "link", "server"]
"""What a fault happens to: the processes of a worker, the connections of a worker or of the producers, the server."""

SERVER, PRODUCERS = "server", "producers"
SCRIPTS = ("claim_many", "settle", "keep", "reap", "promote", "repeat_fire", "flow_deliver")
PRODUCER_SCRIPTS = ("enqueue", "schedule", "lane_enqueue", "admit_many", "flow_hold", "flow_child")
_NEVER_MS = 0
# The first fault waits until workers work, the last ends before the end.
_START_MS = 5_000
_END_MS = 3_000

ANSWERS = {
    "answer_loading": "LOADING the dataset is in memory only a little later",
    "answer_readonly": "READONLY You can't write against a read only replica.",
    "answer_masterdown": "MASTERDOWN Link with MASTER is down",
    "answer_unblocked": "UNBLOCKED force unblock from blocking operation",
    "answer_oom": "OOM command not allowed when used memory > 'maxmemory'.",
    "answer_noscript": "NOSCRIPT No matching script.",
    "answer_clusterdown": "CLUSTERDOWN The cluster is down",
    "answer_moved": "MOVED 1 127.0.0.1:1",
    "answer_busy": "BUSY the server is busy running a script",
}
"""Error replies that the proxy gives in the server's place, by the kind of the fault."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: what it happens to, and how long it lasts, in leases (0, 0: a moment)."""

    name: str
    scope: Scope
    shortest: float = _NEVER_MS
    longest: float = _NEVER_MS


KINDS: tuple[Kind, ...] = (
    Kind("kill", "worker"),
    Kind("deploy", "worker"),
    Kind("freeze_short", "worker", 0.05, 0.3),
    Kind("freeze_long", "worker", 1.1, 2.0),
    Kind("clock_step", "worker"),
    Kind("delay", "link", 0.3, 1.5),
    Kind("blackhole", "link", 0.1, 1.6),
    Kind("refuse", "link", 0.1, 1.2),
    Kind("reset", "link"),
    Kind("close", "link"),
    Kind("cut", "link"),
    Kind("lose_reply", "link"),
    Kind("lose_reply_hang", "link"),
    *(Kind(name, "link") for name in ANSWERS),
    Kind("server_restart", "server"),
    Kind("server_kill", "server", 0.0, 0.8),
    Kind("server_freeze", "server", 0.1, 1.5),
    Kind("script_flush", "server"),
    Kind("client_kill_normal", "server"),
    Kind("client_kill_pubsub", "server"),
    Kind("client_pause", "server", 0.05, 1.2),
)
FORGET = Kind("server_forget", "server")
"""A restart without the append-only file: a scenario of its own."""

_NEEDS_FILE = frozenset({"server_restart", "server_kill"})
_BY_NAME = {kind.name: kind for kind in (*KINDS, FORGET)}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the plan: `at_ms` from the beginning, for `for_ms` (0: a moment).

    `target` is `server`, `producers`, or a worker's number as text. `script` and `nth` choose a command, `amount` is
    in ms (a delay, a step of the clock) or bytes (a cut), `pick` in 0..1 chooses one of several processes.
    """

    at_ms: int
    kind: str
    target: str
    for_ms: int = 0
    script: str = ""
    nth: int = 1
    amount: int = 0
    pick: float = 0.0

    def __str__(self) -> str:
        words = [f"{self.at_ms / 1000:9.3f} s", f"{self.target:>9}", self.kind]
        if self.for_ms:
            words.append(f"for {self.for_ms} ms")
        if self.script:
            words.append(f"{self.script} no. {self.nth}")
        if self.amount:
            words.append(f"({self.amount})")
        return "  ".join(words)


def scope_of(kind: str) -> Scope:
    """What faults of a kind happen to. Raises KeyError for an unknown kind."""
    return _BY_NAME[kind].scope


def make_plan(
    seed: int, *, length_ms: int, workers: int, lease_ms: int, faults: int, forget: bool = False
) -> list[Fault]:
    """The faults of a run, in order of time: the same for the same arguments.

    `forget`: the server keeps no file; it forgets everything once, half-way, and is not restarted otherwise.
    """
    dice = random.Random(f"faults {seed}")
    kinds = [kind for kind in KINDS if not (forget and kind.name in _NEEDS_FILE)]
    span_ms = max(1, length_ms - _START_MS - _END_MS)
    moments = sorted(_START_MS + dice.randrange(span_ms) for _ in range(faults))
    plan = [
        _fault(dice, moment, kind, workers=workers, lease_ms=lease_ms)
        for moment, kind in zip(moments, _dealt(dice, kinds), strict=False)
    ]
    if forget:
        plan.append(Fault(length_ms // 2, FORGET.name, SERVER))
        plan.sort(key=lambda fault: fault.at_ms)
    return plan


def _dealt(dice: random.Random, kinds: Sequence[Kind]) -> Iterator[Kind]:
    while True:
        deck = list(kinds)
        dice.shuffle(deck)
        yield from deck


def _fault(dice: random.Random, at_ms: int, kind: Kind, *, workers: int, lease_ms: int) -> Fault:
    target = _target(dice, kind, workers)
    for_ms = round(dice.uniform(kind.shortest, kind.longest) * lease_ms)
    script, nth, amount = "", 1, 0
    if kind.name in ANSWERS or kind.name.startswith("lose_reply"):
        script, nth = _command(dice, kind.name, target), dice.randint(1, 5)
    elif kind.name == "cut":
        amount = dice.choice((1, 3, 17, 120, 1_500))
    elif kind.name == "delay":
        # Below what the keeper of leases waits for a reply, a quarter of a lease.
        amount = dice.randint(5, max(6, lease_ms // 5))
    elif kind.name == "clock_step":
        amount = dice.choice((-86_400_000, -3_600_000, -1_500, 1_500, 3_600_000, 86_400_000))
    return Fault(at_ms, kind.name, target, for_ms, script, nth, amount, round(dice.random(), 3))


def _target(dice: random.Random, kind: Kind, workers: int) -> str:
    if kind.scope == "server":
        return SERVER
    if kind.name == "clock_step":
        stepped = [str(number) for number in range(workers) if role_of(number).stepped]
        return dice.choice([PRODUCERS, *stepped])
    if kind.scope == "link" and dice.random() < 1 / (workers + 1):
        return PRODUCERS
    return str(dice.randrange(workers))


def _command(dice: random.Random, kind: str, target: str) -> str:
    if target == PRODUCERS:
        return dice.choice(PRODUCER_SCRIPTS)
    # What blocks is BLPOP, and that is what a server unblocks.
    return "BLPOP" if kind == "answer_unblocked" else dice.choice(SCRIPTS)
