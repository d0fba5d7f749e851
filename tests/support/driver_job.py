"""A job as the driver knows it, and what it says when a promise is broken.

Source: protocol section 1 (row fields) and section 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field

GROUPS = ("GRP00000000001", "GRP00000000002", "GRP00000000003")
WORKERS = 3
MAX_CRASHES = 5
SUSPECT = 2

STATE_OF = {"pending": "pending", "lane": "pending", "active": "active", "schedule": "scheduled", "dead": "dead"}
CLAIMABLE = {"pending", "lane"}


class Violation(AssertionError):
    """A promise that was broken: `kind` is one word for it, the text says what happened."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


def require(holds: object, kind: str, text: str) -> None:
    """Raise Violation unless it holds."""
    if not holds:
        raise Violation(kind, text)


@dataclass(slots=True, eq=False)
class Job:
    """One id: its row (when `row`; `bare`: a skeleton that promote made, nobody's claim fits it), where it is, and
    whether its lease has run out (`overdue`) or its time come (`due`).
    """

    n: int
    id: str
    lane: str | None
    poison: bool
    row: bool = False
    bare: bool = False
    group: str | None = None
    payload: bytes | None = None
    state: str = ""
    token: int = 0
    failures: int = 0
    stalled: int = 0
    held: str | None = None
    crashes: tuple[int, int] | None = None
    settled: tuple[int, str] | None = None
    error: str | None = None
    places: set[str] = field(default_factory=set)
    overdue: bool = False
    due: bool = False
    loose: bool = False
    tokens: list[int] = field(default_factory=list)
    key: bytes = b""

    @property
    def home(self) -> str:
        """Where a row like this one waits."""
        return "lane" if self.group else "pending"

    @property
    def single(self) -> bool:
        """Whether it is in one place, as a job should be."""
        return len(self.places) == 1 and not self.loose

    @property
    def misplaced(self) -> bool:
        """Whether a claim of ours that meets it has something to repair."""
        waiting = self.places & CLAIMABLE
        return bool(waiting) and (
            len(self.places) > 1 or self.state == "dead" or ("pending" in waiting) == bool(self.group)
        )

    def crash_count(self) -> int:
        """Claims of ours in a row that never ended, a claim made now included."""
        before = self.crashes[0] if self.crashes and self.crashes[1] == self.token else 0
        return before + (1 if self.held else 0)

    def fresh(self, payload: bytes | None, state: str, *, bare: bool = False) -> None:
        """A new row under this id."""
        self.row, self.bare, self.payload, self.state = True, bare, payload, state
        self.token = self.failures = self.stalled = 0
        self.held = self.crashes = self.settled = self.error = None

    def put(self, *places: str) -> None:
        """It is here now, and nowhere else."""
        self.places = set(places)
        self.overdue = self.due = False
