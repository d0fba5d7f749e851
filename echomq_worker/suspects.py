"""At most one suspect in hand per process: a job that kills its process must not take others with it.

Source: protocol section 4 ("A job that kills its process must not take others with it"). A suspect is a job whose
crashes, the claim that hands it out included, are 2 or more. A claim that has no answer yet counts as
a suspect in hand, for it may have taken one.
"""

from __future__ import annotations

from collections.abc import Callable

SUSPECT_CRASHES = 2


class Suspects:
    """The one place that a process has for a suspect. The holder is a claim on its way, then the job itself."""

    __slots__ = ("_holder", "_waiting")

    def __init__(self) -> None:
        self._holder: object | None = None
        self._waiting: dict[object, Callable[[], None]] = {}

    def reserve(self, holder: object) -> bool:
        """Take the place, or answer False; the one that holds it may ask again."""
        if self._holder is None:
            self._holder = holder
        return self._holder is holder

    def hand_over(self, holder: object, job: object) -> None:
        """The claim that held the place brought a suspect: the job holds it now."""
        if self._holder is holder:
            self._holder = job

    def release(self, *holders: object) -> None:
        """One of them gives the place back; whoever passed a suspect over meanwhile is told. No holder, no effect."""
        if self._holder not in holders:
            return
        self._holder = None
        waiting, self._waiting = self._waiting, {}
        for poke in waiting.values():
            poke()

    def tell(self, waiter: object, poke: Callable[[], None]) -> None:
        """Call `poke` once when the place is free again; at once where it was given back meanwhile."""
        if self._holder is None:
            poke()
        else:
            self._waiting[waiter] = poke
