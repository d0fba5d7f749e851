"""Every key name of the wire, and the cluster slot of a key.

Source: protocol section 1 (the table of keys) and section 2 (the slot). A queue's name stands in literal braces, so all
keys of a queue share one slot. What is not well-formed is refused here, before anything is sent.
"""

from __future__ import annotations

import binascii
import re

from echomq_worker.errors import InvalidArgument, InvalidQueueName, shown
from echomq_worker.identity import check_group, check_id

FENCE_KEY = "{emq}:version"
SLOTS = 16384
NAME_BYTES = 512

_QUEUE = re.compile(r"[A-Za-z0-9._-]{1,128}")
_RESERVED = "emq"
# C0 and C1 controls, line separators, direction marks and overrides: what no log line and no table should have in it.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def check_queue(name: str) -> str:
    """The name itself when it can name a queue; InvalidQueueName when not."""
    if not _is_queue(name):
        raise InvalidQueueName(f"queue {shown(name)}: expected 1..128 of A-Z a-z 0-9 . _ -, and not 'emq'")
    return name


def check_name(what: str, name: object) -> str:
    """A name that a user gives to a repeat, or a dedup key, where it is first written; InvalidArgument for another.

    1..512 bytes of UTF-8 without control characters, line separators and direction overrides. What other clients have
    named otherwise can still be read and removed.
    """
    text = _checked(name, what)
    if not text:
        raise InvalidArgument(f"{what} is empty, expected a text")
    if len(text) > NAME_BYTES or len(text.encode()) > NAME_BYTES:
        raise InvalidArgument(f"{what} {shown(text)}: expected at most {NAME_BYTES} bytes")
    if _INVISIBLE.search(text) is not None:
        raise InvalidArgument(f"{what} {shown(text)}: expected no control characters")
    return text


def slot(key: str | bytes) -> int:
    """The cluster slot, 0..16383: CRC16-XMODEM of the hash tag, or of the whole key when it has none, modulo 16384.

    The hash tag is what stands between the first `{` and the next `}`, when that is not empty.
    """
    data = key.encode() if isinstance(key, str) else key
    _, opened, rest = data.partition(b"{")
    tag, closed, _ = rest.partition(b"}")
    return binascii.crc_hqx(tag if opened and closed and tag else data, 0) % SLOTS


class Keys:
    """The key names of one queue; built once per queue, InvalidQueueName when the name is not one.

    Attributes hold the keys that a queue has one of; methods name those of a job, a lane, a consumer or a name, and
    refuse a malformed id (InvalidId) or a name without a UTF-8 form (InvalidArgument).
    """

    __slots__ = (
        "active",
        "base",
        "cancel",
        "completed",
        "cron",
        "dead",
        "events",
        "failed",
        "gactive",
        "glimit",
        "gweight",
        "kept",
        "limiter",
        "malformed",
        "meta",
        "outbox",
        "paused",
        "pending",
        "queue",
        "ready",
        "repeat",
        "ring",
        "schedule",
        "wake",
    )

    def __init__(self, queue: str) -> None:
        self.queue = check_queue(queue)
        base = f"emq:{{{queue}}}:"
        self.base = base
        self.pending = f"{base}pending"
        self.active = f"{base}active"
        self.schedule = f"{base}schedule"
        self.dead = f"{base}dead"
        self.ring = f"{base}ring"
        self.wake = f"{base}wake"
        self.ready = f"{base}ready"
        self.paused = f"{base}paused"
        self.glimit = f"{base}glimit"
        self.gactive = f"{base}gactive"
        self.gweight = f"{base}gweight"
        self.meta = f"{base}meta"
        self.completed = f"{base}metrics:completed"
        self.failed = f"{base}metrics:failed"
        self.repeat = f"{base}repeat"
        self.cron = f"{base}cron"
        self.kept = f"{base}kept"
        self.limiter = f"{base}limiter"
        self.outbox = f"{base}flow:outbox"
        self.malformed = f"{base}flow:outbox:malformed"
        self.events = f"{base}events"
        self.cancel = f"{base}cancel"

    def __repr__(self) -> str:
        return f"Keys({self.queue!r})"

    def job(self, id: str) -> str:
        """The row."""
        return f"{self.base}job:{check_id(id)}"

    def found(self, id: str) -> str:
        """The row of an id that the server has named: not checked, as others may have made it."""
        return f"{self.base}job:{id}"

    def logs(self, id: str) -> str:
        """The job's log lines."""
        return f"{self.job(id)}:logs"

    def lock(self, id: str) -> str:
        """Present while a worker's lease keeper holds the job."""
        return f"{self.job(id)}:lock"

    def dependencies(self, id: str) -> str:
        """A flow parent's count of children still out."""
        return f"{self.job(id)}:dependencies"

    def processed_children(self, id: str) -> str:
        """A flow parent's results by child id."""
        return f"{self.job(id)}:processed"

    def failed_children(self, id: str) -> str:
        """A flow parent's errors by child id."""
        return f"{self.job(id)}:failed"

    def unsuccessful_children(self, id: str) -> str:
        """A flow parent's ignored errors by child id."""
        return f"{self.job(id)}:unsuccessful"

    def lane(self, group: str) -> str:
        """The pending set of one group, itself a branded id of any namespace."""
        return f"{self.base}g:{check_group(group)}:pending"

    def receipt(self, consumer: str) -> str:
        """Number, ids and tokens of a consumer's last claim; the consumer's name is unique per process start."""
        return f"{self.base}claimed:{_checked(consumer, 'consumer')}"

    def dedup(self, key: str) -> str:
        """The id parked under a producer's dedup key."""
        return f"{self.base}de:{_checked(key, 'dedup key')}"

    def repeat_record(self, name: str) -> str:
        """The record of one registered repeat."""
        return f"{self.base}repeat:{_checked(name, 'repeat name')}"


def _is_queue(name: object) -> bool:
    return isinstance(name, str) and _QUEUE.fullmatch(name) is not None and name != _RESERVED


def _checked(name: object, what: str) -> str:
    if not isinstance(name, str):
        raise InvalidArgument(f"{what} {shown(name)}: expected text")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} {shown(name)}: expected text that has a UTF-8 form") from None
    return name
