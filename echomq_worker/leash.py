"""Leash: what cuts a lifespan short, at the start of a run and at its end, and says so where even that does not end it.

Source: issue "The five promises" (A stop), docs/running.md (Stop). A lifespan is entered and left in the task that runs
the worker. One that swallows its cancellation holds that task for ever: then whoever runs the process is told, and may
end it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import anyio

# What a lifespan that is cut short gets to end.
CUT_MS = 1_000


class Leash:
    """Around one run: `begun` when the lifespan is entered, `ending` when it is to be left, `over` when it has been.

    `give_up` is called where it does not end within `CUT_MS` of being cut short. `late` afterwards: it was cut short
    because its time was up. `crash`: what has ended the run before.
    """

    __slots__ = ("_scope", "_stage", "_stopped", "_timer", "crash", "give_up", "late")

    def __init__(self, give_up: Callable[[], object] | None = None) -> None:
        self.late = False
        self.crash: BaseException | None = None
        self.give_up = give_up
        self._scope: anyio.CancelScope | None = None
        self._stage: Literal["start", "run", "end"] = "start"
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """The block that is cut short."""
        with anyio.CancelScope() as scope:
            self._scope = scope
            if self._stopped:
                self._cut(scope)
            yield

    def stop(self) -> None:
        """As long as nothing is claimed it ends here."""
        self._stopped = True
        if self._scope is not None and self._stage == "start":
            self._cut(self._scope)

    def hurry(self) -> None:
        """Somebody asks again: the end is cut short now."""
        if self._scope is not None and self._stage == "end":
            self._scope.deadline = math.inf
            self._cut(self._scope)

    def begun(self) -> None:
        """It is entered: a stop is no matter of ours until `ending`."""
        self._stage = "run"
        self._expect(None)

    def ending(self, limit_ms: float) -> None:
        """It has so long to be left."""
        if self._scope is not None:
            self._stage = "end"
            self._scope.deadline = anyio.current_time() + limit_ms / 1000
            self._expect(self._scope.deadline)

    def over(self) -> None:
        """It is left."""
        self._expect(None)
        if self._scope is not None:
            # A deadline there is while the lifespan closes, unless a second stop has cut that short.
            self.late, self._scope.deadline = anyio.current_time() >= self._scope.deadline, math.inf
            self._scope = None

    def _cut(self, scope: anyio.CancelScope) -> None:
        scope.cancel()
        self._expect(anyio.current_time())

    def _expect(self, cut_at: float | None) -> None:
        """It is cut short at this time of the loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if cut_at is not None and self.give_up is not None:
            self._timer = asyncio.get_running_loop().call_at(cut_at + CUT_MS / 1000, self.give_up)
