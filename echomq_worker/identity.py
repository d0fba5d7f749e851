"""Branded ids and the Snowflake mint that makes them.

Source: protocol section 2. A branded id is 14 ASCII characters: a namespace of three letters `A-Z`, then a 63-bit
Snowflake in base62 (`0-9A-Za-z`), padded with `0` to 11. That alphabet is in byte order, so the byte order of the ids
of one namespace is the order of their integers, and a sorted set at score 0 is in mint order.

A Snowflake is milliseconds since 2024-01-01T00:00:00Z (41 bits), a node id (10 bits) and a sequence (12 bits).
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import threading

from echomq_worker.clock import Clock, SystemClock
from echomq_worker.errors import InvalidArgument, InvalidId, shown

JOB = "JOB"
EPOCH_MS = 1_704_067_200_000
MAX_SNOWFLAKE = 2**63 - 1
MAX_NODE_ID = 1023

_GROUP = "GRP"
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BASE = len(_ALPHABET)
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}
_DIGITS = 11
_LARGEST = "AzL8n0Y58m7"
_SHAPE = re.compile(r"[A-Z]{3}[0-9A-Za-z]{11}")
_NAMESPACE = re.compile(r"[A-Z]{3}")
_EXPECTED = f"three letters A-Z and 11 base62 characters, at most {_LARGEST}"

_NODE_SHIFT = 12
_TIME_SHIFT = 22
_SEQUENCE_MASK = 4095
_FIRST_SEQUENCE_MASK = 2047
_PAIR = _BASE**2


def encode(namespace: str, snowflake: int) -> str:
    """The branded id of a namespace (three letters `A-Z`) and an integer of 0..2^63-1; InvalidId for anything else."""
    _check_namespace(namespace)
    if not _is_integer(snowflake, MAX_SNOWFLAKE):
        raise InvalidId(f"snowflake {shown(snowflake)}: expected an integer of 0..2^63-1")
    return namespace + _base62(snowflake)


def decode(id: str) -> tuple[str, int]:
    """The namespace and the Snowflake of a branded id; InvalidId when it is none."""
    check_id(id)
    snowflake = 0
    for character in id[3:]:
        snowflake = snowflake * _BASE + _VALUES[character]
    return id[:3], snowflake


def is_branded(id: object) -> bool:
    """Whether this is a well-formed branded id of any namespace. Never raises."""
    return isinstance(id, str) and _SHAPE.fullmatch(id) is not None and id[3:] <= _LARGEST


def check_id(id: str) -> str:
    """The id itself when it is well-formed; InvalidId when not. The namespace is the script's to refuse (EMQKIND)."""
    if not is_branded(id):
        raise InvalidId(f"id {shown(id)}: expected {_EXPECTED}")
    return id


def check_group(group: str) -> str:
    """The group itself when it is a well-formed id of any namespace; InvalidId when not."""
    if not is_branded(group):
        raise InvalidId(f"group {shown(group)}: expected {_EXPECTED}; Lanes.group_for makes one of any text")
    return group


def minted_at_ms(id: str) -> int:
    """When a minted id was made: ms since 1970 on the clock of its maker; InvalidId when it is no branded id."""
    return (decode(id)[1] >> _TIME_SHIFT) + EPOCH_MS


def minted_near_ms(id: str) -> int | None:
    """The same for who asks for every job: read from the eight digits that have it, in a quarter of the time, so it may
    be a millisecond less. None for what is no branded id.
    """
    values = _pair_values()
    try:
        high = (values[id[3:5]] * _PAIR + values[id[5:7]]) * _PAIR + values[id[7:9]]
        return ((high * _PAIR + values[id[9:11]]) * _BASE**3 >> _TIME_SHIFT) + EPOCH_MS
    except KeyError:
        return None


def group_for(text: str) -> str:
    """A stable branded id for a lane named by any text: `GRP` and the first 63 bits of the text's SHA-256.

    The same text gives the same id in every process and release; two texts share one with a chance of 2^-63.
    """
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return _GROUP + _base62(int.from_bytes(digest[:8], "big") >> 1)


def default_node_id() -> int:
    """A random node id of 0..1023, from the operating system: a container cannot tell its siblings."""
    return int.from_bytes(os.urandom(2), "big") & MAX_NODE_ID


@functools.cache
def default_mint() -> Mint:
    """The one mint of this process on the system clock: whoever needs none of their own shares it, and its order."""
    return Mint(SystemClock())


def forked() -> None:
    """Have every mint of this process draw again: for a process that was forked off behind Python's back."""
    _forks().add()


class Mint:
    """Mints branded ids, each greater than all before it from this mint, from any number of threads.

    A clock that steps back, or more ids in a millisecond than the sequence holds, keeps counting from the last id.
    `node_id` of 0..1023 is the operator's promise that no other process uses it. Without one it is drawn at random, and
    the sequence of each millisecond begins at a random place too: with a hundred containers two are likely to draw
    the same node id, and would otherwise mint the same ids whenever they mint in the same millisecond. A process that
    was forked off draws again.

    Raises InvalidArgument for a node id outside its range.
    """

    __slots__ = (
        "_clock",
        "_drawn",
        "_forks",
        "_high",
        "_lock",
        "_low",
        "_ms",
        "_node",
        "_pairs",
        "_prefix",
        "_seen",
        "_stop",
    )

    def __init__(self, clock: Clock, node_id: int | None = None) -> None:
        if node_id is not None and not _is_integer(node_id, MAX_NODE_ID):
            raise InvalidArgument(f"node_id {shown(node_id)}: expected 0..{MAX_NODE_ID}")
        self._clock = clock
        self._drawn = node_id is None
        self._node = default_node_id() if node_id is None else node_id
        # The last Snowflake is _high * 62^2 + _low. Below _stop only the last two digits change, so the rest is not
        # computed again.
        self._ms = EPOCH_MS - 1
        self._high = self._low = self._stop = 0
        self._prefix = ""
        self._pairs = _pairs()
        self._forks = _forks()
        self._seen = self._forks.count
        self._lock = threading.Lock()

    @property
    def node_id(self) -> int:
        """The node id in use, 0..1023."""
        return self._node

    def next(self, namespace: str = JOB) -> str:
        """A new id of the namespace, greater than every id minted here before; InvalidId for a bad namespace.

        InvalidArgument when the clock is past what 41 bits of milliseconds hold (in the year 2093).
        """
        if namespace != JOB:
            _check_namespace(namespace)
        if self._seen != self._forks.count:
            self._after_fork()
        now_ms = self._clock.now_ms()
        with self._lock:
            low = self._low + 1
            if low >= self._stop or now_ms > self._ms:
                low = self._jump(now_ms)
            self._low = low
            return f"{namespace}{self._prefix}{self._pairs[low]}"

    def _jump(self, now_ms: int) -> int:
        snowflake = self._high * _PAIR + self._low + 1
        now_ms = max(now_ms, EPOCH_MS)
        if now_ms > self._ms:
            snowflake = self._first_of(now_ms)
        elif not snowflake & _SEQUENCE_MASK:
            snowflake = self._first_of(self._ms + 1)
        if snowflake > MAX_SNOWFLAKE:
            raise InvalidArgument("clock: expected a time before 2093-09-06, when 41 bits of milliseconds run out")
        high, low = divmod(snowflake, _PAIR)
        self._prefix = _base62(high)[2:]
        self._ms = (snowflake >> _TIME_SHIFT) + EPOCH_MS
        self._stop = min(_PAIR, low + _SEQUENCE_MASK + 1 - (snowflake & _SEQUENCE_MASK))
        self._high = high
        return low

    def _first_of(self, ms: int) -> int:
        sequence = int.from_bytes(os.urandom(2), "big") & _FIRST_SEQUENCE_MASK if self._drawn else 0
        return (ms - EPOCH_MS) << _TIME_SHIFT | self._node << _NODE_SHIFT | sequence

    def _after_fork(self) -> None:
        # Another thread of the parent may have held the lock at the fork; nobody would let go of it here.
        self._lock = threading.Lock()
        self._seen = self._forks.count
        if self._drawn:
            self._node = default_node_id()
            self._ms += 1
            self._high, self._low = divmod(self._first_of(self._ms), _PAIR)
            self._stop = 0


class _Forks:
    """How often this process was forked off from one that had it."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        self.count += 1


@functools.cache
def _forks() -> _Forks:
    # Asking for the process id costs as much as the rest of a mint; the system calls this in the child instead.
    forks = _Forks()
    os.register_at_fork(after_in_child=forks.add)
    return forks


@functools.cache
def _pairs() -> tuple[str, ...]:
    return tuple(first + second for first in _ALPHABET for second in _ALPHABET)


def _base62(number: int) -> str:
    digits = []
    for _ in range(_DIGITS):
        number, digit = divmod(number, _BASE)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def _is_integer(value: object, largest: int) -> bool:
    return isinstance(value, int) and 0 <= value <= largest


def _check_namespace(namespace: object) -> None:
    if not isinstance(namespace, str) or _NAMESPACE.fullmatch(namespace) is None:
        raise InvalidId(f"namespace {shown(namespace)}: expected three letters A-Z")


@functools.cache
def _pair_values() -> dict[str, int]:
    return {pair: value for value, pair in enumerate(_pairs())}
