"""Journal: what became of the jobs of one queue, as log lines and as counts.

Source: issue "A worker that runs jobs", Logs: one line per start (debug), completion (info), retry (warning), death
(error), with queue, id, attempt and duration; never a payload. Lines are written when the server has answered, not
before.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from echomq_worker.clock import Clock
from echomq_worker.errors import Unreadable, is_of_the_server
from echomq_worker.hooks import QueueHooks
from echomq_worker.job import Job
from echomq_worker.logs import Logger, current_job
from echomq_worker.observers import Dead, Observers, Stale, Started
from echomq_worker.outcome import Settled
from echomq_worker.raised import is_a, say, trace_of, with_trace
from echomq_worker.verdict import Bury, Reject, Retry, RetryLater, Verdict

# The most ids that one line lists.
LISTED = 100
_OURS = f"{Path(__file__).parent}{os.sep}"


class Journal:
    """One per queue. `counts` has the answers of the settle script, and buried, lost, released, disowned, left."""

    __slots__ = ("_clock", "_hooks", "_lines", "_log", "_observers", "_timed", "counts", "handed", "queue")

    def __init__(
        self,
        queue: str,
        *,
        log: Logger,
        clock: Clock,
        level: str = "info",
        observers: Observers | None = None,
        hooks: QueueHooks | None = None,
    ) -> None:
        """`observers` are told what is written, `hooks` what is done or dead; None: there are none."""
        self.queue = queue
        self.counts: Counter[str] = Counter()
        self.handed: defaultdict[str, list[str]] = defaultdict(list)
        self._log = log.bind(queue=queue)
        self._clock = clock
        self._observers = observers
        self._hooks = hooks
        # Only the lines of starts and completions need time stamps: where these are not logged the clock is not read.
        self._lines = level in {"debug", "info"}
        self._timed = self._lines or observers is not None

    def started(self, job: Job) -> None:
        """The handler is about to run, in this very context: its own log lines carry the job from here on."""
        current_job.set(job)
        if self._timed:
            self.began(job)

    def began(self, job: Job) -> None:
        """The handler is about to run, in whatever context: of a batch none of its jobs is the running one."""
        if self._timed:
            job.started_ms = self._clock.monotonic_ms()
            self._log.debug("job started", id=job.id, attempt=job.attempts)
            if self._observers is not None:
                self._observers.note(Started, self.queue, job.id, job.attempts)

    def ended(self, job: Job) -> None:
        """The handler has ended: from here on `job.ran_ms` is how long it ran."""
        if self._timed:
            try:
                started_ms = job.started_ms
            except AttributeError:
                return  # no handler was called
            job.ran_ms = self._clock.monotonic_ms() - started_ms

    def settled(self, answers: Sequence[Settled]) -> None:
        """The server has answered these verdicts."""
        if self._observers is not None:
            self._observers.settled(self.queue, answers)
        if self._hooks is not None:
            self._hooks.settled(answers)
        self.counts.update([answer for _, _, answer in answers])
        for job, verdict, answer in answers:
            if answer == "done":
                if self._lines:
                    self._log.info("job completed", id=job.id, attempt=job.attempts, duration_ms=round(job.ran_ms, 1))
            else:
                self._tell(job, verdict, answer)
            # Its traceback holds the handler's frames, and these the job: a cycle that would wait for the collector.
            job.exception = None

    def buried(self, id: str, reason: str) -> None:
        """A claim gave a job up instead of handing it out."""
        self.counts["buried"] += 1
        self._log.error("job dead", id=id, error=reason)
        if self._observers is not None:
            self._observers.note(Dead, self.queue, id, None, reason)
        if self._hooks is not None:
            self._hooks.buried(id, reason)

    def stalled(self, ids: Sequence[str]) -> None:
        """The counting sweep gave back jobs whose lease ran out."""
        if ids:
            self.counts["stalled"] += len(ids)
            self._log.warning("jobs stalled", ids=list(ids))

    def lost(self, job: Job, reason: str) -> None:
        """The lease of a job in hand is lost; its handler is cancelled and its verdict is not written."""
        self.counts["lost"] += 1
        self._log.warning("lease lost", id=job.id, attempt=job.attempts, reason=reason)
        if self._observers is not None:
            self._observers.note(Stale, self.queue, job.id, job.attempts, reason)

    def asked(self, job: Job, why: str) -> None:
        """Somebody asked for the end of a job in hand, and it was told."""
        self.counts["asked"] += 1
        self._log.info("job asked to end", id=job.id, attempt=job.attempts, reason=why)

    def handed_over(self, what: str, ids: Sequence[str]) -> None:
        """At shutdown: jobs that were released, disowned, or left to their lease. `handed` keeps the first hundred."""
        if not ids:
            return
        self.counts[what] += len(ids)
        self.handed[what] += ids[: LISTED - len(self.handed[what])]
        for at in range(0, len(ids), LISTED):
            self._log.warning(f"jobs {what}", ids=list(ids[at : at + LISTED]))

    def _tell(self, job: Job, verdict: Verdict, answer: str) -> None:
        fields: dict[str, object] = {"id": job.id, "attempt": job.attempts}
        if self._timed:
            fields["duration_ms"] = round(job.ran_ms, 1)
        if isinstance(verdict, (RetryLater, Bury)):
            fields["error"] = verdict.error
        if answer == "scheduled":
            say(self._log.warning, "job retried", _trace(job), failures=job.failures + 1, **fields)
        elif answer == "dead":
            say(self._log.error, "job dead", _trace(job), failures=job.failures + 1, **fields)
        elif answer == "delayed":
            self._log.info("job delayed", **fields)
        else:
            # Nothing is dropped in silence: the claim was not ours any more, the row is gone, or cannot be worked on.
            self._log.warning("verdict refused", answer=answer, **fields)


def _trace(job: Job) -> BaseException | None:
    """The exception whose trace helps: a handler's own, not one that steers, that says what a payload is not, or with
    which a call of the handler's met an outage of the server.
    """
    error = job.exception
    if error is None or is_a(error, Unreadable, Reject, Retry) or is_of_the_server(error):
        return None
    # It begins with the handler: the frames that called it are the same for every job.
    frames = trace_of(error)
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    return error if frames is None else with_trace(error, frames)
