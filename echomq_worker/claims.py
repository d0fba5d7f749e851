"""Claims: how one consumer takes jobs, so that no job is lost when a reply is.

Source: protocol section 4 (receipts, suspects, `held`), script `claim_many`. One claim is in flight at a time. Each
carries the number of the last reply that was read; a claim whose reply was lost is found again by its receipt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from echomq_worker.codec import count_of
from echomq_worker.job import Job, JobContext
from echomq_worker.script import Call
from echomq_worker.suspects import SUSPECT_CRASHES, Suspects

# The script takes no more in one call; a consumer with more free slots claims again.
MOST = 1_000
_STRIDE = 6


@dataclass(frozen=True, slots=True)
class Claimed:
    """What one claim brought: jobs in hand, ids that were buried with their reason, and what stood in the way, if
    anything.

    `why` is ok, paused, ceiling, rate (for another `wait_ms` nothing more may start), suspects (passed over: this
    process has one in hand) or replayed (a receipt was read).
    """

    jobs: list[Job]
    buried: list[tuple[str, str]]
    why: str
    asked: int
    wait_ms: int = 0

    @property
    def full(self) -> bool:
        """Whether every slot that was asked for was filled: there may be more."""
        return len(self.jobs) >= self.asked > 0 or self.why == "replayed"


def brings_jobs(reply: list[Any]) -> bool:
    """Whether a reply of `claim_many` has jobs in it, whose leases run since it was made."""
    return bool(reply[3])


class Claims:
    """The claims of one consumer. `call` makes the next one, `read` takes its reply; in between nothing else is
    claimed.
    """

    __slots__ = (
        "_asked",
        "_base",
        "_consumer",
        "_context",
        "_declared",
        "_lease_ms",
        "_max_crashes",
        "_number",
        "_sent",
        "_suspects",
        "_was_unread",
        "unread",
    )

    def __init__(
        self,
        context: JobContext,
        *,
        consumer: str,
        lease_ms: int,
        max_crashes: int,
        suspects: Suspects,
    ) -> None:
        self._context = context
        keys = context.keys
        self._base = keys.base
        self._declared = (keys.pending, keys.active, keys.ring, keys.meta, keys.receipt(consumer))
        self._consumer = consumer
        self._lease_ms = lease_ms
        self._max_crashes = max_crashes
        self._suspects = suspects
        self._number = 0
        self._sent = 0
        self._asked = 0
        self.unread = False
        self._was_unread = False

    def call(self, free: int) -> Call:
        """A claim for `free` slots; 0 only reads a receipt. From here to `read` its reply counts as unread."""
        self._sent += 1
        self._asked = min(free, MOST)
        self._was_unread, self.unread = self.unread, True
        allowed = 1 if self._suspects.reserve(self) else 0
        random = f"{self._consumer}.{self._sent}"
        return (
            "claim_many",
            self._declared,
            (self._base, self._lease_ms, self._asked, self._number, random, self._max_crashes, allowed),
        )

    def unsent(self) -> None:
        """The last `call` never left: no reply is owed for it."""
        self.unread = self._was_unread
        if not self.unread:
            self._suspects.release(self)

    def read(self, reply: list[Any]) -> Claimed:
        """The claim that a reply stands for. A suspect in it holds the process's place from here on."""
        number, why, random, flat, buried, kin = reply
        self._number = number
        self.unread = False
        context = self._context
        jobs: list[Job] = []
        suspect: Job | None = None
        fence = ":" + random.decode()
        for id, payload, attempts, group, failures, crashes in zip(*[iter(flat)] * _STRIDE, strict=True):
            try:
                count, failed = int(attempts), 0 if failures == b"0" else count_of(failures)
                lane = group.decode() if group else None
                job = Job(context, id.decode(), payload, count, failed, lane, f"{count}{fence}")
            except ValueError:
                # Not written by a client of ours, and no verdict on it could be sent. Its lease runs out as if the
                # claim had crashed, until so many crashes bury it.
                continue
            jobs.append(job)
            if crashes >= SUSPECT_CRASHES:
                suspect = job
        if kin:
            children = {id.decode(errors="replace") for id in kin}
            for job in jobs:
                job.flow_child = job.id in children
        if suspect is not None:
            self._suspects.hand_over(self, suspect)
        else:
            self._suspects.release(self)
        texts = [text.decode(errors="replace") for text in buried]
        names = list(zip(texts[::2], texts[1::2], strict=True))
        what, _, wait_ms = why.decode().partition(":")
        return Claimed(jobs, names, what, self._asked, int(wait_ms or 0))

    def wait_for_suspect(self, poke: Callable[[], None]) -> None:
        """Call `poke` once when this process may take a suspect again."""
        self._suspects.tell(self, poke)
