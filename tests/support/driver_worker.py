"""One of our simulated workers: what it has in hand, what it has sent, and the receipt that the server keeps for it.

Source: protocol section 4 (receipts, suspects, "Sent twice").
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.driver_job import SUSPECT, Job


@dataclass(frozen=True, slots=True)
class Hold:
    """A job in a worker's hand, as its claim's reply told."""

    job: Job
    held: str
    group: str
    crashes: int


@dataclass(frozen=True, slots=True)
class Sent:
    """One call that a worker sent, so that it can be sent again word for word."""

    verb: str
    items: tuple[tuple[Job, str, str, str, int], ...]
    """Per job: job, held, group, kind of verdict (or empty), max_attempts."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The last claim that brought something, as the server noted it."""

    number: int
    random: str
    jobs: tuple[tuple[Job, int], ...]


@dataclass(slots=True)
class Worker:
    """One of our processes: what it believes, and (`receipt`) what the server has noted for it."""

    index: int
    starts: int = 0
    number: int = 0
    sent: int = 0
    unread: bool = False
    hand: dict[int, Hold] = field(default_factory=dict)
    open: list[Sent] = field(default_factory=list)
    past: list[Sent] = field(default_factory=list)
    receipt: Receipt | None = None

    @property
    def name(self) -> str:
        """Unique per process start."""
        return f"w{self.index}-{self.starts}"

    @property
    def suspects(self) -> int:
        """How many jobs in hand are suspects."""
        return sum(hold.crashes >= SUSPECT for hold in self.hand.values())

    def restart(self) -> None:
        """A new process: it knows nothing."""
        self.starts += 1
        self.number = self.sent = 0
        self.unread = False
        self.receipt = None
        self.hand.clear()
        self.open.clear()
        self.past.clear()

    def remember(self, call: Sent) -> None:
        """Keep the last calls, for one that is sent again much later."""
        self.past = [*self.past[-5:], call]
