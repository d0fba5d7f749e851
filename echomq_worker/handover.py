"""Hand-over: what a process that stops does with the jobs in hand, so that a deploy costs nothing.

Source: design section 3 (Hand-over), protocol section 4 (release, disown, "A shutdown first reads receipts and sends
open verdicts"), promise 5. Running jobs get the grace; what is left is cancelled, and what has ended then is released
at once. A plain function in a thread, and a handler that does not let itself be cancelled, cannot be stopped: they
are disowned, keep their lease, and are no crash.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio

from echomq_worker.clock import Clock
from echomq_worker.connector import Connector
from echomq_worker.errors import ConnectionLost, EchoMQError, Gone, Stale, StateRefused, WireError
from echomq_worker.job import LEASE_LOST, SHUTDOWN, Job, cancel
from echomq_worker.keyspace import Keys
from echomq_worker.nap import Nap
from echomq_worker.script import evaluate
from echomq_worker.station import Station
from echomq_worker.twins import REQUEUE

# What cancelled handlers get to end, and what the server gets to answer, after the grace.
CANCEL_MS = 1_000
LAST_WORDS_MS = 2_000
_RETRY_MS = 100
_CHUNK = 500
_PAST = {"release": "released", "disown": "disowned"}

T = TypeVar("T")


class HandOver:
    """The end of a process, for all its stations. `run` is called when every claim loop has ended."""

    __slots__ = ("_clock", "_hurried", "_nap", "_stations", "_unanswered", "_unheard_s", "_wire")

    def __init__(self, wire: Connector, stations: Sequence[Station], *, clock: Clock) -> None:
        self._wire = wire
        self._stations = stations
        self._clock = clock
        self._nap = Nap()
        self._hurried = False
        self._unheard_s = 0.0
        self._unanswered: set[Job] = set()

    def hurry(self) -> None:
        """A second signal: the grace is over now."""
        self._hurried = True
        self._nap.wake()

    async def run(self, grace_ms: float) -> None:
        """Drain, then hand over. Never raises for the wire: what could not be said is left to its lease, and logged.

        With a server that does not answer it takes the grace, `CANCEL_MS` and `LAST_WORDS_MS`; where the grace is
        shorter than `LAST_WORDS_MS`, that in its place.
        """
        until_ms = self._clock.monotonic_ms() + grace_ms
        for station in self._stations:
            station.watch(self._nap.wake)
            station.settle.hurry()
        await self._give_back_unstarted()
        await self._wait(
            lambda: all(one.idle for one in self._stations),
            0 if self._hurried else until_ms - self._clock.monotonic_ms(),
            hurries=True,
        )
        for station in self._stations:
            for job in station.running:
                cancel(job, SHUTDOWN)
        # A function in a thread has been told; it is not waited for.
        await self._wait(lambda: not any(self._cancellable(one) for one in self._stations), CANCEL_MS)
        if await self._give_back():
            await self._wait(lambda: not any(one.settle.open for one in self._stations), LAST_WORDS_MS)
            # For handlers that have ended in the meantime after all. A server that did not answer before is not asked
            # again.
            self._begin_last_words()
        await self._end()

    async def after_crash(self) -> None:
        """A loop has died, and every handler was cancelled with it: open verdicts are said, jobs in hand given back.

        Otherwise each of them would count a crash that was not its own. Never raises for the wire.
        """
        await self._give_back_unstarted()
        for station in self._stations:
            while station.settle.open:
                sent, _ = await self._insist(station.settle.beat)
                if not sent:
                    break
            in_threads = station.executor.in_threads()
            ended = [job for job in station.running if job.runner is None and job not in in_threads]
            for consumer in station.consumers:
                consumer.interrupted += [job for job in ended if job in consumer.slots.running]
                consumer.slots.running.difference_update(ended)
        await self._give_back()
        await self._end()

    async def _give_back_unstarted(self) -> None:
        self._begin_last_words()
        for station in self._stations:
            for consumer in station.consumers:
                consumer.interrupted += consumer.unstarted + consumer.slots.take_unstarted()
                consumer.unstarted = []
            # What the server does not answer now is said again at the end.
            unheard = await self._release(station)
            station.consumers[0].interrupted += unheard

    async def _give_back(self) -> bool:
        """Whether the server has heard all of it."""
        self._begin_last_words()
        heard = True
        for station in self._stations:
            unheard = await self._release(station)
            stubborn = {*station.running, *station.executor.in_threads()}
            unheard += await self._say("disown", station, [job for job in stubborn if job.cancel_reason != LEASE_LOST])
            self._leave(station, unheard)
            heard = heard and not unheard
        return heard

    async def _end(self) -> None:
        for station in self._stations:
            if any(consumer.interrupted for consumer in station.consumers):
                self._leave(station, await self._release(station))
            self._leave(station, station.settle.open)
            station.settle.abandon()
            station.executor.close()

    @staticmethod
    def _leave(station: Station, jobs: Sequence[Job]) -> None:
        station.journal.handed_over("left", [job.id for job in jobs])
        for job in jobs:
            station.let_go(job)

    async def _release(self, station: Station) -> list[Job]:
        jobs: list[Job] = []
        for consumer in station.consumers:
            replayed, _ = await self._insist(consumer.read_receipt)
            jobs += consumer.interrupted + (replayed or [])
            consumer.interrupted = []
        return await self._say("release", station, jobs)

    async def _say(self, verb: str, station: Station, jobs: Sequence[Job]) -> list[Job]:
        """Say it of `jobs`, many in one call, and tell what came of it; answers those of which nothing was heard."""
        keys = station.keys
        declared = (keys.active, keys.pending) if verb == "release" else (keys.active,)
        unheard: list[Job] = []
        for at in range(0, len(jobs), _CHUNK):
            chunk = jobs[at : at + _CHUNK]
            answers, again = await self._insist(partial(self._told, verb, keys, declared, chunk))
            if again or answers is None:
                self._unanswered.update(chunk)
            if answers is None:
                unheard += chunk
                continue
            said = []
            for job, answer in zip(chunk, answers, strict=True):
                # Refused now, but sent once before without an answer: it was done that time, which is why the job is
                # not ours now.
                if answer == b"ok" or job in self._unanswered:
                    said.append(job.id)
                else:
                    station.journal.lost(job, answer.decode())
                station.let_go(job)
            station.journal.handed_over(_PAST[verb], said)
        return unheard

    async def _told(self, verb: str, keys: Keys, declared: Sequence[str], jobs: Sequence[Job]) -> list[bytes]:
        """The answers of the script `verb`, which for `release` are those of the server's command where it has one.

        One round trip; raises what the wire raises.
        """
        answers: dict[Job, bytes] = {}
        if verb == "release" and REQUEUE in self._wire.spoken.commands:
            answers = await self._requeued(keys, jobs)
        if rest := [job for job in jobs if job not in answers]:
            words = [word for job in rest for word in (job.id, job.held)]
            said = await evaluate(self._wire, verb, declared, [keys.base, *words])
            answers |= dict(zip(rest, said, strict=True))
        return [answers[job] for job in jobs]

    async def _requeued(self, keys: Keys, jobs: Sequence[Job]) -> dict[Job, bytes]:
        """What became of the jobs that were given back by the command; those that it did not take are left out."""
        names = (keys.active, keys.pending)
        asked = [(REQUEUE, 3, keys.found(job.id), *names, job.id, job.held) for job in jobs]
        replies = await self._wire.pipeline(asked)
        known = zip(jobs, map(_answer, replies), strict=True)
        return {job: answer for job, answer in known if answer is not None}

    def _begin_last_words(self) -> None:
        # One time limit for everything that is said from here on: a process with many queues must not wait once for
        # each.
        self._unheard_s = anyio.current_time() + LAST_WORDS_MS / 1000

    async def _insist(self, say: Callable[[], Awaitable[T]]) -> tuple[T | None, bool]:
        """The reply of `say()`, None without one in time; and whether it may have been said before that."""
        again = False
        with anyio.CancelScope(deadline=self._unheard_s):
            while True:
                try:
                    return await say(), again
                except WireError as error:
                    again = again or isinstance(error, ConnectionLost)
                    await self._clock.sleep_ms(_RETRY_MS)
                except EchoMQError:
                    break
        return None, again

    def _cancellable(self, station: Station) -> bool:
        return bool(set(station.running).difference(station.executor.in_threads()))

    async def _wait(self, done: Callable[[], bool], limit_ms: float, *, hurries: bool = False) -> None:
        until = self._clock.monotonic_ms() + limit_ms
        while not done() and not (hurries and self._hurried):
            left_ms = until - self._clock.monotonic_ms()
            if left_ms <= 0:
                return
            await self._nap.sleep(self._clock, left_ms)


def _answer(reply: Any) -> bytes | None:
    """What `release` would have answered; None where the command did not look at the job."""
    if isinstance(reply, Gone):
        return b"gone"
    if isinstance(reply, Stale):
        return b"stale"
    if isinstance(reply, StateRefused):
        return b"not_active"
    return None if isinstance(reply, Exception) else b"ok"
