"""One thing that an account cannot explain."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """`what` in a few words, `id` of the job (or the name of a repeat, a lane, a worker; '' for none), a sentence."""

    what: str
    id: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.what}: {self.id}{': ' if self.id else ''}{self.sentence}"
