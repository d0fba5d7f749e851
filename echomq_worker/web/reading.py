"""Reading: what the pages show of jobs, in few round trips and bounded steps, whatever a queue holds.

Source: issue "Made for the people who run it", A dashboard (100,000 dead jobs still a page). Lists do not read
payloads, only their length and the short ones; sets in mint order are paged by the last id, so that no page costs more
than the first. Texts are as others have written them: the templates escape, `payload.visible` shows what cannot be
seen.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echomq_worker.codec import count_of
from echomq_worker.connector import Wire
from echomq_worker.identity import EPOCH_MS, JOB, encode, is_branded, minted_at_ms
from echomq_worker.jobs import Jobs
from echomq_worker.keyspace import Keys
from echomq_worker.metrics import JobState, Metrics
from echomq_worker.rows import checked, now_ms
from echomq_worker.web.payload import preview

PAGE = 50
SCAN = 500
"""So many dead jobs are looked at in a step of a filter."""

SCANS = 10
"""So many steps of a filter go into one page: whoever wants to see older ones asks for the next."""

PREVIEW_BYTES = 2_048
PAYLOAD_BYTES = 4 * 1024 * 1024
"""A longer payload is not fetched for a page."""

SEQUENCE_BITS = 22
"""Of an id, behind its milliseconds."""

LOG_LINES = 100
TEXT_CHARACTERS = 2_000

_LISTED = ("state", "attempts", "failures", "stalled", "crashes", "group", "last_error", "progress", "held")
_ALSO = ("parent", "parent_queue", "cancel", "expires_at", "dedup", "children")


@dataclass(frozen=True, slots=True)
class Line:
    """A job in a list. `size`: bytes of its payload, None where the row or the field is gone; `score`: run-at or lease
    deadline in ms where the set has one; `owner`: who holds it, as far as the row says; `branded`: a page can show it.
    """

    id: str
    state: str
    attempts: str
    failures: str
    crashes: str
    group: str
    last_error: str
    progress: str
    owner: str
    size: int | None
    preview: str
    score: float
    minted_at_ms: int | None
    branded: bool


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs of a set. `next`: what asks for those behind them, '' where there are none; `looked`: how many were
    looked at for it, `total`: how many the set has.
    """

    lines: list[Line]
    next: str
    total: int
    looked: int = 0


@dataclass(frozen=True, slots=True)
class Detail:
    """One job. `payload` is None where there is none or `size` is above what is fetched; `lease_ms` and `due_ms` are
    moments in ms since 1970; `log` its last lines of `log_total`; `more` other fields of the row that have a value.
    """

    line: Line
    state: JobState
    payload: bytes | None
    size: int | None
    lease_ms: int | None
    due_ms: int | None
    locked: bool
    log: list[str]
    log_total: int
    more: dict[str, str]
    children_out: int | None
    now_ms: int

    @property
    def payload_is_long(self) -> bool:
        """Whether there is one that was not fetched."""
        return self.payload is None and bool(self.size)


@dataclass(frozen=True, slots=True)
class Reason:
    """Dead jobs that say the same: the text to find them by, and how many of those that were looked at."""

    text: str
    count: int


class Reader:
    """Reads pages of one queue over any wire. Raises what `Wire.call` raises."""

    __slots__ = ("_keys", "_wire", "queue")

    def __init__(self, wire: Wire, queue: str) -> None:
        self.queue = queue
        self._wire = wire
        self._keys = Keys(queue)

    async def waiting(self, *, group: str | None, before: str, limit: int = PAGE) -> Page:
        """Jobs of flat pending, or of a lane, the newest mint first, from behind the id `before` on."""
        key = self._keys.pending if group is None else self._keys.lane(group)
        return await self._by_mint(key, before, limit)

    async def active(self, *, offset: int, limit: int = PAGE) -> Page:
        """Jobs in hand, the lease that ends first first."""
        return await self._by_score(self._keys.active, offset, limit)

    async def scheduled(self, *, offset: int, limit: int = PAGE) -> Page:
        """Jobs that are due later, the earliest first."""
        return await self._by_score(self._keys.schedule, offset, limit)

    async def dead(self, *, error: str, older_than_ms: int | None, before: str, limit: int = PAGE) -> Page:
        """Dead jobs that a filter chooses, the newest mint first: as `DeadFilter` chooses them, in bounded steps.

        A page of a filter that finds little has fewer than `limit` jobs and a `next` all the same.
        """
        if older_than_ms is not None:
            until = _first_id(await now_ms(self._wire, self._keys) - older_than_ms + 1)
            before = min(before, until) if before else until
        if not error:
            return await self._by_mint(self._keys.dead, before, limit)
        total = int(await self._wire.call("ZCARD", self._keys.dead))
        wanted, found, looked, ended = error.encode("utf-8", "replace"), list[str](), 0, False
        for _ in range(SCANS):
            ids = await self._ids(self._keys.dead, before, SCAN)
            for id, text in zip(ids, await self._fields(ids, "last_error"), strict=True):
                looked, before = looked + 1, id
                if wanted in (text or b"") and is_branded(id):
                    found.append(id)
                if len(found) == limit:
                    break
            ended = len(ids) < SCAN and len(found) < limit
            if ended or len(found) == limit:
                break
        return Page(await self._lines(found, [0.0] * len(found)), "" if ended else before, total, looked)

    async def reasons(self) -> tuple[list[Reason], int]:
        """Why the newest dead jobs died, the most frequent reason first, and how many were looked at."""
        ids = await self._ids(self._keys.dead, "", SCAN)
        errors = await self._fields(ids, "last_error")
        counted = Counter(reason_of((text or b"").decode("utf-8", "replace")) for text in errors)
        return [Reason(text, count) for text, count in counted.most_common(8)], len(ids)

    async def job(self, id: str) -> Detail | None:
        """One job, or None where neither a row nor a set has it. Raises InvalidId."""
        keys, row = self._keys, self._keys.job(id)
        state, replies = await asyncio.gather(
            Metrics(self._wire).get_job_state(self.queue, id),
            self._wire.pipeline(
                [
                    ("HSTRLEN", row, "payload"),
                    ("HMGET", row, *_ALSO),
                    ("ZSCORE", keys.active, id),
                    ("ZSCORE", keys.schedule, id),
                    ("EXISTS", keys.lock(id)),
                    ("LLEN", keys.logs(id)),
                    ("GET", keys.dependencies(id)),
                    ("TIME",),
                ]
            ),
        )
        if state == "absent":
            return None
        size, also, lease, due, locked, log_total, children, (seconds, micros) = checked(replies)
        line = (await self._lines([id], [0.0]))[0]
        fetched = line.size is not None and size <= PAYLOAD_BYTES
        payload = await self._wire.call("HGET", row, "payload") if fetched else None
        log = await Jobs(self._wire).get_job_logs(self.queue, id, limit=LOG_LINES, offset=max(0, log_total - LOG_LINES))
        return Detail(
            line=line,
            state=state,
            payload=payload,
            size=line.size,
            lease_ms=_moment(lease),
            due_ms=_moment(due),
            locked=bool(locked),
            log=log,
            log_total=log_total,
            more={name: _short(value) for name, value in zip(_ALSO, also, strict=True) if value},
            children_out=None if children is None else count_of(children),
            now_ms=int(seconds) * 1000 + int(micros) // 1000,
        )

    async def payload(self, id: str) -> bytes | None:
        """The whole payload, however long. Raises InvalidId."""
        payload: bytes | None = await self._wire.call("HGET", self._keys.job(id), "payload")
        return payload

    async def _by_mint(self, key: str, before: str, limit: int) -> Page:
        ids = await self._ids(key, before, limit + 1)
        total = int(await self._wire.call("ZCARD", key))
        lines = await self._lines(ids[:limit], [0.0] * len(ids[:limit]))
        return Page(lines, ids[limit - 1] if len(ids) > limit else "", total, len(lines))

    async def _by_score(self, key: str, offset: int, limit: int) -> Page:
        flat, total = checked(
            await self._wire.pipeline(
                [("ZRANGE", key, offset, offset + limit - 1, "WITHSCORES"), ("ZCARD", key)],
            )
        )
        ids = [id.decode("utf-8", "replace") for id in flat[::2]]
        lines = await self._lines(ids, [float(score) for score in flat[1::2]])
        behind = offset + len(ids)
        return Page(lines, str(behind) if ids and behind < total else "", total, len(lines))

    async def _ids(self, key: str, before: str, limit: int) -> list[str]:
        start = f"({before}" if before else "+"
        page = await self._wire.call("ZRANGE", key, start, "-", "BYLEX", "REV", "LIMIT", 0, limit)
        return [id.decode("utf-8", "replace") for id in page]

    async def _fields(self, ids: Sequence[str], field: str) -> Sequence[bytes | None]:
        return checked(await self._wire.pipeline([("HGET", f"{self._keys.base}job:{id}", field) for id in ids]))

    async def _lines(self, ids: Sequence[str], scores: Sequence[float]) -> list[Line]:
        """Rows and lengths in one round trip, the payloads that are short enough for a list in another."""
        names = [f"{self._keys.base}job:{id}" for id in ids]
        replies = checked(
            await self._wire.pipeline(
                [command for name in names for command in (("HMGET", name, *_LISTED), ("HSTRLEN", name, "payload"))]
            )
        )
        rows, sizes = replies[::2], replies[1::2]
        short = [name for name, size in zip(names, sizes, strict=True) if 0 < size <= PREVIEW_BYTES]
        payloads = dict(
            zip(short, checked(await self._wire.pipeline([("HGET", n, "payload") for n in short])), strict=True)
        )
        return [
            _line(id, score, row, size, payloads.get(name))
            for id, score, name, row, size in zip(ids, scores, names, rows, sizes, strict=True)
        ]


def reason_of(error: str) -> str:
    """The part of an error by which the same ones are found: its class, or the beginning of its first line."""
    first = error.partition("\n")[0].strip()
    kind, colon, _ = first.partition(":")
    return kind if colon and 0 < len(kind) <= 60 and " " not in kind else first[:80]


def owner_of(held: str) -> str:
    """Who holds a job, of `token:consumer.claim` on its row: a consumer of ours has a name, a foreign client none."""
    _, colon, fence = held.partition(":")
    return fence.rpartition(".")[0] or fence if colon else ""


def _line(id: str, score: float, row: Sequence[bytes | None], size: int, payload: bytes | None) -> Line:
    state, attempts, failures, _stalled, crashes, group, last_error, progress, held = (_short(value) for value in row)
    branded = is_branded(id)
    return Line(
        id=id,
        state=state or ("gone" if row[1] is None else "unknown"),
        attempts=attempts or "0",
        failures=failures or "0",
        crashes=crashes.partition(":")[0] or "0",
        group=group,
        last_error=last_error,
        progress=progress,
        owner=owner_of(held),
        size=None if row[0] is None and row[1] is None and not size else size,
        preview=preview(payload),
        score=score,
        minted_at_ms=minted_at_ms(id) if branded else None,
        branded=branded,
    )


def _short(value: bytes | None) -> str:
    text = (value or b"")[: 4 * TEXT_CHARACTERS].decode("utf-8", "replace")
    return text if len(text) <= TEXT_CHARACTERS else f"{text[:TEXT_CHARACTERS]}…"


def _first_id(ms: int) -> str:
    """The least id of a job that is minted at a moment: those before it are smaller."""
    return encode(JOB, max(0, ms - EPOCH_MS) << SEQUENCE_BITS)


def _moment(score: Any) -> int | None:
    if score is None or abs(float(score)) == float("inf"):
        return None
    return int(float(score))
