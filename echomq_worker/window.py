"""Window: a consumer that looks first, and claims a batch when it is worth a call or has waited long enough.

Source: issue "Every control" (Batch handlers: the window holds no lease). Until `min_size` jobs are ready, or
`window_ms` have passed since the first was seen, it only looks (script `look`): nothing is claimed, any other worker
may take the jobs, and nothing is lost when this process dies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from echomq_worker.connector import Wire
from echomq_worker.consumer import Beat, Consumer, Parts
from echomq_worker.job import Job
from echomq_worker.keyspace import Keys
from echomq_worker.outcome import Outcome
from echomq_worker.script import evaluate
from echomq_worker.slots import Places

# While a window is open the queue is looked at this often: a token for each job would be a look for each job.
LOOK_MS = 20.0


class Window:
    """When to claim: `see` what is ready, then `is_over` or `left_ms` of waiting."""

    __slots__ = ("_until_ms", "is_over", "min_size", "window_ms")

    def __init__(self, *, min_size: int, window_ms: int) -> None:
        self.min_size = min_size
        self.window_ms = window_ms
        self.is_over = False
        self._until_ms: float | None = None

    def see(self, ready: int, now_ms: float) -> None:
        """So many jobs could be claimed at `now_ms` (monotonic)."""
        if ready == 0:
            self.begin_anew()
            return
        if self._until_ms is None:
            self._until_ms = now_ms + self.window_ms
        self.is_over = ready >= self.min_size or now_ms >= self._until_ms

    def begin_anew(self) -> None:
        """Nothing is ready, or what was has been claimed."""
        self._until_ms = None
        self.is_over = False

    def left_ms(self, now_ms: float) -> float | None:
        """How long the window stays open; None where nothing was seen that it would be open for."""
        return None if self._until_ms is None else max(0.0, self._until_ms - now_ms)


class BatchConsumer(Consumer):
    """A consumer whose slots take one batch at a time."""

    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        parts: Parts,
        *,
        slots: Callable[[Callable[[Job, Outcome], None]], Places],
        window: Window,
    ) -> None:
        super().__init__(wire, keys, parts, slots=slots)
        self._window = window

    async def beat(self) -> Beat:
        """One pass: a look, where there is room for a batch; then recovery where it is due, and the claim where the
        window is over. Raises WireError or ServerError.
        """
        looked = super()._wanted() > 0
        if looked:
            keys = self._keys
            names = (keys.pending, keys.active, keys.ring, keys.meta)
            ready = await evaluate(self._wire, "look", names, (keys.base, self._window.min_size))
            self._window.see(ready, self._clock.monotonic_ms())
        beat = await super().beat()
        if beat.claimed is not None:
            self._window.begin_anew()
        return replace(beat, looked=looked)

    def _wanted(self) -> int:
        return super()._wanted() if self._window.is_over else 0

    async def _rest_after(self, beat: Beat) -> None:
        if beat.claimed is not None or super()._wanted() == 0:
            await super()._rest_after(beat)
            return
        left_ms = self._left_ms()
        open_ms = self._window.left_ms(self._clock.monotonic_ms())
        if open_ms is None:
            await self._nap.until(lambda: self._rest.park(left_ms), self._rest.leave)
        else:
            await self._nap.sleep(self._clock, max(1.0, min(left_ms, open_ms, LOOK_MS)))
