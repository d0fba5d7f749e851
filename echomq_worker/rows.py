"""Rows and sets as they are read: what a verb answers about a job, what stands on a row, how many are where.

Source: protocol section 1 (row fields, keys), section 5 (a lane exists by having members). Reading takes no script: a
pipeline of plain commands, and no index beside the sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from echomq_worker.codec import count_of
from echomq_worker.connector import Wire
from echomq_worker.errors import EchoMQError, InvalidArgument
from echomq_worker.identity import check_id, minted_at_ms
from echomq_worker.keyspace import Keys

State = Literal["pending", "active", "scheduled", "dead"]
"""A set that can be browsed."""

Progress = Callable[[int, int], None]
"""Told as something long goes on: how many are done, of how many (as far as is known)."""

_FIELDS = ("state", "attempts", "payload", "failures", "stalled", "crashes", "group", "last_error", "progress", "held")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of one admission.

    `admitted`: the row was written. `refused`: the id is not JOB-namespaced (only in a batch; a single verb raises
    KindRefused). `deduplicated`: another job has the dedup key, and `id` is that job's. None of them: `duplicate`, a
    row of that id stood already and nothing was written.
    """

    id: str
    admitted: bool
    refused: bool = False
    deduplicated: bool = False

    @property
    def duplicate(self) -> bool:
        """Whether the id had a row already."""
        return not self.admitted and not self.refused and not self.deduplicated


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claimed job: `payload` is None where the row had none, `token` (attempts) fences its verdict."""

    id: str
    payload: bytes | None
    token: int
    group: str | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """A row as it stood when it was read.

    `state` is the row's, or `gone` for a member of a set that has no row. `crashes` are claims of ours in a row that
    never ended, `held` says whether a claim of ours has not ended yet; `score` is the member's in the set that was
    browsed: run-at or lease deadline in ms, 0 elsewhere and for `get`.
    """

    id: str
    state: str
    attempts: int
    failures: int
    stalled: int
    crashes: int
    held: bool
    payload: bytes | None
    group: str | None
    last_error: str | None
    progress: str | None
    score: float = 0.0

    @property
    def minted_at(self) -> int:
        """When the id was minted, in ms since 1970 on the producer's clock."""
        return minted_at_ms(self.id)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many jobs stand where. `pending` is flat pending alone; `lanes` has the depth of each lane with members.

    `repeats` counts registrations; `paused` tells whether the whole queue is.
    """

    pending: int
    active: int
    scheduled: int
    dead: int
    repeats: int
    paused: bool
    lanes: dict[str, int]

    @property
    def ready(self) -> int:
        """Jobs that could be claimed now or wait only for their lane: flat pending and all lanes."""
        return self.pending + sum(self.lanes.values())


@dataclass(frozen=True, slots=True)
class Totals:
    """What the queue has counted since it began: jobs completed, jobs that died."""

    completed: int
    failed: int


def checked(replies: Sequence[Any]) -> Sequence[Any]:
    """The replies of a pipeline; raises the first error among them."""
    for reply in replies:
        if isinstance(reply, EchoMQError):
            raise reply
    return replies


async def now_ms(wire: Wire, keys: Keys) -> int:
    """The clock of the server that has the queue, ms since 1970: the one by which its leases run."""
    # In a cluster TIME, which has no key, has to go to the node of the queue: it travels with a command that has one.
    _, (seconds, micros) = checked(await wire.pipeline([("EXISTS", keys.active), ("TIME",)]))
    return int(seconds) * 1000 + int(micros) // 1000


async def browse(wire: Wire, key: str, keys: Keys, *, limit: int, offset: int) -> list[JobView]:
    """The rows of a sorted set's members from its end: the newest mint first where all scores are equal."""
    flat = await wire.call("ZRANGE", key, offset, offset + limit - 1, "REV", "WITHSCORES")
    ids = [member.decode("utf-8", "replace") for member in flat[::2]]
    return await _views(wire, keys, ids, [float(score) for score in flat[1::2]])


async def get(wire: Wire, keys: Keys, id: str) -> JobView | None:
    """One row, or None when there is none; InvalidId for a malformed id."""
    view = (await _views(wire, keys, [check_id(id)], [0.0]))[0]
    return None if view.state == "gone" else view


async def groups(wire: Wire, keys: Keys) -> list[str]:
    """The lanes that can be named: on the ring, or kept off it by a pause or a limit, or with a counter or a weight."""
    names = (keys.glimit, keys.gactive, keys.gweight)
    commands = [("LRANGE", keys.ring, 0, -1), ("SMEMBERS", keys.paused), *(("HKEYS", name) for name in names)]
    lists = checked(await wire.pipeline(commands))
    return sorted({group.decode("utf-8", "replace") for found in lists for group in found})


async def counts(wire: Wire, keys: Keys) -> Counts:
    """How many jobs stand where, in three round trips. A lane that nothing names is not counted: the audit finds it."""
    sets = (keys.pending, keys.active, keys.schedule, keys.dead, keys.repeat, keys.cron)
    pending, active, scheduled, dead, periods, calendars, paused = checked(
        await wire.pipeline([*(("ZCARD", key) for key in sets), ("HEXISTS", keys.meta, "paused")])
    )
    named = await groups(wire, keys)
    depths = checked(await wire.pipeline([("ZCARD", f"{keys.base}g:{group}:pending") for group in named]))
    lanes = {group: depth for group, depth in zip(named, depths, strict=True) if depth}
    return Counts(pending, active, scheduled, dead, periods + calendars, bool(paused), lanes)


async def totals(wire: Wire, keys: Keys) -> Totals:
    """What the queue has counted since it began."""
    commands = [("HGET", key, "count") for key in (keys.completed, keys.failed)]
    return Totals(*(count_of(count) for count in checked(await wire.pipeline(commands))))


def set_of(keys: Keys, state: State) -> str:
    """The key of the set that a state stands for; InvalidArgument for any other word."""
    if state not in get_args(State):
        raise InvalidArgument(f"state {state!r:.40}: expected one of {', '.join(get_args(State))}")
    return {"pending": keys.pending, "active": keys.active, "scheduled": keys.schedule, "dead": keys.dead}[state]


async def _views(wire: Wire, keys: Keys, ids: Sequence[str], scores: Iterable[float]) -> list[JobView]:
    # Not `Keys.job`, which checks the id: what other clients have put there is shown, whatever its name.
    rows = checked(await wire.pipeline([("HMGET", keys.found(id), *_FIELDS) for id in ids]))
    return [_view(id, score, *row) for id, score, row in zip(ids, scores, rows, strict=True)]


def _view(id: str, score: float, *row: bytes | None) -> JobView:
    state, attempts, payload, failures, stalled, crashes, group, last_error, progress, held = row
    return JobView(
        id=id,
        state=_text(state) or ("gone" if attempts is None else "unknown"),
        attempts=count_of(attempts),
        failures=count_of(failures),
        stalled=count_of(stalled),
        crashes=count_of((crashes or b"").partition(b":")[0]),
        held=held is not None,
        payload=payload,
        group=_text(group),
        last_error=_text(last_error),
        progress=_text(progress),
        score=score,
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
