"""Jobs: admission and the transitions of single jobs, as a producer, an operator or a plain worker calls them.

Source: the seed "Scheduling & recurrence" (enqueue_at, enqueue_in, promote, delay: guards, outcomes, refusals) and
protocol section 4. Malformed ids, queue names and numbers are refused before the wire (InvalidId, InvalidQueueName,
InvalidArgument); an id of a foreign namespace is refused by the script (KindRefused), as every runtime sees it.

Every verb raises what `Connector.call` raises. A plain verb is sent once: where its reply is lost it may have run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any, Literal

from echomq_worker import rows
from echomq_worker.admission import New, Row, admission, admit_one, is_more, receipt_of, row_of
from echomq_worker.codec import encode
from echomq_worker.connector import Wire
from echomq_worker.errors import InvalidArgument
from echomq_worker.gathering import Gathering
from echomq_worker.guards import decimal, integer, token_text
from echomq_worker.identity import Mint, check_id, default_mint
from echomq_worker.keyspace import Keys
from echomq_worker.operate import Operator
from echomq_worker.rows import Claimed, Counts, JobView, Receipt, State, Totals
from echomq_worker.script import evaluate, evaluate_many

__all__ = ["Jobs", "Mode", "New"]

Mode = Literal["in", "at"]

_CHUNK_JOBS = 400
_CHUNK_BYTES = 4 * 1024 * 1024
_CHUNKS_A_TRIP = 16
# The keys of so many queues are kept, instead of being made anew for each job.
_KNOWN_QUEUES = 1_000


class Jobs(Operator):
    """The verbs of jobs over any wire: a connector, or a pool. `mint` makes the ids that the caller does not give.

    What an operator does to one job is in `operate`. A payload is bytes as they are, text (UTF-8), a pydantic model or
    anything that JSON can hold.
    """

    __slots__ = ("_gathering", "_known", "_mint", "_wire")

    trips_in_flight = 2
    """Of `enqueue_many`: the server works on one trip while the next is packed."""
    gathers = True
    """Whether flat jobs that several coroutines enqueue at the same time leave as one script call."""

    def __init__(self, wire: Wire, *, mint: Mint | None = None) -> None:
        self._wire = wire
        self._mint = mint or default_mint()
        self._gathering = Gathering(wire) if self.gathers else None
        self._known: dict[str, Keys] = {}

    async def enqueue(
        self,
        queue: str,
        payload: object,
        *,
        id: str | None = None,
        dedup: str | None = None,
        dedup_ttl_ms: int | None = None,
        expires_in_ms: int | None = None,
        expires_at_ms: int | None = None,
    ) -> Receipt:
        """Admit a job to flat pending. Raises KindRefused for an id that is not JOB-namespaced.

        Dedup key and expiry are those of `New`, here and in the two below; where another job has the key, the receipt
        is `deduplicated` and names that job.
        """
        if dedup is not None or dedup_ttl_ms is not None or expires_in_ms is not None or expires_at_ms is not None:
            new = New(payload, id, None, None, None, dedup, dedup_ttl_ms, expires_in_ms, expires_at_ms)
            return await admit_one(self._wire, queue, new, self._mint)
        try:
            keys = self._known[queue]
        except (KeyError, TypeError):
            # TypeError: a value that cannot be hashed cannot be looked up, and is no queue's name.
            keys = self._know(queue)
        id = self._mint.next() if id is None else id
        if self._gathering is not None:
            return Receipt(id, await self._gathering.admit(keys, check_id(id), encode(payload)))
        reply = await evaluate(self._wire, "enqueue", (keys.job(id), keys.pending), (id, encode(payload)))
        return Receipt(id, reply == 1)

    async def enqueue_at(
        self,
        queue: str,
        payload: object,
        run_at_ms: int,
        *,
        id: str | None = None,
        dedup: str | None = None,
        dedup_ttl_ms: int | None = None,
        expires_in_ms: int | None = None,
        expires_at_ms: int | None = None,
    ) -> Receipt:
        """Admit a job that is fenced out of pending until `run_at_ms`: any integer, ms since 1970, also a past one."""
        at_ms = integer("run_at_ms", run_at_ms)
        new = New(payload, id, None, None, at_ms, dedup, dedup_ttl_ms, expires_in_ms, expires_at_ms)
        return await self._schedule(queue, new, "at", at_ms)

    async def enqueue_in(
        self,
        queue: str,
        payload: object,
        delay_ms: int,
        *,
        id: str | None = None,
        dedup: str | None = None,
        dedup_ttl_ms: int | None = None,
        expires_in_ms: int | None = None,
        expires_at_ms: int | None = None,
    ) -> Receipt:
        """Admit a job that is due `delay_ms` (0 or more) from now, on the server's clock."""
        in_ms = integer("delay_ms", delay_ms, at_least=0)
        new = New(payload, id, None, in_ms, None, dedup, dedup_ttl_ms, expires_in_ms, expires_at_ms)
        return await self._schedule(queue, new, "in", in_ms)

    async def _schedule(self, queue: str, new: New, mode: Mode, value: int) -> Receipt:
        if is_more(new):
            return await admit_one(self._wire, queue, new, self._mint)
        keys, id = Keys(queue), self._mint.next() if new.id is None else new.id
        values = (id, encode(new.payload), mode, decimal(value))
        return Receipt(id, await evaluate(self._wire, "schedule", (keys.job(id), keys.schedule), values) == 1)

    async def enqueue_many(self, queue: str, items: Iterable[object | New]) -> list[Receipt]:
        """Admit many jobs, payloads or `New`, and return their receipts in the same order.

        Everything is checked before the first is sent. Up to 6,400 jobs are one round trip, 400 to a script call. An id
        that is not JOB-namespaced is `refused` on its receipt and holds up no other. An error of the server or the wire
        raises and leaves open which jobs were admitted; give ids, and the batch can be sent again.
        """
        keys = Keys(queue)
        chunks = list(_chunks([row_of(item, self._mint) for item in items]))
        flights = [chunks[first : first + _CHUNKS_A_TRIP] for first in range(0, len(chunks), _CHUNKS_A_TRIP)]
        receipts: list[list[Receipt]] = [[] for _ in flights]
        # All draw from one iterator.
        numbered = iter(enumerate(flights))
        drawing = [self._admit(keys, numbered, receipts) for _ in flights[: self.trips_in_flight]]
        if len(drawing) > 1:
            await _all(drawing)
        else:
            for one in drawing:
                await one
        return [receipt for flight in receipts for receipt in flight]

    async def _admit(
        self, keys: Keys, flights: Iterator[tuple[int, list[Sequence[Row]]]], receipts: list[list[Receipt]]
    ) -> None:
        for number, chunks in flights:
            replies = rows.checked(await evaluate_many(self._wire, [admission(keys, chunk) for chunk in chunks]))
            receipts[number] = [
                receipt_of(job[0], verdict)
                for chunk, verdicts in zip(chunks, replies, strict=True)
                for job, verdict in zip(chunk, verdicts, strict=True)
            ]

    def _know(self, queue: str) -> Keys:
        keys = Keys(queue)
        if len(self._known) < _KNOWN_QUEUES:
            self._known[queue] = keys
        return keys

    async def claim(self, queue: str, lease_ms: int) -> Claimed | None:
        """Take the oldest flat job under a lease of `lease_ms` (1 or more), or None when none is pending.

        The plain verb: it serves no lane, knows no pause and no ceiling, and counts no crash.
        """
        keys = Keys(queue)
        values = (f"{keys.base}job:", integer("lease_ms", lease_ms, at_least=1))
        reply = await evaluate(self._wire, "claim", (keys.pending, keys.active), values)
        return _claimed(reply) if reply else None

    async def claim_batch(self, queue: str, lease_ms: int, size: int) -> list[Claimed]:
        """Take up to `size` flat jobs, oldest first, under one deadline; fewer when fewer are pending."""
        keys = Keys(queue)
        values = (
            f"{keys.base}job:",
            integer("lease_ms", lease_ms, at_least=1),
            integer("size", size, at_least=1),
        )
        return [_claimed(job) for job in await evaluate(self._wire, "claim_batch", (keys.pending, keys.active), values)]

    async def complete(self, queue: str, id: str, token: int | str) -> bool:
        """The job is done: its row is deleted. False when there was none any more; raises Stale for another's token."""
        keys = Keys(queue)
        values = (id, token_text(token), keys.base)
        return bool(await evaluate(self._wire, "complete", (keys.active, keys.job(id)), values))

    async def retry(
        self,
        queue: str,
        id: str,
        token: int | str,
        *,
        delay_ms: int = 1_000,
        max_attempts: int = 3,
        error: str = "",
    ) -> Literal["scheduled", "dead"]:
        """The run failed: due again `delay_ms` from now, or dead once its failures reach `max_attempts`.

        `error` becomes the row's `last_error`. Sent again, it gives the first answer and counts once. Raises Gone when
        there is no row, Stale for another's token or after another verdict of the same claim.
        """
        keys = Keys(queue)
        values = (
            id,
            token_text(token),
            integer("delay_ms", delay_ms, at_least=0),
            integer("max_attempts", max_attempts, at_least=1),
            error.encode("utf-8", "replace"),
            keys.base,
        )
        names = (keys.active, keys.schedule, keys.dead, keys.job(id))
        return "dead" if await evaluate(self._wire, "retry", names, values) == b"dead" else "scheduled"

    async def delay(self, queue: str, id: str, token: int | str, value_ms: int, *, mode: Mode = "in") -> None:
        """Send a job in hand back to the schedule; no failure, attempts and payload stay.

        `value_ms` is any integer: a delay from now on the server's clock (`in`), or an absolute run-at (`at`). Raises
        Gone, Stale (another's token, or the row is dead) and KindRefused.
        """
        keys = Keys(queue)
        if mode not in {"in", "at"}:
            raise InvalidArgument("mode: expected 'in' or 'at'")
        values = (id, token_text(token), mode, decimal(integer("value_ms", value_ms)))
        await evaluate(self._wire, "delay", (keys.job(id), keys.active, keys.schedule), values)

    async def promote(self, queue: str, batch: int = 100) -> int:
        """Release up to `batch` jobs that are due on the server's clock; how many were selected."""
        keys = Keys(queue)
        values = (keys.base, integer("batch", batch, at_least=1))
        return int(await evaluate(self._wire, "promote", (keys.schedule, keys.pending), values))

    async def reap(self, queue: str) -> int:
        """Return jobs whose lease ran out, at most 100; how many leases were selected."""
        keys = Keys(queue)
        return int(await evaluate(self._wire, "reap", (keys.active, keys.pending), (keys.base,)))

    async def extend_lock(
        self, queue: str, id: str, token: int | str, lease_ms: int
    ) -> Literal["extended", "not_active", "gone"]:
        """Make one lease last `lease_ms` from now; never shortens, never revives. Raises Stale for another's token."""
        keys = Keys(queue)
        values = (id, token_text(token), integer("lease_ms", lease_ms, at_least=1))
        reply = await evaluate(self._wire, "extend_lock", (keys.active, keys.job(id)), values)
        return "extended" if reply == 1 else "not_active" if reply == 0 else "gone"

    async def extend_locks(self, queue: str, lease_ms: int, holds: Iterable[tuple[str, int | str]]) -> list[str]:
        """Extend many leases, given as (id, token), in one call; the ids that were lost: gone, stale or reaped."""
        keys = Keys(queue)
        pairs = [text for id, token in holds for text in (check_id(id), token_text(token))]
        values = (keys.base, integer("lease_ms", lease_ms, at_least=1), *pairs)
        return [id.decode() for id in await evaluate(self._wire, "extend_locks", (keys.active,), values)]

    async def browse(
        self,
        queue: str,
        state: State = "pending",
        *,
        group: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> list[JobView]:
        """Look at the jobs of one state, newest mint first (scheduled and active: the latest run-at, deadline first).

        `group` looks into that lane instead of flat pending. There is no index beside the sets: pages shift while jobs
        move, and a member whose row has just gone shows as `gone`.
        """
        keys = Keys(queue)
        if group is not None and state != "pending":
            raise InvalidArgument(f"group: a lane holds pending jobs only, state is {state!r:.40}")
        key = rows.set_of(keys, state) if group is None else keys.lane(group)
        limit, offset = integer("limit", limit, at_least=1), integer("offset", offset, at_least=0)
        return await rows.browse(self._wire, key, keys, limit=limit, offset=offset)

    async def get(self, queue: str, id: str) -> JobView | None:
        """One job's row, or None when there is none (it was completed, or never was)."""
        return await rows.get(self._wire, Keys(queue), id)

    async def counts(self, queue: str) -> Counts:
        """How many jobs stand where; not a snapshot."""
        return await rows.counts(self._wire, Keys(queue))

    async def metrics(self, queue: str) -> Totals:
        """How many jobs the queue has completed and buried since it began."""
        return await rows.totals(self._wire, Keys(queue))


async def _all(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for one in coroutines:
                group.create_task(one)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _chunks(jobs: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Cut where a script call has enough jobs, or bytes."""
    first, size = 0, 0
    for i, job in enumerate(jobs):
        if i > first and (i - first == _CHUNK_JOBS or size + len(job[1]) > _CHUNK_BYTES):
            yield jobs[first:i]
            first, size = i, 0
        size += len(job[1])
    if first < len(jobs):
        yield jobs[first:]


def _claimed(reply: Sequence[Any]) -> Claimed:
    id, payload, attempts = reply
    return Claimed(id.decode(), payload, int(attempts))
