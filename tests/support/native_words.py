"""Random calls of the module's commands, and random states for them: right, nearly right, and nonsense.

Source: issue "The native twins" (random calls: arity, types, huge and negative numbers, binary ids, missing rows). What
a command takes is read from its script's header.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from echomq_worker.catalogue import scripts
from echomq_worker.keyspace import Keys
from echomq_worker.twins import TWINS
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, job

Word = bytes | str | int
Words = Sequence[Word]

BASE = Keys("q").base
IDS: list[Word] = [*(job(n) for n in range(1, 7)), "USR00000000001", "JOB", "", b"JOB\x00\xff\r\n", "J" * 300]
GROUPS: list[Word] = [GROUP, OTHER_GROUP, "", b"\xff\x00"]
TOKENS: list[Word] = ["1", "1:ab", "2", "1:zz", "", ":", "1:", "9" * 40, b"1\x00:ab", "one"]
NUMBERS: list[Word] = [
    1,
    2,
    3,
    100,
    30_000,
    0,
    -1,
    -(2**63),
    2**63 - 1,
    2**63,
    10**30,
    2**53 + 1,
    "1.5",
    "nan",
    "inf",
    "",
    "x",
    b"\x00",
    " 1",
    "1e3",
]
MODES: list[Word] = ["in", "at", "", "on", "IN", b"in\x00"]
VERDICTS: list[Word] = ["c", "v", "r", "d", "", "x"]
TOLD: list[Word] = ["sq:fp", "sq:id", "xq:fp", "xq:id", "xq", "::", "xq:", ""]
TEXTS: list[Word] = ["x", "", b"\x00\xff", "y" * 70_000]

_SLOT = re.compile(r"^-- (KEYS|ARGV)\[\d+(\.\.\.)?\]\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a command takes: its keys as the header has them, the names of its arguments, whether more may follow."""

    command: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    more: bool


def shapes() -> list[Shape]:
    """One for each command, those without a script too."""
    found = [
        Shape("EMQ.RESCHEDULE", ("emq:{q}:job:<id>", "emq:{q}:schedule"), ("id", "mode", "value"), more=False),
        Shape("EMQ.REQUEUE", ("emq:{q}:job:<id>", "emq:{q}:active", "emq:{q}:pending"), ("id", "token"), more=False),
    ]
    for name, command in sorted(TWINS.items()):
        slots = _SLOT.findall(scripts()[name].source)
        keys = tuple(word for table, more, word in slots if table == "KEYS" and not more)
        args = tuple(word for table, more, word in slots if table == "ARGV" and not more)
        found.append(Shape(command, keys, args, any(more for table, more, _word in slots if table == "ARGV")))
    return found


# By the argument's name: any value, and how many of the first ones are right.
_KINDS: dict[str, tuple[Sequence[Word], int]] = {
    "id": (IDS, 6),
    "token": (TOKENS, 2),
    "held": (TOKENS, 2),
    "random": (["ab", "cd", "", "x y", b"\x00"], 2),
    "mode": (MODES, 2),
    "group": (GROUPS, 2),
    "payload": (TEXTS, 3),
    "error": (TEXTS, 3),
}


class Caller:
    """Draws calls and states from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._shapes = shapes()

    def call(self) -> Words:
        """A call: three of four as the header has it, with any values; else something near it, or nonsense."""
        one = self._random
        shape = one.choice(self._shapes)
        words = self._right(shape)
        if one.random() < 0.75:
            return words
        spoil = one.choice([self._cut, self._more, self._other_word, self._other_count, self._nonsense])
        return spoil(list(words))

    def _mostly(self, values: Sequence[Word], right: int) -> Word:
        """One of the first `right` values; of twenty, one is any."""
        return self._random.choice(values[:right] if self._random.random() < 0.95 else values)

    def _right(self, shape: Shape) -> Words:
        one = self._random
        chosen: dict[str, Word] = {"id": self._mostly(IDS, 6)}
        chosen["group"] = self._mostly(GROUPS, 2)
        args: list[Word] = [self._arg(name, chosen) for name in shape.args]
        keys = [self._key(name, chosen) for name in shape.keys]
        if shape.more and one.random() < 0.9:
            args += self._tail(shape.command)
        return [shape.command, len(keys), *keys, *args]

    def _key(self, name: str, chosen: dict[str, Word]) -> bytes:
        def filled(match: re.Match[str]) -> str:
            word = chosen.get(match[1], "c")
            return word.decode("latin-1") if isinstance(word, bytes) else str(word)

        return re.sub(r"<(\w+)>", filled, name).encode("latin-1")

    def _arg(self, name: str, chosen: dict[str, Word]) -> Word:
        one = self._random
        if name in {"emq:{q}:", "emq:{q}:job:"}:
            return name if one.random() < 0.95 else one.choice(["emq:{p}:", "", "emq:{q}"])
        if name in chosen:
            return chosen[name]
        # Mostly what a command takes: it is to get far.
        return self._mostly(*_KINDS.get(name.strip("`,"), (NUMBERS, 5)))

    def _tail(self, command: str) -> list[Word]:
        one = self._random
        groups: dict[str, Callable[[], list[Word]]] = {
            "EMQ.SETTLE": self._verdict,
            "EMQ.ADMIT.MANY": self._admission,
            "EMQ.ENQUEUE.MANY": lambda: [self._mostly(IDS, 6), one.choice(TEXTS[:3])],
            "EMQ.RETRY": lambda: [one.choice(TOLD), *one.choices(IDS, k=2)],
            "EMQ.COMPLETE": lambda: [one.choice(IDS), one.choice(TEXTS), one.choice(["xq", ""]), "other"],
            "EMQ.REPROCESS": lambda: [one.choice(["force", ""])],
        }
        pair = groups.get(command, lambda: [self._mostly(IDS, 6), self._mostly(TOKENS, 2)])
        words = [word for _ in range(one.choice([1, 1, 2, 5, 40])) for word in pair()]
        return words[: one.randrange(len(words))] if one.random() < 0.03 else words

    def _verdict(self) -> list[Word]:
        one = self._random
        kind = one.choice(VERDICTS[:4] if one.random() < 0.995 else VERDICTS)
        head: list[Word] = [kind, self._mostly(IDS, 6), self._mostly(TOKENS, 2), one.choice(["", GROUP])]
        numbers = [one.choice(NUMBERS[:6] if one.random() < 0.99 else NUMBERS) for _ in range(2)]
        tails: dict[Word, list[Word]] = {"v": ["r"], "r": [*numbers, "why"], "d": [one.choice(MODES[:2]), numbers[0]]}
        return head + tails.get(head[0], [])

    def _admission(self) -> list[Word]:
        one = self._random
        what: list[Word] = [self._mostly(IDS, 6), one.choice(TEXTS[:3]), one.choice(["", "", *GROUPS])]
        when: list[Word] = [one.choice(["", "in", "at"]), one.choice(NUMBERS[:6])]
        rest: list[Word] = [one.choice(["", "k"]), one.choice(["", "1000"]), one.choice(["", "in:5000", "at:7"])]
        words = what + when + rest
        if one.random() < 0.02:
            words[one.randrange(8)] = one.choice([*NUMBERS, *MODES, "in:", "at:x"])
        return words

    # ---- what is wrong with a call ----

    def _cut(self, words: list[Word]) -> Words:
        return words[: self._random.randrange(1, len(words) + 1)]

    def _more(self, words: list[Word]) -> Words:
        return [*words, *self._random.choices(TEXTS + NUMBERS, k=self._random.randrange(1, 4))]

    def _other_word(self, words: list[Word]) -> Words:
        at = self._random.randrange(1, len(words)) if len(words) > 1 else 0
        words[at] = self._random.choice([*IDS, *NUMBERS, *TOKENS, *TEXTS, "emq:{q}:", f"{BASE}pending"])
        return words

    def _other_count(self, words: list[Word]) -> Words:
        words[1:2] = [self._random.choice(NUMBERS)]
        return words

    def _nonsense(self, words: list[Word]) -> Words:
        pool = [*IDS, *NUMBERS, *TOKENS, *MODES, *TEXTS]
        return [words[0], *self._random.choices(pool, k=self._random.randrange(12))]

    # ---- what the calls find ----

    def change(self) -> Words:
        """A plain command that changes the queue, for the better or the worse."""
        drawn = self._random.random()
        if drawn < 0.01:
            return ["FLUSHDB"]
        if drawn < 0.018:
            return self._other_type()
        return self._random.choice([self._row, self._row, self._member, self._member, self._counter, self._family])()

    def _id(self) -> Word:
        return self._random.choice(IDS[:6])

    def _row(self) -> Words:
        one = self._random
        states = ["active", "active", "pending", "scheduled", "dead", "awaiting_children", ""]
        words: list[Word] = ["HSET", f"{BASE}job:{self._id()!s}", "state", one.choice(states), "attempts"]
        words.append(self._mostly(["1", "2", *map(str, NUMBERS)], 1))
        values: dict[str, Sequence[Word]] = {
            "payload": TEXTS[:3],
            "group": GROUPS,
            "held": ["1:ab", "1:zz"],
            "settled": ["1:dead", "1:scheduled", "1:delayed", "1", "1:"],
            "crashes": ["1:1", "2:1", "x", "9:9", ":"],
            "failures": NUMBERS,
            "stalled": NUMBERS,
            "dedup": ["k", ""],
            "cancel": ["no", ""],
            "expires_at": NUMBERS,
            "parent": IDS,
            "parent_queue": ["", "other"],
            "parent_policy": ["fp", "id", ""],
        }
        for field in one.sample(sorted(values), k=one.randrange(4)):
            words += [field, one.choice(values[field])]
        return words

    def _member(self) -> Words:
        one = self._random
        name = one.choice(
            [
                "active",
                "active",
                "pending",
                "schedule",
                "dead",
                *(f"g:{group}:pending" for group in (GROUP, OTHER_GROUP)),
            ]
        )
        scores: list[Word] = [0, 1, FAR_MS, "inf", "-inf", "1.5"]
        return ["ZADD", BASE + name, one.choice(scores), self._id()]

    def _counter(self) -> Words:
        one = self._random
        group = one.choice(GROUPS)
        return one.choice(
            [
                ["HSET", f"{BASE}glimit", group, one.choice(NUMBERS)],
                ["HSET", f"{BASE}gactive", group, one.choice(NUMBERS)],
                ["HSET", f"{BASE}gweight", group, one.choice(NUMBERS)],
                ["SADD", f"{BASE}paused", group],
                ["SREM", f"{BASE}paused", group],
                ["RPUSH", f"{BASE}ring", group],
                [
                    "HSET",
                    f"{BASE}meta",
                    one.choice(["concurrency", "max", "window_ms", "paused", "x"]),
                    one.choice(NUMBERS),
                ],
                ["DEL", f"{BASE}meta", f"{BASE}limiter"],
                ["SET", f"{BASE}claimed:c", one.choice(["1 ab", f"3 ab {job(1)} 1 {job(2)}", "x", "", "9" * 30])],
                ["SET", f"{BASE}de:k", self._id()],
            ]
        )

    def _family(self) -> Words:
        one = self._random
        row = f"{BASE}job:{self._id()!s}"
        return one.choice(
            [
                ["SET", f"{row}:dependencies", one.choice(NUMBERS)],
                ["HSET", f"{row}:failed", self._id(), "e"],
                ["HSET", f"{row}:processed", self._id(), "r"],
                ["HSET", row, "parent", self._id()],
                ["SET", f"{row}:lock", "1"],
                ["DEL", row],
            ]
        )

    def _other_type(self) -> Words:
        one = self._random
        names = [
            "active",
            "ring",
            "wake",
            "ready",
            "meta",
            "paused",
            "gactive",
            f"job:{self._id()!s}",
            "metrics:failed",
        ]
        key = BASE + one.choice(names)
        return one.choice([["DEL", key], ["DEL", key], ["SET", key, "wrong"], ["SADD", key, "wrong"]])
