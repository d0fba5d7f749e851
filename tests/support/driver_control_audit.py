"""One more look at a whole queue: what controls and flows write on rows and beside them, the outbox, the dedup keys.

Source: protocol sections 1 and 6; the promises of issue "Every control": no subkeys and no dedup key without a row, one
decrement per child.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.driver_audit import PAST
from tests.support.driver_control_job import ControlJob
from tests.support.driver_control_model import ControlModel
from tests.support.driver_model import GROUPS, require

KEYS_OF_DEDUP = tuple(f"order-{n}" for n in range(6))

# ARGV: queue base, how many dedup keys, the keys, how many groups, the groups, then the ids that are asked for.
LOOK = """
local p, n = ARGV[1], tonumber(ARGV[2])
local parked, lanes, rows = {}, {}, {}
for i = 1, n do parked[i] = redis.call('GET', p .. 'de:' .. ARGV[2 + i]) end
local at = 3 + n
for i = 1, tonumber(ARGV[at]) do lanes[i] = redis.call('ZRANGE', p .. 'g:' .. ARGV[at + i] .. ':pending', 0, -1) end
for i = at + tonumber(ARGV[at]) + 1, #ARGV do
  local key = p .. 'job:' .. ARGV[i]
  local row = redis.call('HMGET', key, 'dedup', 'cancel', 'expires_at', 'parent', 'parent_queue', 'parent_policy',
    'children', 'payload', 'progress')
  row[10] = redis.call('GET', key .. ':dependencies')
  row[11] = redis.call('EXISTS', key .. ':lock')
  row[12] = redis.call('LLEN', key .. ':logs')
  for j, name in ipairs({'processed', 'failed', 'unsuccessful'}) do
    row[12 + j] = redis.call('HGETALL', key .. ':' .. name)
  end
  rows[#rows + 1] = row
end
return {parked, lanes, redis.call('LRANGE', p .. 'flow:outbox', 0, -1), rows}
"""


def ask(jobs: Sequence[ControlJob], base: str) -> list[Any]:
    """The values of the call about these jobs."""
    return [base, len(KEYS_OF_DEDUP), *KEYS_OF_DEDUP, len(GROUPS), *GROUPS, *(job.id for job in jobs)]


def check(model: ControlModel, jobs: Sequence[ControlJob], reply: list[Any]) -> None:
    """Raise Violation where the server is not as the model says of these jobs, none of which is `loose` any more."""
    parked, lanes, outbox, rows = reply
    for key, id in zip(KEYS_OF_DEDUP, parked, strict=True):
        right = model.parked.get(key)
        require(id == (right and right.key), "dedup", f"{key} holds {id!r}, expected {right and right.id}")
    for group, ids in zip(GROUPS, lanes, strict=True):
        for id in ids:
            job = model.of(id.decode())
            require(job.lane == group, "lane", f"{job.id} stands in {group}, expected {job.lane}")
    model.take_outbox(outbox)
    for job, row in zip(jobs, rows, strict=True):
        _check_row(job, row)
        _check_beside(job, row)


def _check_row(job: ControlJob, row: list[Any]) -> None:
    if not job.row:
        return
    dedup, cancel, expires, parent, queue, policy, children, payload, progress = row[:9]
    told = [dedup, cancel, parent, queue, policy, children, payload, progress]
    right = [
        _bytes(job.dedup),
        _bytes(job.cancel),
        _bytes(job.parent),
        _bytes(job.parent_queue or None),
        _bytes(job.policy),
        _bytes(job.kin_text or None),
        job.payload,
        _bytes(job.progress),
    ]
    require(told == right, "control-fields", f"{job.id}: {told}, expected {right}")
    require((expires is not None) == job.expires, "expiry", f"{job.id} expires at {expires}, expected {job.expires}")
    over = expires is not None and int(expires) <= PAST
    require(over == job.expired, "expiry", f"{job.id} expires at {expires}, over: {job.expired}")


def _check_beside(job: ControlJob, row: list[Any]) -> None:
    out, locked, logs, *told = row[9:]
    right_out = None if job.out is None else str(job.out).encode()
    require(out == right_out, "dependencies", f"{job.id} waits for {out}, expected {job.out}")
    require(locked == job.locked, "lock", f"{job.id} is marked as held: {bool(locked)}, expected {job.locked}")
    require(logs == job.logs, "logs", f"{job.id} has {logs} log lines, expected {job.logs}")
    for name, flat, right in zip(
        ("processed", "failed", "unsuccessful"), told, (job.processed, job.failed, job.unsuccessful), strict=True
    ):
        heard = {flat[at].decode(): flat[at + 1] for at in range(0, len(flat), 2)}
        require(heard == right, name, f"{job.id}: {heard}, expected {right}")
    if job.row and job.children and job.out is not None:
        right_count = job.counted - len(job.processed.keys() | job.unsuccessful.keys())
        require(job.out == right_count, "decrements", f"{job.id} waits for {job.out}, expected {right_count}")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
