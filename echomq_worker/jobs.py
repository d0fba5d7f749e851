"""Jobs: admission and the transitions of single jobs, as a producer, an operator or a plain worker calls them.

Source: the seed "Scheduling & recurrence" (enqueue_at, enqueue_in, promote, delay: guards, outcomes, refusals) and
protocol section 4. Malformed ids, queue names and numbers are refused before the wire (InvalidId, InvalidQueueName,
InvalidArgument); an id of a foreign namespace is refused by the script (KindRefused), as every runtime sees it.

Every verb raises what `Connector.call` raises. A plain verb is sent once: where its reply is lost it may have run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from echomq_worker import rows
from echomq_worker.codec import encode
from echomq_worker.connector import Wire
from echomq_worker.errors import InvalidArgument
from echomq_worker.guards import decimal, integer, token_text
from echomq_worker.identity import Mint, check_id, default_mint
from echomq_worker.keyspace import Keys
from echomq_worker.operate import Operator
from echomq_worker.rows import Claimed, Counts, JobView, Receipt, State, Totals
from echomq_worker.script import Call, evaluate, evaluate_many

Mode = Literal["in", "at"]

_CHUNK_JOBS = 400
_CHUNK_BYTES = 4 * 1024 * 1024
_CHUNKS_A_TRIP = 16
_TRIPS_IN_FLIGHT = 2
_VERDICT_REFUSED = -1


@dataclass(frozen=True, slots=True)
class New:
    """One item of `enqueue_many` that is more than a payload: its id, its lane, when it is due (one of the two), when
    it expires (one of the two), its dedup key.

    `in_ms` (0 or more) is priced on the server's clock, `at_ms` (any integer) is an absolute run-at in ms since 1970;
    likewise `expires_in_ms` and `expires_at_ms`: a job that was not started by then is dead, `expired`. While a job
    with the key `dedup` is neither done nor dead, another one is not admitted and the receipt names the first; with
    `dedup_ttl_ms` the key stands no longer than that.
    """

    payload: object
    id: str | None = None
    group: str | None = None
    in_ms: int | None = None
    at_ms: int | None = None
    dedup: str | None = None
    dedup_ttl_ms: int | None = None
    expires_in_ms: int | None = None
    expires_at_ms: int | None = None


class Jobs(Operator):
    """The verbs of jobs over any wire: a connector, or a pool. `mint` makes the ids that the caller does not give.

    What an operator does to one job is in `operate`. A payload is bytes as they are, text (UTF-8), a pydantic model or
    anything that JSON can hold.
    """

    __slots__ = ("_mint", "_wire")

    def __init__(self, wire: Wire, *, mint: Mint | None = None) -> None:
        self._wire = wire
        self._mint = mint or default_mint()

    async def enqueue(self, queue: str, payload: object, *, id: str | None = None) -> Receipt:
        """Admit a job to flat pending. Raises KindRefused for an id that is not JOB-namespaced."""
        keys, id = Keys(queue), self._mint.next() if id is None else id
        reply = await evaluate(self._wire, "enqueue", (keys.job(id), keys.pending), (id, encode(payload)))
        return Receipt(id, reply == 1)

    async def enqueue_at(self, queue: str, payload: object, run_at_ms: int, *, id: str | None = None) -> Receipt:
        """Admit a job that is fenced out of pending until `run_at_ms`: any integer, ms since 1970, also a past one."""
        return await self._schedule(queue, payload, "at", integer("run_at_ms", run_at_ms), id)

    async def enqueue_in(self, queue: str, payload: object, delay_ms: int, *, id: str | None = None) -> Receipt:
        """Admit a job that is due `delay_ms` (0 or more) from now, on the server's clock."""
        return await self._schedule(queue, payload, "in", integer("delay_ms", delay_ms, at_least=0), id)

    async def _schedule(self, queue: str, payload: object, mode: Mode, value: int, id: str | None) -> Receipt:
        keys, id = Keys(queue), self._mint.next() if id is None else id
        values = (id, encode(payload), mode, decimal(value))
        return Receipt(id, await evaluate(self._wire, "schedule", (keys.job(id), keys.schedule), values) == 1)

    async def enqueue_many(self, queue: str, items: Iterable[object | New]) -> list[Receipt]:
        """Admit many jobs, payloads or `New`, and return their receipts in the same order.

        Everything is checked before the first is sent. Up to 6,400 jobs are one round trip, 400 to a script call. An id
        that is not JOB-namespaced is `refused` on its receipt and holds up no other. An error of the server or the wire
        raises and leaves open which jobs were admitted; give ids, and the batch can be sent again.
        """
        keys = Keys(queue)
        chunks = list(_chunks([self._row(item) for item in items]))
        flights = [chunks[first : first + _CHUNKS_A_TRIP] for first in range(0, len(chunks), _CHUNKS_A_TRIP)]
        receipts: list[list[Receipt]] = [[] for _ in flights]
        # Both draw from one iterator: the server works on one trip while the next is packed.
        numbered = iter(enumerate(flights))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in flights[:_TRIPS_IN_FLIGHT]:
                    group.create_task(self._admit(keys, numbered, receipts))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [receipt for flight in receipts for receipt in flight]

    async def _admit(
        self, keys: Keys, flights: Iterator[tuple[int, list[Sequence[_Row]]]], receipts: list[list[Receipt]]
    ) -> None:
        for number, chunks in flights:
            replies = rows.checked(await evaluate_many(self._wire, [_admission(keys, chunk) for chunk in chunks]))
            receipts[number] = [
                _receipt(job[0], verdict)
                for chunk, verdicts in zip(chunks, replies, strict=True)
                for job, verdict in zip(chunk, verdicts, strict=True)
            ]

    def _row(self, item: object | New) -> _Row:
        if not isinstance(item, New):
            return (self._mint.next(), encode(item), *_PLAIN)
        id = self._mint.next() if item.id is None else check_id(item.id)
        group = "" if item.group is None else check_id(item.group)
        mode, value = _moment("in_ms", item.in_ms, "at_ms", item.at_ms)
        until, moment = _moment("expires_in_ms", item.expires_in_ms, "expires_at_ms", item.expires_at_ms)
        dedup, ttl = item.dedup or "", ""
        if item.dedup is not None:
            Keys("q").dedup(item.dedup)
            if not item.dedup:
                raise InvalidArgument("New: dedup is empty, expected a text")
        if item.dedup_ttl_ms is not None:
            ttl = decimal(integer("dedup_ttl_ms", item.dedup_ttl_ms, at_least=1))
        expires = f"{until}:{moment}" if until else ""
        return (id, encode(item.payload), group, mode, value, dedup, ttl, expires)

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


# id, payload, group, mode, value, dedup key, its ttl, expires: '' for what a job has not.
_Row = tuple[str, bytes, str, str, str, str, str, str]
_PLAIN = ("", "", "", "", "", "")


def _moment(in_name: str, in_ms: int | None, at_name: str, at_ms: int | None) -> tuple[str, str]:
    """Mode and value of a moment that is given in one of two ways, or two empty texts."""
    if in_ms is not None and at_ms is not None:
        raise InvalidArgument(f"New: {in_name} and {at_name} are both given, expected one of them")
    if in_ms is not None:
        return "in", decimal(integer(in_name, in_ms, at_least=0))
    if at_ms is not None:
        return "at", decimal(integer(at_name, at_ms))
    return "", ""


def _receipt(id: str, verdict: int | bytes) -> Receipt:
    if isinstance(verdict, bytes):
        return Receipt(verdict.decode(), admitted=False, deduplicated=True)
    return Receipt(id, verdict == 1, verdict == _VERDICT_REFUSED)


def _chunks(jobs: Sequence[_Row]) -> Iterator[Sequence[_Row]]:
    """Cut where a script call has enough jobs, or bytes."""
    first, size = 0, 0
    for i, job in enumerate(jobs):
        if i > first and (i - first == _CHUNK_JOBS or size + len(job[1]) > _CHUNK_BYTES):
            yield jobs[first:i]
            first, size = i, 0
        size += len(job[1])
    if first < len(jobs):
        yield jobs[first:]


def _admission(keys: Keys, jobs: Sequence[_Row]) -> Call:
    """The script call of one chunk; flat jobs that are due now take the shorter one."""
    if any(job[2:] != _PLAIN for job in jobs):
        return "admit_many", (keys.pending, keys.schedule), [keys.base, *(value for job in jobs for value in job)]
    return "enqueue_many", (keys.pending,), [keys.base, *(value for job in jobs for value in job[:2])]


def _claimed(reply: Sequence[Any]) -> Claimed:
    id, payload, attempts = reply
    return Claimed(id.decode(), payload, int(attempts))
