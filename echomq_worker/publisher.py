"""Publisher: events of one queue, sent after the answer to a verdict, together with whatever is sent next.

Source: issue "Every control" (Events: published after the verdict, no extra round trip on the hot path, can be turned
off), protocol section 4. Nobody waits for a PUBLISH: while the connection is gone events are dropped, and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from echomq_worker.codec import event_text
from echomq_worker.connection import Answer
from echomq_worker.connector import Connector
from echomq_worker.errors import EchoMQError, WireError
from echomq_worker.job import Job
from echomq_worker.keyspace import Keys
from echomq_worker.logs import Logger
from echomq_worker.outcome import Settled
from echomq_worker.verdict import Bury, RetryLater, Verdict

_NAMES = {"done": "completed", "scheduled": "scheduled", "dead": "dead", "delayed": "delayed"}


class Publisher:
    """Events of one queue. `dropped` counts those that were not sent, or of which nobody knows."""

    __slots__ = ("_channel", "_connector", "_log", "_refused", "dropped")

    def __init__(self, connector: Connector, keys: Keys, *, log: Logger) -> None:
        self.dropped = 0
        self._connector = connector
        self._channel = keys.events
        self._log = log.bind(queue=keys.queue)
        self._refused = False

    def settled(self, answers: Sequence[Settled]) -> None:
        """The server has answered these verdicts. A refused one (stale, gone) is no event."""
        texts = []
        for job, verdict, answer in answers:
            if answer == "done":
                # Written by hand: a busy queue has a hundred thousand of these a second.
                texts.append(f'{{"event":"completed","job":"{job.id}","attempts":"{job.attempts}"}}')
            elif answer in _NAMES:
                texts.append(_told(job, verdict, _NAMES[answer]))
        self._publish(texts)

    def buried(self, id: str, reason: str) -> None:
        """A claim or the sweep gave a job up."""
        self._publish([event_text("dead", id, error=reason)])

    def stalled(self, ids: Sequence[str]) -> None:
        """The counting sweep gave jobs back."""
        self._publish([event_text("stalled", id) for id in ids])

    def _publish(self, texts: Sequence[str]) -> None:
        if not texts:
            return
        sent = self._connector.publish(self._channel, texts)
        if sent is None:
            self.dropped += len(texts)
        else:
            sent.add_done_callback(partial(self._answered, len(texts)))

    def _answered(self, count: int, sent: asyncio.Future[Answer]) -> None:
        answer = sent.result()
        refused = answer[0] if isinstance(answer, list) else None
        if isinstance(answer, WireError) or isinstance(refused, EchoMQError):
            self.dropped += count
        if isinstance(refused, EchoMQError) and not self._refused:
            self._refused = True
            self._log.warning("events refused", error=str(refused))


def _told(job: Job, verdict: Verdict, name: str) -> str:
    said = {"attempts": str(job.attempts)}
    if isinstance(verdict, (RetryLater, Bury)):
        said |= {"failures": str(job.failures + 1), "error": verdict.error}
    return event_text(name, job.id, **said)
