"""One job of the driver's worlds with every control: its row's further fields, and what hangs on it beside the row.

Source: protocol section 1 (row fields, subkeys) and section 6.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tests.support.driver_model import Job

QUEUES = 3
SPAN = 1_000_000
FIRST_OF = tuple(q * SPAN for q in range(QUEUES))
"""Where each queue's numbers begin: a number says whose job it is."""


def number_of(id: str) -> int:
    """The number in an id."""
    return int(id[3:])


@dataclass(slots=True, eq=False)
class ControlJob(Job):
    """A job with what a control or a flow writes. `mute`: a foreign client buried it and told nobody. `excused`: a
    parent to whom a report can never come. `haunted`: a foreign client has told it of children when it was no parent.
    """

    dedup: str | None = None
    cancel: str | None = None
    expires: bool = False
    expired: bool = False
    parent: str | None = None
    parent_queue: str = ""
    policy: str | None = None
    mute: bool = False
    excused: bool = False
    haunted: bool = False
    locked: bool = False
    logs: int = 0
    progress: str | None = None
    out: int | None = None
    processed: dict[str, bytes] = field(default_factory=dict)
    failed: dict[str, bytes] = field(default_factory=dict)
    unsuccessful: dict[str, bytes] = field(default_factory=dict)
    children: frozenset[str] = frozenset()
    counted: int = 0
    kin_text: str = ""
    holds: int = 0
    released: bool = False

    @property
    def result(self) -> bytes:
        """What its handler returns, where it returns anything."""
        return b"result %d" % self.n

    @property
    def hold_now(self) -> int:
        """Which hold of this parent stands, 0 for none."""
        return self.holds if self.row and self.out is not None else 0

    @property
    def litter(self) -> bool:
        """Whether anything hangs on it."""
        return bool(self.locked or self.logs or self.processed or self.failed or self.unsuccessful) or (
            self.out is not None
        )

    @property
    def misplaced(self) -> bool:
        """Whether a claim of ours that meets it has something to repair."""
        waits = self.state == "awaiting_children" and bool(self.places & {"pending", "lane"})
        # Dataclasses with slots are made anew: super() would not find this class.
        return waits or bool(Job.misplaced.__get__(self))

    def fresh(self, payload: bytes | None, state: str, *, bare: bool = False) -> None:
        """A new row under this id. What hangs on it from before stays."""
        Job.fresh(self, payload, state, bare=bare)
        self.dedup = self.cancel = self.parent = self.policy = self.progress = None
        self.expires = self.expired = self.mute = self.excused = self.released = False
        self.parent_queue = self.kin_text = ""
        self.children = frozenset()

    def hold(self, kin: str, count: int) -> None:
        """It waits for so many children, whom `kin` (JSON, ids by queue) names where it is there."""
        self.kin_text = kin
        self.children = frozenset(id for ids in json.loads(kin or "{}").values() for id in ids)
        self.out = self.counted = count
        self.processed, self.failed, self.unsuccessful = {}, {}, {}
        self.holds += 1

    def wipe(self) -> None:
        """Nothing hangs on it any more."""
        self.locked, self.logs, self.out, self.haunted = False, 0, None, False
        self.processed, self.failed, self.unsuccessful = {}, {}, {}
