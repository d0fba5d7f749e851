"""Metronome: one beat per queue for a pool of consumers.

Source: design section 3 (Metronome), seeds ("in a pool, the Metronome runs the reap and the promote once per beat for
the queue"). One BLPOP, one recovery and promote per beat; idle consumers are poked in the order in which they went
idle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio

from echomq_worker.clock import Clock, Rhythm
from echomq_worker.degraded import FAULTS, Degraded
from echomq_worker.keyspace import Keys
from echomq_worker.nap import Nap
from echomq_worker.parking import Parking
from echomq_worker.recovery import Recovery, Swept


@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """An idle consumer: `poked` when it is to look, `told` called then, before it goes on."""

    poked: asyncio.Future[None]
    told: Callable[[], object] | None


class Metronome:
    """Sweeps and wakes for every consumer of one queue in this process. Consumers rest here as on a BLPOP."""

    __slots__ = (
        "_clock",
        "_degraded",
        "_end",
        "_held",
        "_idle",
        "_keys",
        "_nap",
        "_next_beat_ms",
        "_owed",
        "_parking",
        "_recovery",
        "_rhythm",
        "_stopping",
        "_told",
        "beaten_ms",
    )

    def __init__(
        self,
        parking: Parking,
        keys: Keys,
        *,
        clock: Clock,
        beat_ms: int,
        recovery: Recovery,
        degraded: Degraded,
        origin_ms: float | None = None,
    ) -> None:
        """`origin_ms`: from when all loops of the process count beats."""
        self._parking = parking
        self._keys = (keys.wake, keys.ready)
        self._clock = clock
        self._rhythm = Rhythm.of(clock, beat_ms, origin_ms)
        self._recovery = recovery
        self._degraded = degraded
        self._idle: deque[Idle] = deque()
        # `_nap` is woken by a stop and by a consumer that goes idle, `_end` by a stop alone.
        self._nap = Nap()
        self._end = Nap()
        self._owed = False
        self._next_beat_ms = clock.monotonic_ms()
        self._held = self._stopping = self._told = False
        self.beaten_ms: float | None = None

    def rest(self) -> Pooled:
        """Where one consumer of the pool parks."""
        return Pooled(self)

    def sit(self, told: Callable[[], object] | None = None) -> Idle | None:
        """The seat of one idle consumer, who stands up at the end; None when it need not wait."""
        if self._owed and not self._held:
            # A token came when no consumer was idle any more: the next one to go idle gets it.
            self._owed = False
            return None
        seat = Idle(asyncio.get_running_loop().create_future(), told)
        self._idle.append(seat)
        self._nap.wake()
        return seat

    def stand_up(self, seat: Idle) -> None:
        """Nobody waits for this any more."""
        if seat in self._idle:
            self._idle.remove(seat)

    def poke(self) -> bool:
        """Have the consumer that is idle longest look; False when there is none."""
        while self._idle:
            seat = self._idle.popleft()
            if not seat.poked.done():
                seat.poked.set_result(None)
                if seat.told is not None:
                    seat.told()
                return True
        return False

    def hold(self) -> None:
        """Hand out nothing any more, until `stop`. May be called in a signal handler."""
        self._held = True

    def stop(self) -> None:
        """End `run`. Twice is fine."""
        self._stopping = True
        self._nap.wake()
        self._end.wake()

    async def beat(self) -> Swept:
        """One recovery and promote for the pool; the consumer that is idle longest is poked. Raises WireError,
        ServerError.
        """
        with anyio.CancelScope(shield=True):
            swept = await self._recovery.beat()
        self.beaten_ms = self._clock.monotonic_ms()
        self._next_beat_ms = self._rhythm.after(self.beaten_ms)
        self.poke()
        return swept

    async def run(self) -> None:
        """Beat until stopped; between beats hand out tokens while anybody is idle."""
        while not self._stopping:
            try:
                if self._clock.monotonic_ms() >= self._next_beat_ms - self._rhythm.early_ms:
                    await self.beat()
                    self._degraded.worked()
                await self._listen()
                self._degraded.good()
            except FAULTS as error:
                await self._end.sleep(self._clock, self._degraded.fail(error, self._end.wake))
        if self._owed:
            self._parking.hand_back(self._keys)

    async def _listen(self) -> None:
        """Wait for one token, or for the next beat; without an idle consumer tokens are left to other processes."""
        left_ms = self._next_beat_ms - self._clock.monotonic_ms()
        if left_ms <= 0 or self._stopping:
            return
        if self._held or not self._idle:
            await self._nap.sleep(self._clock, left_ms)
            return

        # A stop ends the BLPOP; a consumer that goes idle, which wakes the other nap, need not.
        await self._end.until(partial(self._token, left_ms), lambda: self._parking.leave(self._keys))

    async def _token(self, left_ms: float) -> None:
        self._told = False
        token = await self._parking.blpop(self._keys, max(1.0, left_ms), told=self._hand_on)
        if token is not None and not self._told:
            # It came while this loop was elsewhere, and was kept for it.
            self._owed = self._held or not self.poke()

    def _hand_on(self) -> None:
        """A token is there. Held, nobody here has a use for it: others may have it."""
        self._told = True
        if self._held:
            self._parking.leave(self._keys)
        else:
            self._owed = not self.poke()


class Pooled:
    """The rest of one consumer of a pool: it waits for its turn with the Metronome."""

    __slots__ = ("_metronome", "_seat")

    def __init__(self, metronome: Metronome) -> None:
        self._metronome = metronome
        self._seat: Idle | None = None

    async def park(self, _timeout_ms: float, told: Callable[[], object] | None = None, /) -> None:
        """Rest until poked: a token came, or a beat has passed and it is this consumer's turn to look."""
        self._seat = seat = self._metronome.sit(told)
        if seat is None:
            return
        try:
            await seat.poked
        finally:
            self._seat = None
            self._metronome.stand_up(seat)

    def leave(self) -> None:
        """End the park that is on."""
        if self._seat is not None and not self._seat.poked.done():
            self._seat.poked.set_result(None)

    def more(self) -> None:
        """This consumer filled all its slots: the next idle one should look as well."""
        self._metronome.poke()
