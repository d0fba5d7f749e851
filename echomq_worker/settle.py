"""Settle: verdicts go to the wire in batches, and stay until they are answered.

Source: design section 3 (Settle), protocol section 4 ("Sent twice", "settled"), script `settle`. A finished job's
verdict goes out with all others that wait, in one round trip, at once when there is only one. It survives a lost
connection and an outage of any length; a verdict that had arrived counts once, so sending it again is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

import anyio

from echomq_worker.clock import Clock
from echomq_worker.connector import Wire
from echomq_worker.degraded import FAULTS, Degraded
from echomq_worker.errors import AuthenticationFailed, ServerError, Unavailable, Unreachable
from echomq_worker.job import Job
from echomq_worker.keyspace import Keys
from echomq_worker.nap import Nap
from echomq_worker.outcome import COMPLETE, Settled
from echomq_worker.packing import Packed
from echomq_worker.script import evaluate
from echomq_worker.verdict import Bury, Complete, DelayTo, RetryLater, Verdict

BATCH = 500
HURRIED_MS = 100
# In place of an answer, for a job whose row the script cannot work on: nobody knows what became of it.
UNKNOWN = "unknown"
_BROKEN_ROW = ("WRONGTYPE", "ERR")

Argument = str | bytes | int | Packed


class Settle:
    """The verdicts of one queue on their way. `put` never waits; `run` sends until it is closed and empty."""

    __slots__ = (
        "_clock",
        "_closed",
        "_counted",
        "_degraded",
        "_hurried",
        "_idle",
        "_keys",
        "_nap",
        "_on_settled",
        "_sending",
        "_shielded",
        "_waiting",
        "_wire",
        "resent",
    )

    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        *,
        clock: Clock,
        degraded: Degraded,
        on_settled: Callable[[Sequence[Settled]], None],
    ) -> None:
        # Verdicts that had no answer and were kept to be sent again.
        self.resent = 0
        self._wire = wire
        self._keys = keys
        self._clock = clock
        self._degraded = degraded
        self._on_settled = on_settled
        self._waiting: list[tuple[Job, Verdict]] = []
        self._sending: list[tuple[Job, Verdict]] = []
        self._nap = Nap()
        self._idle = False
        self._closed = False
        self._hurried = False
        self._shielded: anyio.CancelScope | None = None
        # Some of what is being sent may have been counted by the server, though we have no answer.
        self._counted = False

    def put(self, job: Job, verdict: Verdict) -> None:
        """File a verdict; it goes out in the event loop's next turn, with all that were filed by then."""
        self._waiting.append((job, verdict))
        if self._idle:
            self._idle = False
            self._nap.wake()

    @property
    def stuck(self) -> bool:
        """True while verdicts cannot be delivered: nothing new may be claimed."""
        return self._degraded.streak > 0

    @property
    def open(self) -> list[Job]:
        """The jobs whose verdicts are not answered yet."""
        return [job for job, _ in (*self._sending, *self._waiting)]

    def close(self) -> None:
        """End `run` as soon as every verdict is answered."""
        self._closed = True
        self._nap.wake()

    def hurry(self) -> None:
        """The process is about to end: send now, and after an error soon again instead of on the degraded curve."""
        self._hurried = True
        self._nap.wake()

    def abandon(self) -> None:
        """The process ends without the answer to what is on its way: a cancellation waits for it no more."""
        if self._shielded is not None:
            self._shielded.shield = False

    async def beat(self) -> int:
        """Send what waits, at most 500 verdicts in one call, and file the answers. Answers how many there were.

        Raises WireError or ServerError with the verdicts kept, to be sent again. Shielded: a cancellation waits for
        the answer.
        """
        if not self._sending:
            self._sending, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        if not self._sending:
            return 0
        again = self._counted
        with anyio.CancelScope(shield=True) as self._shielded:
            answers = await self._send(self._sending)
            reasons = await self._reasons(answers)
        self._counted = False
        self._degraded.good()
        batch, self._sending = self._sending, []
        settled = [(job, verdict, answer) for (job, verdict), answer in zip(batch, answers, strict=True)]
        for number, verdict in reasons.items():
            job, _, answer = settled[number]
            settled[number] = job, verdict, answer
        self._on_settled([_first_answer(*one) for one in settled] if again else settled)
        return len(batch)

    async def run(self) -> None:
        """Send whenever something waits; after an error wait on the degraded curve and send again.

        Raises ServerError when the server keeps refusing, a permission that was taken away say.
        """
        while not (self._closed and not self._waiting and not self._sending):
            if not self._waiting and not self._sending:
                self._idle = True
                await self._nap.wait()
                continue
            try:
                await self.beat()
            except FAULTS as error:
                self.resent += len(self._sending)
                wait_ms = self._degraded.fail(error, self._nap.wake)
                await self._nap.sleep(self._clock, min(wait_ms, HURRIED_MS) if self._hurried else wait_ms)

    async def _send(self, batch: Sequence[tuple[Job, Verdict]]) -> list[str]:
        keys = self._keys
        declared = (keys.active, keys.pending, keys.schedule, keys.dead)
        before, self._counted = self._counted, True
        try:
            answers = await evaluate(self._wire, "settle", declared, [keys.base, *arguments(batch)])
            return [answer.decode() for answer in answers]
        except (Unreachable, Unavailable, AuthenticationFailed):
            self._counted = before
            raise
        except ServerError as error:
            # One row that the script cannot work on (a foreign type under its key) must not hold up the others.
            if error.code not in _BROKEN_ROW:
                raise
            if len(batch) == 1:
                return [UNKNOWN]
        half = len(batch) // 2
        return [*await self._send(batch[:half]), *await self._send(batch[half:])]

    async def _reasons(self, answers: Sequence[str]) -> dict[int, Verdict]:
        """The verdicts, by number, in place of which the rows of dead jobs say something else: that somebody has asked
        for the job's end and it was not heard, or that it was dead before.

        Where it cannot be read it is the handler's own word that is told.
        """
        died = [number for number, answer in enumerate(answers) if answer == "dead"]
        if not died:
            return {}
        asked = [("HGET", self._keys.found(self._sending[number][0].id), "last_error") for number in died]
        try:
            said = await self._wire.pipeline(asked)
        except FAULTS:
            return {}
        own = [getattr(self._sending[number][1], "error", None) for number in died]
        rows = [text.decode("utf-8", "replace") if isinstance(text, bytes) else None for text in said]
        return {number: Bury(row) for number, row, error in zip(died, rows, own, strict=True) if row and row != error}


def _first_answer(job: Job, verdict: Verdict, answer: str) -> Settled:
    """What the first sending was answered, as far as it can be known: a completion that counted leaves no row."""
    return job, verdict, "done" if answer == "gone" and isinstance(verdict, Complete) else answer


def arguments(batch: Sequence[tuple[Job, Verdict]]) -> Sequence[Argument]:
    """The verdicts as the script takes them. Most batches hold plain completions and nothing else."""
    packed = []
    for job, verdict in batch:
        if verdict is not COMPLETE:
            break
        id, held, group = job.id, job.held, job.group
        lane = f"${len(group)}\r\n{group}\r\n" if group else "$0\r\n\r\n"
        packed.append(f"$1\r\nc\r\n${len(id)}\r\n{id}\r\n${len(held)}\r\n{held}\r\n{lane}")
    text = "".join(packed)
    if len(packed) == len(batch) and text.isascii():
        return [Packed(4 * len(batch), text.encode())]
    words: list[Argument] = []
    for job, verdict in batch:
        _add(words, job, verdict)
    return words


def _add(words: list[Argument], job: Job, verdict: Verdict) -> None:
    """Append one verdict as the script takes it."""
    group = job.group or ""
    match verdict:
        case Complete():
            if job.flow_child and verdict.result is not None:
                words += ("v", job.id, job.held, group, verdict.result)
            else:
                words += ("c", job.id, job.held, group)
        case RetryLater():
            words += ("r", job.id, job.held, group, verdict.delay_ms or 0, job.max_attempts, verdict.error)
        case Bury():
            words += ("r", job.id, job.held, group, 0, 1, verdict.error)
        case DelayTo():
            words += ("d", job.id, job.held, group, verdict.mode, verdict.value)
        case _:
            assert_never(verdict)
