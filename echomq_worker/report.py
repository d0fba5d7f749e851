"""Report: what one run of a worker did, in numbers.

Source: issue "A worker that runs jobs" (Daemon and CLI).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Report:
    """What one run of a worker did: answers to verdicts, and what was handed over at the end."""

    counts: Counter[str] = field(default_factory=Counter)
    exit_code: int = 0

    @property
    def completed(self) -> int:
        """Jobs done."""
        return self.counts["done"]

    @property
    def retried(self) -> int:
        """Failed runs that will be repeated."""
        return self.counts["scheduled"]

    @property
    def dead(self) -> int:
        """Jobs given up, by a verdict or because they crashed their workers."""
        return self.counts["dead"] + self.counts["buried"]

    @property
    def released(self) -> int:
        """Jobs given back at once at the end."""
        return self.counts["released"]

    @property
    def left(self) -> int:
        """Jobs whose lease has to run out: disowned, or not handed over for want of a server."""
        return self.counts["disowned"] + self.counts["left"]
