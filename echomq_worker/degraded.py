"""Degraded beats: how long a loop waits after a wire error, and the two log lines of an outage.

Source: seed "Backoff is a pure curve, and who calls it" (exponential over the beat, cap max(30,000, beat), indexed by
the streak of degraded beats; the first good beat ends it), design section 3.
"""

from __future__ import annotations

from collections.abc import Callable

from echomq_worker.backoff import Exponential, delay_ms
from echomq_worker.clock import Clock
from echomq_worker.errors import AuthenticationFailed, ServerError, WireError
from echomq_worker.logs import Logger

CAP_MS = 30_000
# A script error that does not go away is a bug or a broken key, a login that is refused time and again is a password
# that has changed: the process ends, rather than live and do nothing.
SCRIPT_ERRORS = 10

Fault = WireError | ServerError | AuthenticationFailed
# For `except`: the errors that a loop waits out. A login may be refused for a while by a server that has taken over and
# does not know the users yet.
FAULTS = (WireError, ServerError, AuthenticationFailed)


def _nobody(*_what: object) -> None:
    """Nobody hears."""


class Outage:
    """Which loops of this process cannot do their beat: a line when the first fails, one when the last is back.

    `on_enter(loop, error)` and `on_leave(downtime_ms)` hear the same.
    """

    __slots__ = ("_clock", "_log", "_loops", "_on_enter", "_on_leave", "_since_ms", "_spent_ms", "_wakes")

    def __init__(
        self,
        *,
        clock: Clock,
        log: Logger,
        on_enter: Callable[[str, str], object] = _nobody,
        on_leave: Callable[[int], object] = _nobody,
    ) -> None:
        self._on_enter = on_enter
        self._on_leave = on_leave
        self._clock = clock
        self._log = log
        self._loops: set[str] = set()
        self._wakes: dict[str, Callable[[], None]] = {}
        self._since_ms = 0.0
        self._spent_ms = 0.0

    @property
    def degraded(self) -> bool:
        """True from the first failed beat until every loop that failed has had a good one."""
        return bool(self._loops)

    @property
    def downtime_ms(self) -> float:
        """How long all outages so far took, one that lasts included."""
        return self._spent_ms + (self._clock.monotonic_ms() - self._since_ms if self._loops else 0.0)

    def enter(self, loop: str, error: Exception, wake: Callable[[], None] | None = None) -> None:
        """`loop` had a failed beat; `wake` ends the wait that it begins now."""
        if wake is not None:
            self._wakes[loop] = wake
        if not self._loops:
            self._since_ms = self._clock.monotonic_ms()
            said = f"{type(error).__name__}: {error}"
            self._log.warning("degraded", loop=loop, error=said)
            self._on_enter(loop, said)
        self._loops.add(loop)

    def reached(self, loop: str) -> None:
        """`loop` got through after failed beats: whoever still waits on its own curve may try now."""
        wakes, self._wakes = self._wakes, {}
        for name, wake in wakes.items():
            if name != loop:
                wake()

    def leave(self, loop: str) -> None:
        """`loop` had a good beat, or ends."""
        if loop not in self._loops:
            return
        self._loops.discard(loop)
        if not self._loops:
            lasted_ms = self._clock.monotonic_ms() - self._since_ms
            self._spent_ms += lasted_ms
            downtime_ms = round(lasted_ms)
            self._log.info("recovered", downtime_ms=downtime_ms)
            self._on_leave(downtime_ms)


class Degraded:
    """The streak of one loop's degraded beats, and what it costs to go on. `beats` counts the good ones."""

    __slots__ = ("_failing", "_outage", "_policy", "_script_errors", "beats", "name", "streak")

    def __init__(self, name: str, *, outage: Outage, beat_ms: int) -> None:
        self.name = name
        self.streak = 0
        self.beats = 0
        self._failing = False
        self._outage = outage
        self._policy = Exponential(beat_ms, max(CAP_MS, beat_ms))
        self._script_errors = 0

    def fail(self, error: Fault, wake: Callable[[], None] | None = None) -> int:
        """Count a failed beat and answer how many ms to wait; `wake` is called when another loop gets through
        meanwhile.

        Raises the error itself when a script keeps failing, or the login is refused.
        """
        self._script_errors = 0 if isinstance(error, WireError) else self._script_errors + 1
        if self._script_errors >= SCRIPT_ERRORS:
            raise error
        self.streak += 1
        self._failing = True
        self._outage.enter(self.name, error, wake)
        return delay_ms(self._policy, self.streak)

    def worked(self) -> None:
        """The legs that serve the queue went through: the curve starts anew, whatever becomes of the rest."""
        if self.streak:
            self.streak = 0
            self._outage.reached(self.name)

    def good(self) -> None:
        """A whole beat went through, the rest as well: the outage is over."""
        self.beats += 1
        if self._failing:
            self.worked()
            self._failing = False
            self._script_errors = 0
            self._outage.leave(self.name)
