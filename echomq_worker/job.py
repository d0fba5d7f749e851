"""Job: what a handler is given, and the cancellation of one job.

Source: design.md section 2 (the members), protocol section 4 (`progress`, `add_log`, extension of a lease), section 1
(row fields). A worker makes a hundred thousand of these a second: the constructor only stores, the rest is computed
when it is asked for, and what all jobs of a consumer share is one object, `JobContext`.

For the loops: make one `JobContext` per consumer; `Job(context, id, payload, attempts, failures, group, held)` per
claimed job; `cancel(job, reason)` to end the handler of a job in hand, `ask(job, why)` to tell it that somebody asked
for its end (both on the event loop's thread only).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeVar, cast

from echomq_worker import children
from echomq_worker.children import Dependencies
from echomq_worker.codec import Decoder, decoder_for
from echomq_worker.connector import Wire
from echomq_worker.errors import ConfigError, InvalidArgument, Stale, shown
from echomq_worker.guards import progress_text, utf8
from echomq_worker.identity import minted_at_ms
from echomq_worker.keyspace import Keys
from echomq_worker.script import evaluate

T = TypeVar("T")

Reason = Literal["cancelled", "timeout", "shutdown", "lease lost"]
CANCELLED: Reason = "cancelled"
TIMEOUT: Reason = "timeout"
SHUTDOWN: Reason = "shutdown"
LEASE_LOST: Reason = "lease lost"
# A later reason replaces an earlier one only where it is the stronger one.
_STRENGTH: dict[Reason, int] = {CANCELLED: 0, TIMEOUT: 1, SHUTDOWN: 2, LEASE_LOST: 3}

LOGS_KEEP = 1_000
# Doubles, which scripts count in, are exact up to here.
_LARGEST_MS = 2**53 - 1


class JobCancelled(asyncio.CancelledError):
    """Raised by `Job.check_cancelled()`; the argument is the reason.

    A cancellation like any other: let it pass. It is a `BaseException`, so `except Exception` does not stop it.
    """


class Cancellable(Protocol):
    """The part of a task that ends a handler."""

    def cancel(self) -> bool:
        """Cancel it; False when it has ended."""
        ...


class Cancellation:
    """That a job was asked to end: `reason`, and `sent`, how often its task was cancelled for it.

    `asked` is the reason of a request, None where nobody asked: it stays when a stronger reason comes.
    """

    __slots__ = ("asked", "reason", "sent")

    def __init__(self, reason: Reason) -> None:
        self.reason: Reason = reason
        self.asked: str | None = None
        self.sent = 0

    @property
    def text(self) -> str:
        """The reason in words: of a request what its row will say when it is dead."""
        return cancelled(self.asked or "") if self.reason == CANCELLED else self.reason


class JobContext:
    """What all jobs of one consumer share; made inside the event loop that runs them.

    `wire` carries progress, log lines and extensions; `max_attempts` is the handler's; `logs_keep` is the number of
    newest log lines that a job keeps (None: all).
    """

    __slots__ = ("keys", "logs_keep", "loop", "max_attempts", "queue", "wire")

    def __init__(self, keys: Keys, wire: Wire, *, max_attempts: int, logs_keep: int | None = LOGS_KEEP) -> None:
        self.keys = keys
        self.queue = keys.queue
        self.wire = wire
        self.max_attempts = max_attempts
        self.logs_keep = logs_keep
        self.loop = asyncio.get_running_loop()


class Job:
    """One claimed job.

    `id` (branded), `payload` (bytes as they were enqueued), `attempts` (claims of it, this one included; the fencing
    token), `failures` (failed runs before this one), `group` (its lane or None). `held` is `token:random` of the claim.
    The rest of the attributes belongs to the worker: `runner` (what cancels the handler, None in a thread),
    `cancellation`, `exception` (what the handler raised, for the log line), `lease` (what it is kept with),
    `ran_ms` (how long the handler ran; 0 until it has ended, and where nobody asks for times), `started_ms` (when it
    began, by the monotonic clock; not there for one that has not).
    """

    __slots__ = (
        "attempts",
        "cancellation",
        "context",
        "exception",
        "failures",
        "flow_child",
        "group",
        "held",
        "id",
        "lease",
        "payload",
        "ran_ms",
        "runner",
        "started_ms",
    )

    # Positional, against the rule of this package: keywords would double the cost of the hottest constructor.
    def __init__(
        self,
        context: JobContext,
        id: str,
        payload: bytes | None,
        attempts: int,
        failures: int = 0,
        group: str | None = None,
        held: str = "",
    ) -> None:
        self.context = context
        self.id = id
        # A row can be without payload, but no handler sees such a job: for it the attribute is bytes.
        self.payload: bytes = payload  # type: ignore[assignment]  # see above
        self.attempts = attempts
        self.failures = failures
        self.group = group
        self.held = held
        self.lease: Any = None
        self.flow_child = False
        self.runner: Cancellable | None = None
        self.cancellation: Cancellation | None = None
        self.exception: BaseException | None = None
        self.ran_ms = 0.0
        self.started_ms: float

    def __repr__(self) -> str:
        return f"<Job {self.id} of {self.queue}, attempt {self.attempts}>"

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.context.queue

    @property
    def token(self) -> int:
        """The fencing token of this claim: the same number as `attempts`."""
        return self.attempts

    @property
    def attempt(self) -> int:
        """Which claim of the job this is, from 1: the same number as `attempts`."""
        return self.attempts

    @property
    def max_attempts(self) -> int:
        """Failed runs after which the job is dead."""
        return self.context.max_attempts

    @property
    def last_attempt(self) -> bool:
        """Whether a failure of this run is the last one: the job would be dead."""
        return self.failures + 1 >= self.context.max_attempts

    @property
    def minted_at(self) -> int:
        """When the id was minted, in ms since 1970 on the producer's clock. Raises InvalidId for a foreign id."""
        return minted_at_ms(self.id)

    def parse(self, kind: type[T]) -> T:
        """The payload as `kind`: a pydantic model, a dataclass, str, a JSON type; as a handler's parameter is read.

        For handlers of batches. Raises Unreadable (without any of the payload in its text), ConfigError for a kind that
        no payload can be read as.
        """
        sort: Any = kind
        return cast("T", _decoder(sort)(self.payload))

    @property
    def hollow(self) -> bool:
        """Whether the row had no payload (deleted, or made anew by promote): no handler sees it."""
        payload: bytes | None = self.payload
        return payload is None

    @property
    def cancelled(self) -> bool:
        """Whether the job was asked to end: by a request, its time is up, the worker stops, or its lease is lost."""
        return self.cancellation is not None

    @property
    def cancel_reason(self) -> str | None:
        """Why: `cancelled: <the request's reason>`, `timeout`, `shutdown` or `lease lost`; None while it may go on."""
        return None if self.cancellation is None else self.cancellation.text

    def check_cancelled(self) -> None:
        """Raises JobCancelled when the job was asked to end: for plain functions, and loops that never await."""
        if self.cancellation is not None:
            raise JobCancelled(self.cancellation.text)

    @property
    def blocking(self) -> BlockingJob:
        """`progress`, `log` and `extend` for a plain function in its thread: they wait for the reply."""
        return BlockingJob(self)

    async def progress(self, value: object) -> bool:
        """Write `value` (a text, or anything that JSON can carry) as the row's progress, and publish it.

        True, or False where the row is gone. Raises InvalidArgument for a value without a JSON form, WireError.
        Source: protocol section 4, `update_progress` and `progress`.
        """
        keys = self.context.keys
        argv = [progress_text(value), self.id, keys.base]
        reply = await evaluate(self.context.wire, "update_progress", [keys.job(self.id)], argv)
        return bool(reply == 1)

    async def log(self, line: str) -> bool:
        """Append `line` to the job's log; the oldest lines beyond the kept number go.

        True, or False where the row is gone. A completed job's log goes with its row. Raises InvalidArgument,
        WireError.
        Source: protocol section 4, `add_log`.
        """
        if not isinstance(line, str):
            raise InvalidArgument(f"log line of job {self.id}: expected str, got {type(line).__name__}")
        keys, keep = self.context.keys, self.context.logs_keep
        argv = [utf8("log line", line), "" if keep is None else keep]
        reply = await evaluate(self.context.wire, "add_log", [keys.job(self.id), keys.logs(self.id)], argv)
        return bool(reply != -1)

    async def extend(self, ms: int) -> bool:
        """Hold the job for `ms` milliseconds from now on the server's clock; never less than what it has.

        The worker keeps the leases of running jobs by itself: this is for code that will block the whole process for
        longer than a lease. True, or False where the job is not ours any more (gone, reaped, claimed by another since).
        Raises InvalidArgument (not an int of 1..2^53-1), WireError. Source: protocol section 4, `extend_lock`.
        """
        if not _is_positive(ms):
            raise InvalidArgument(f"extend of job {self.id}: expected an int of 1..2^53-1 ms, got {shown(ms)}")
        keys = self.context.keys
        argv = [self.id, self.held or self.attempts, ms]
        try:
            reply = await evaluate(self.context.wire, "extend_lock", [keys.active, keys.job(self.id)], argv)
        except Stale:
            return False
        return bool(reply == 1)

    async def children_values(self) -> dict[str, object]:
        """What the children of this job, a flow's parent, have returned, by id: JSON decoded, else text, else bytes.

        A child that returned nothing has its own id there. Raises WireError. Source: protocol section 6.
        """
        return await children.values(self.context.wire, self.context.keys, self.id)

    async def dependencies(self) -> Dependencies:
        """How the children of this job stand: who is done, dead, dead but ignored. Raises WireError."""
        return await children.dependencies(self.context.wire, self.context.keys, self.id)

    async def ignored_failures(self) -> dict[str, str]:
        """Why the children died whose death this job ignores (policy `id`), by id. Raises WireError."""
        return await children.ignored_failures(self.context.wire, self.context.keys, self.id)


class BlockingJob:
    """The awaitable verbs of a job for a plain function, which runs in a thread: each waits for its reply.

    ConfigError on the event loop's own thread, where waiting would stop the loop that must answer.
    """

    __slots__ = ("_job",)

    def __init__(self, job: Job) -> None:
        self._job = job

    def progress(self, value: object) -> bool:
        """As `Job.progress`."""
        return self._wait("progress", self._job.progress(value))

    def log(self, line: str) -> bool:
        """As `Job.log`."""
        return self._wait("log", self._job.log(line))

    def extend(self, ms: int) -> bool:
        """As `Job.extend`."""
        return self._wait("extend", self._job.extend(ms))

    def children_values(self) -> dict[str, object]:
        """As `Job.children_values`."""
        return self._wait("children_values", self._job.children_values())

    def dependencies(self) -> Dependencies:
        """As `Job.dependencies`."""
        return self._wait("dependencies", self._job.dependencies())

    def ignored_failures(self) -> dict[str, str]:
        """As `Job.ignored_failures`."""
        return self._wait("ignored_failures", self._job.ignored_failures())

    def _wait(self, verb: str, call: Coroutine[Any, Any, T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(call, self._job.context.loop).result()
        call.close()
        raise ConfigError(f"job.blocking.{verb}() on an event loop: expected `await job.{verb}()`")


@lru_cache(maxsize=256)
def _decoder(kind: type) -> Decoder:
    return decoder_for(kind)


def cancel(job: Job, reason: Reason) -> bool:
    """Ask a job in hand to end: it is marked, and the task of an async handler is cancelled.

    A stronger reason (a request, timeout, shutdown, lease lost: in this order) replaces a weaker one and cancels once
    more; any other second call does nothing. True when something was done. On the event loop's thread only.
    """
    mark = job.cancellation
    if mark is None:
        mark = job.cancellation = Cancellation(reason)
    elif _STRENGTH[reason] > _STRENGTH[mark.reason]:
        mark.reason = reason
    else:
        return False
    _interrupt(job, mark)
    return True


def ask(job: Job, why: str, *, interrupt: bool) -> bool:
    """Tell a job in hand that somebody asked for its end: it is marked; with `interrupt` its task is cancelled.

    True the first time. A job that is to end for a stronger reason keeps that one. On the event loop's thread only.
    """
    mark = job.cancellation
    if mark is None:
        mark = job.cancellation = Cancellation(CANCELLED)
    elif mark.asked is not None:
        return False
    mark.asked = why
    if interrupt and mark.reason == CANCELLED:
        _interrupt(job, mark)
    return True


def cancelled(why: str) -> str:
    """What the row of a job says that is dead because somebody asked for its end."""
    return f"{CANCELLED}: {why}"


def _interrupt(job: Job, mark: Cancellation) -> None:
    if job.runner is not None and job.runner.cancel():
        mark.sent += 1


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _LARGEST_MS
