"""One look at a whole queue, in one call, and what it must show: every job where the model has it, every count right.

Source: the promises of the random driver: no job in two sets, none lost, `failures` equals the failed runs, gactive and
ring agree with the sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from tests.support.driver_model import GROUPS, SUSPECT, Job, Model, Violation, require

# ARGV: queue base, how many groups, the groups, then the ids whose rows are asked for.
AUDIT = """
local p, lanes, rows = ARGV[1], {}, {}
local groups = tonumber(ARGV[2])
for i = 1, groups do lanes[i] = redis.call('ZRANGE', p .. 'g:' .. ARGV[2 + i] .. ':pending', 0, -1) end
for i = 3 + groups, #ARGV do
  rows[#rows + 1] = redis.call('HMGET', p .. 'job:' .. ARGV[i], 'state', 'attempts', 'failures', 'held', 'crashes',
    'settled', 'group', 'last_error', 'stalled')
end
return {redis.call('ZRANGE', p .. 'pending', 0, -1), redis.call('ZRANGE', p .. 'active', 0, -1, 'WITHSCORES'),
  redis.call('ZRANGE', p .. 'schedule', 0, -1, 'WITHSCORES'), redis.call('ZRANGE', p .. 'dead', 0, -1),
  lanes, rows, redis.call('LRANGE', p .. 'ring', 0, -1), redis.call('HGETALL', p .. 'gactive'),
  redis.call('HGET', p .. 'metrics:completed', 'count') or '0',
  redis.call('HGET', p .. 'metrics:failed', 'count') or '0'}
"""

PAST = 1
"""The score of a lease that has run out and of a run-at that has come: the driver rewrites scores, it never waits."""

_FIELDS = ("state", "attempts", "failures", "held", "crashes", "settled", "group", "last_error", "stalled")
_NOWHERE: frozenset[str] = frozenset()

Row = list[bytes | None]


@dataclass(slots=True)
class Seen:
    """The reply of an audit, read. Ids stay bytes."""

    places: dict[bytes, set[str]]
    past: dict[str, set[bytes]]
    rows: dict[str, Row]
    lanes: dict[str, list[bytes]]
    pending: list[bytes]
    ring: list[bytes]
    busy: dict[str, int]
    completed: int
    failed: int


def ask(model: Model, base: str) -> list[Any]:
    """The values of the audit's call."""
    return [base, len(GROUPS), *GROUPS, *model.by_id]


def read(model: Model, reply: list[Any]) -> Seen:
    """The reply as a value."""
    pending, active, schedule, dead, lanes, rows, ring, busy, completed, failed = reply
    places: dict[bytes, set[str]] = {}
    members = [("pending", pending), ("active", active[::2]), ("schedule", schedule[::2]), ("dead", dead)]
    for name, ids in (*members, *(("lane", lane) for lane in lanes)):
        for id in ids:
            if id in places:
                places[id].add(name)
            else:
                places[id] = {name}
    past = {
        name: {id for id, score in zip(scored[::2], scored[1::2], strict=True) if float(score) <= PAST}
        for name, scored in (("active", active), ("schedule", schedule))
    }
    return Seen(
        places=places,
        past=past,
        rows=dict(zip(model.by_id, rows, strict=True)),
        lanes=dict(zip(GROUPS, lanes, strict=True)),
        pending=pending,
        ring=ring,
        busy={busy[i].decode(): int(busy[i + 1]) for i in range(0, len(busy), 2)},
        completed=int(completed),
        failed=int(failed),
    )


def check(model: Model, seen: Seen) -> None:
    """Raise Violation where the server is not as the model says; take over what foreign verbs left open."""
    known = 0
    for job in model.jobs.values():
        row, actual = seen.rows[job.id], seen.places.get(job.key, _NOWHERE)
        known += bool(actual)
        if job.loose or len(job.places) > 1:
            _take_over(job, actual, row, seen)
        if actual != job.places or (job.row or row[0] is not None) or actual:
            _check_place(job, actual, seen)
            _check_row(job, row)
    strangers = known < len(seen.places) and [id for id in seen.places if id.decode() not in model.by_id]
    require(not strangers, "stranger", f"{strangers} are in the sets, nobody admitted them")
    require(seen.completed == model.completed, "completed", f"metrics say {seen.completed}, it was {model.completed}")
    require(seen.failed == model.failed, "failed", f"metrics say {seen.failed} deaths, it was {model.failed}")
    _check_lanes(model, seen)
    if model.met is not None:
        _check_met(model, seen, model.met)
    model.tidy()


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode()


def _take_over(job: Job, actual: AbstractSet[str], row: Row, seen: Seen) -> None:
    # The group of a job without a row is not known to whoever puts it back.
    allowed = job.places | {"lane" if job.group else "pending"} | ({"dead"} if job.state == "dead" else set())
    require(actual <= allowed, "place", f"{job.id} is in {sorted(actual)}, expected some of {sorted(allowed)}")
    there = any(value is not None for value in row)
    if there and not job.row:
        job.fresh(None, "", bare=row[1] is None)
        job.group = _text(row[6]) or None
    job.places, job.loose = set(actual), False
    job.row, job.state, job.stalled = there, _text(row[0]), int(row[8] or 0)
    job.overdue, job.due = job.key in seen.past["active"], job.key in seen.past["schedule"]


def _check_place(job: Job, actual: AbstractSet[str], seen: Seen) -> None:
    if actual != job.places:
        kind = "two-sets" if len(actual) > 1 else "place"
        raise Violation(kind, f"{job.id} is in {sorted(actual)}, expected {sorted(job.places)}")
    if job.row and not actual and job.state != "awaiting_children":
        raise Violation("lost", f"{job.id} is in no set")
    if "active" in actual and (job.key in seen.past["active"]) != job.overdue:
        raise Violation("score", f"{job.id}: lease over {not job.overdue}, expected {job.overdue}")
    if "schedule" in actual and (job.key in seen.past["schedule"]) != job.due:
        raise Violation("score", f"{job.id}: due {not job.due}, expected {job.due}")


def _check_row(job: Job, row: Row) -> None:
    there = any(value is not None for value in row)
    if there != job.row:
        raise Violation("row", f"{job.id}: row {row}, expected {'one' if job.row else 'none'}")
    if not there:
        return
    state, attempts, failures, held, crashes, settled, group, error, _ = row
    right = (
        (attempts is None if job.bare else attempts is not None and int(attempts) == job.token)
        and int(failures or 0) == job.failures
        and (held is None if job.held is None else held == job.held.encode())
        and (crashes is None if job.crashes is None else crashes == b"%d:%d" % job.crashes)
        and (settled is None if job.settled is None else _text(settled) == f"{job.settled[0]}:{job.settled[1]}")
        and _text(group) == (job.group or "")
    )
    if not right:
        raise Violation("fields", f"{dict(zip(_FIELDS, row, strict=True))}, expected {job}")
    if _text(state) != job.state:
        raise Violation("state", f"{job.id} is in {sorted(job.places)}, its row says {_text(state)}, not {job.state}")
    if job.places == {"dead"} and _text(error) != (job.error or ""):
        raise Violation("reason", f"{job.id}: {_text(error)!r}, expected {job.error!r}")


def _servable(model: Model, seen: Seen, group: str) -> bool:
    limit = model.limits.get(group)
    full = limit is not None and seen.busy.get(group, 0) >= limit
    return bool(seen.lanes[group]) and group not in model.paused and not full


def _check_lanes(model: Model, seen: Seen) -> None:
    held = Counter(job.group for job in model.jobs.values() if "active" in job.places)
    for group in GROUPS:
        if group in model.miscounted:
            continue
        counted, stored = held[group], seen.busy.get(group, 0)
        require(counted == stored, "gactive", f"{group}: gactive {stored}, {counted} in active")
        times, servable = seen.ring.count(group.encode()), _servable(model, seen, group)
        require(times == servable, "ring", f"{group}: {times} times on the ring, expected {int(servable)}")


def _check_met(model: Model, seen: Seen, met: set[str]) -> None:
    waiting = [(id, "flat pending") for id in seen.pending]
    for group in GROUPS:
        if group not in met and group not in model.miscounted and _servable(model, seen, group):
            waiting += [(id, group) for id in seen.lanes[group]]
    for id, where in waiting:
        job = model.by_id[id.decode()]
        suspect = "suspects" in met and job.crash_count() >= SUSPECT
        require(suspect, "left-behind", f"{job.id} stands in {where} after a claim that had slots left")
