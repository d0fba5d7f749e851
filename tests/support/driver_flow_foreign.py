"""The foreign client where there are flows: it tells parents by the plain verbs, not all that ours would.

Source: protocol section 4 ("Next to a foreign worker") and section 6. What it does not do: climb a tree when a parent
dies, tell of what its sweep buries, release dedup keys, look whether a parent is still there.
"""

from __future__ import annotations

from typing import Any

from tests.support import foreign
from tests.support.driver_control_job import ControlJob
from tests.support.driver_control_model import ControlModel
from tests.support.driver_foreign import Everybody, as_text
from tests.support.driver_model import Job, Model, require
from tests.support.driver_world import LEASE_MS, Turn

_TELL = """
local function tell(p, pq, parent, child, result)
  if parent == '' then return end
  if pq ~= '' then
    redis.call('RPUSH', p .. 'flow:outbox', pq .. '\\0' .. parent .. '\\0' .. child .. '\\0' .. result)
    return
  end
  local key = p .. 'job:' .. parent
  if redis.call('HSETNX', key .. ':processed', child, result) == 0 then return end
  if redis.call('HEXISTS', key .. ':unsuccessful', child) == 1 then return end
  if redis.call('DECR', key .. ':dependencies') > 0 then return end
  if redis.call('HGET', key, 'state') ~= 'awaiting_children' then return end
  redis.call('HSET', key, 'state', 'pending')
  redis.call('ZADD', p .. 'pending', 0, parent)
end
"""

_TELL_DEATH = """
local function tell_death(p, pq, parent, child, policy, why)
  if parent == '' then return end
  if pq ~= '' then
    redis.call('RPUSH', p .. 'flow:outbox', table.concat({'', 'fail', pq, parent, child, policy, why}, '\\0'))
    return
  end
  local key = p .. 'job:' .. parent
  if policy == 'id' then
    if redis.call('HSETNX', key .. ':unsuccessful', child, why) == 0 then return end
    if redis.call('HEXISTS', key .. ':processed', child) == 1 then return end
    if redis.call('DECR', key .. ':dependencies') > 0 then return end
    if redis.call('HGET', key, 'state') ~= 'awaiting_children' then return end
    redis.call('HSET', key, 'state', 'pending')
    redis.call('ZADD', p .. 'pending', 0, parent)
    return
  end
  redis.call('HSETNX', key .. ':failed', child, why)
  if redis.call('HEXISTS', key .. ':processed', child) == 1 then return end
  if redis.call('HGET', key, 'state') ~= 'awaiting_children' then return end
  redis.call('HSET', key, 'state', 'dead', 'last_error', 'child ' .. child .. ' died: ' .. why)
  redis.call('ZADD', p .. 'dead', 0, parent)
  redis.call('HINCRBY', p .. 'metrics:failed', 'count', 1)
end
"""

_SUBKEYS = ", ".join(f"KEYS[2] .. ':{name}'" for name in ("dependencies", "processed", "failed", "unsuccessful"))

FLOW_COMPLETE = _TELL + foreign._COMPLETE.replace(
    "leave(ARGV[3], g)\n",
    f"redis.call('DEL', {_SUBKEYS})\nleave(ARGV[3], g)\ntell(ARGV[3], ARGV[4], ARGV[5], ARGV[1], ARGV[6])\n",
)
"""ARGV[4] parent queue or '', parent or '', result."""

FLOW_RETRY = _TELL_DEATH + foreign._RETRY.replace(
    "return state\n",
    "if state == 'dead' then tell_death(ARGV[6], ARGV[7], ARGV[8], ARGV[1], ARGV[9], ARGV[5]) end\nreturn state\n",
)
"""ARGV[7] parent queue or '', parent or '', policy."""

STALLED = (
    foreign._NOW
    + foreign._PUT_BACK
    + """
local p = ARGV[1]
local expired = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 100)
for _, id in ipairs(expired) do
  local jk = p .. 'job:' .. id
  redis.call('ZREM', KEYS[1], id)
  if redis.call('EXISTS', jk) == 1 then
    local g = redis.call('HGET', jk, 'group')
    if g and redis.call('HINCRBY', p .. 'gactive', g, -1) <= 0 then redis.call('HDEL', p .. 'gactive', g) end
    if redis.call('HINCRBY', jk, 'stalled', 1) >= tonumber(ARGV[2]) then
      redis.call('HSET', jk, 'state', 'dead', 'last_error', 'stalled')
      redis.call('ZADD', KEYS[3], 0, id)
      redis.call('HINCRBY', p .. 'metrics:failed', 'count', 1)
    else
      put_back(p, KEYS[2], id)
    end
    if g and redis.call('ZCARD', p .. 'g:' .. g .. ':pending') > 0 then to_ring(p, g) end
  end
end
return #expired
"""
)

FOREIGN_FLOWS = {"f:flow_complete": FLOW_COMPLETE, "f:flow_retry": FLOW_RETRY, "f:stalled": STALLED}


class ForeignFlows(Everybody):
    """A world whose foreign client knows flows."""

    model: ControlModel

    def __init__(self, queue: str, scripts: Any) -> None:
        super().__init__(queue, scripts)
        self.handlers |= {"fstall": self.foreign_stalled}

    def foreign_end(self, kind: str, n: int, which: int, own: int) -> Turn:
        """Complete or retry by its own scripts where they tell a parent; the rest as everywhere."""
        job = self.model.jobs.get(n)
        if own or kind == "d" or not isinstance(job, ControlJob) or which >= len(job.tokens):
            yield from super().foreign_end(kind, n, which, own)
            return
        token, keys, row = job.tokens[-1 - which], self.keys, self.row(job)
        parent = (job.parent_queue, job.parent or "") if job.row else ("", "")
        if kind == "c":
            call = self.scripts("f:flow_complete", (keys.active, row), (job.id, token, keys.base, *parent, job.result))
        else:
            values = (job.id, token, LEASE_MS, 3, "boom", keys.base, *parent, job.policy or "fp")
            call = self.scripts("f:flow_retry", (keys.active, keys.schedule, keys.dead, row), values)
        (reply,) = yield [call]
        expected = self.ended_foreign(job, kind, token)
        require(as_text(reply) == expected, "answer", f"foreign {kind} of {job.id}: {reply!r}, expected {expected}")

    def ended_foreign(self, job: Job, kind: str, token: int) -> int | str:
        """Its completion and its deaths reach parents."""
        assert isinstance(job, ControlJob)
        answer = super().ended_foreign(job, kind, token)
        if kind == "c" and answer == 1:
            job.wipe()
            self._tell(job)
        elif answer == "dead":
            self._tell_death(job)
        return answer

    def ended_own(self, job: Job, kind: str, token: int) -> int | str:
        """The package's plain scripts: delay knows no request to end, and an ending leaves nothing behind."""
        assert isinstance(job, ControlJob)
        if kind == "d" and job.cancel is not None:
            # As if nobody had asked: the next claim buries it.
            asked, job.cancel = job.cancel, None
            answer = super().ended_own(job, kind, token)
            job.cancel = asked
            return answer
        gone = not job.row or job.bare
        answer = super().ended_own(job, kind, token)
        if gone and kind == "c":
            job.wipe()
        return answer

    def _tell(self, job: ControlJob) -> None:
        if job.parent is None:
            return
        if job.parent_queue:
            self.model.push(job, b"\0".join([job.parent_queue.encode(), job.parent.encode(), job.key, job.result]))
            return
        parent = self.model.of(job.parent)
        parent.haunted = parent.haunted or parent.out is None
        if job.id in parent.processed:
            return
        parent.processed[job.id] = job.result
        if job.id not in parent.unsuccessful:
            self._count_down(parent)

    def _tell_death(self, job: ControlJob) -> None:
        if job.parent is None:
            return
        policy = job.policy or "fp"
        if job.parent_queue:
            words = ["", "fail", job.parent_queue, job.parent, job.id, policy, "boom"]
            self.model.push(job, "\0".join(words).encode())
            return
        parent = self.model.of(job.parent)
        parent.haunted = parent.haunted or parent.out is None
        if policy == "id":
            if job.id not in parent.unsuccessful:
                parent.unsuccessful[job.id] = b"boom"
                if job.id not in parent.processed:
                    self._count_down(parent)
            return
        parent.failed.setdefault(job.id, b"boom")
        if job.id not in parent.processed and parent.row and parent.state == "awaiting_children":
            parent.state, parent.error, parent.mute = "dead", f"child {job.id} died: boom", True
            parent.places.add("dead")
            self.model.failed += 1

    def _count_down(self, parent: ControlJob) -> None:
        parent.out = (parent.out or 0) - 1
        if parent.out <= 0 and parent.row and parent.state == "awaiting_children":
            self.model.released(parent, "pending")

    def foreign_stalled(self, most: int) -> Turn:
        """Its counting sweep: what it buries it tells nobody of."""
        keys, model = self.keys, self.model
        (count,) = yield [self.scripts("f:stalled", (keys.active, keys.pending, keys.dead), (keys.base, most))]
        for job in self.swept(count, model.overdue()):
            self._stalled(model, job, most)

    @staticmethod
    def _stalled(model: Model, job: Job, most: int) -> None:
        assert isinstance(job, ControlJob)
        job.places = job.places - {"active"}
        job.overdue = False
        if not job.row:
            model.miscount(job)
            return
        job.stalled += 1
        if job.stalled < most:
            job.places, job.state = job.places | {job.home}, "pending"
            return
        job.state, job.error, job.mute = "dead", "stalled", True
        job.places = job.places | {"dead"}
        model.failed += 1
