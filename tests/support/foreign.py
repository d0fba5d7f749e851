"""A client that is not ours: the plain verbs as another runtime sends them, on a raw connection, with Lua of its own.

Source: protocol sections 4 and 5 (keys, arguments, replies), the seed's own bodies of schedule, promote and delay.
Nothing of the package is imported. It knows none of our fields (`held`, `crashes`, `settled`), pushes no `ready` token,
gives a lane's slot back whether or not it took the job from active, and cleans no other set when it ends a claim: what
ours must stand beside (section 4, "Next to a foreign worker").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis
from redis.asyncio import Redis

_NOW = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000) "

_KIND = """
if string.sub(ARGV[1], 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
"""

_ENQUEUE = (
    _KIND
    + """
redis.call('HSET', KEYS[1], 'state', 'pending', 'attempts', '0', 'payload', ARGV[2])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
return 1
"""
)

_GENQUEUE = (
    _KIND
    + """
local g = ARGV[3]
redis.call('HSET', KEYS[1], 'state', 'pending', 'attempts', '0', 'payload', ARGV[2], 'group', g)
redis.call('ZADD', KEYS[2], 0, ARGV[1])
if redis.call('SISMEMBER', KEYS[4], g) == 0 then
  local limit = tonumber(redis.call('HGET', KEYS[5], g) or '')
  local busy = tonumber(redis.call('HGET', KEYS[6], g) or '0')
  if not limit or busy < limit then
    if not redis.call('LPOS', KEYS[3], g) then redis.call('RPUSH', KEYS[3], g) end
    redis.call('LPUSH', KEYS[7], '1')
    redis.call('LTRIM', KEYS[7], 0, 63)
  end
end
return 1
"""
)

_CLAIM = (
    _NOW
    + """
local popped = redis.call('ZPOPMIN', KEYS[1])
if #popped == 0 then return {} end
local id = popped[1]
local jk = ARGV[1] .. id
local att = redis.call('HINCRBY', jk, 'attempts', 1)
redis.call('HSET', jk, 'state', 'active')
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), id)
return {id, redis.call('HGET', jk, 'payload'), att}
"""
)

_GCLAIM = (
    _NOW
    + """
local p = ARGV[1]
local g = redis.call('LMOVE', KEYS[1], KEYS[1], 'LEFT', 'RIGHT')
if not g then return {} end
local lane = p .. 'g:' .. g .. ':pending'
local popped = redis.call('ZPOPMIN', lane)
if #popped == 0 then
  redis.call('LREM', KEYS[1], 0, g)
  return {}
end
local id = popped[1]
local jk = p .. 'job:' .. id
local att = redis.call('HINCRBY', jk, 'attempts', 1)
redis.call('HSET', jk, 'state', 'active')
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), id)
local busy = redis.call('HINCRBY', p .. 'gactive', g, 1)
local limit = tonumber(redis.call('HGET', p .. 'glimit', g) or '')
if redis.call('ZCARD', lane) == 0 or (limit and busy >= limit) then redis.call('LREM', KEYS[1], 0, g) end
return {id, redis.call('HGET', jk, 'payload'), att, g}
"""
)

# The slot of a lane is given back without a look at active.
_LEAVE = """
local function leave(p, g)
  if not g then return end
  if redis.call('HINCRBY', p .. 'gactive', g, -1) <= 0 then redis.call('HDEL', p .. 'gactive', g) end
  if redis.call('SISMEMBER', p .. 'paused', g) == 1 then return end
  if redis.call('ZCARD', p .. 'g:' .. g .. ':pending') == 0 then return end
  local limit = tonumber(redis.call('HGET', p .. 'glimit', g) or '')
  if limit and tonumber(redis.call('HGET', p .. 'gactive', g) or '0') >= limit then return end
  if redis.call('LPOS', p .. 'ring', g) then return end
  redis.call('RPUSH', p .. 'ring', g)
  redis.call('LPUSH', p .. 'wake', '1')
  redis.call('LTRIM', p .. 'wake', 0, 63)
end
"""

_COMPLETE = (
    _LEAVE
    + """
local att = redis.call('HGET', KEYS[2], 'attempts')
if not att then
  redis.call('ZREM', KEYS[1], ARGV[1])
  return 0
end
if att ~= ARGV[2] then return redis.error_reply('EMQSTALE complete token mismatch') end
local g = redis.call('HGET', KEYS[2], 'group')
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2], KEYS[2] .. ':logs', KEYS[2] .. ':lock')
redis.call('HINCRBY', ARGV[3] .. 'metrics:completed', 'count', 1)
leave(ARGV[3], g)
return 1
"""
)

_RETRY = (
    _NOW
    + _LEAVE
    + """
local att = redis.call('HGET', KEYS[4], 'attempts')
if not att then return redis.error_reply('EMQSTALE job gone') end
if att ~= ARGV[2] then return redis.error_reply('EMQSTALE retry token mismatch') end
redis.call('ZREM', KEYS[1], ARGV[1])
local failures = redis.call('HINCRBY', KEYS[4], 'failures', 1)
local state = 'scheduled'
if failures >= tonumber(ARGV[4]) then
  state = 'dead'
  redis.call('ZADD', KEYS[3], 0, ARGV[1])
  redis.call('HINCRBY', ARGV[6] .. 'metrics:failed', 'count', 1)
else
  redis.call('ZADD', KEYS[2], now + tonumber(ARGV[3]), ARGV[1])
end
redis.call('HSET', KEYS[4], 'state', state, 'last_error', ARGV[5])
leave(ARGV[6], redis.call('HGET', KEYS[4], 'group'))
return state
"""
)

_DELAY = (
    _NOW
    + """
if string.sub(ARGV[1], 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
local att = redis.call('HGET', KEYS[1], 'attempts')
if not att then return redis.error_reply('EMQSTALE job gone') end
if att ~= ARGV[2] then return redis.error_reply('EMQSTALE delay token mismatch') end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'scheduled')
local score = tonumber(ARGV[4])
if ARGV[3] == 'in' then score = now + score end
redis.call('ZADD', KEYS[3], score, ARGV[1])
return 1
"""
)

_PUT_BACK = """
local function put_back(p, pending, id)
  local jk = p .. 'job:' .. id
  local g = redis.call('HGET', jk, 'group')
  redis.call('HSET', jk, 'state', 'pending')
  if not g then
    redis.call('ZADD', pending, 0, id)
    return nil
  end
  redis.call('ZADD', p .. 'g:' .. g .. ':pending', 0, id)
  return g
end

local function to_ring(p, g)
  if redis.call('SISMEMBER', p .. 'paused', g) == 1 then return end
  local limit = tonumber(redis.call('HGET', p .. 'glimit', g) or '')
  if limit and tonumber(redis.call('HGET', p .. 'gactive', g) or '0') >= limit then return end
  if not redis.call('LPOS', p .. 'ring', g) then redis.call('RPUSH', p .. 'ring', g) end
  redis.call('LPUSH', p .. 'wake', '1')
  redis.call('LTRIM', p .. 'wake', 0, 63)
end
"""

_PROMOTE = (
    _NOW
    + _PUT_BACK
    + """
local p = ARGV[1]
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, tonumber(ARGV[2]))
for _, id in ipairs(due) do
  redis.call('ZREM', KEYS[1], id)
  local g = put_back(p, KEYS[2], id)
  if g then to_ring(p, g) end
end
return #due
"""
)

_REAP = (
    _NOW
    + _PUT_BACK
    + """
local p = ARGV[1]
local expired = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 100)
for _, id in ipairs(expired) do
  redis.call('ZREM', KEYS[1], id)
  local g = put_back(p, KEYS[2], id)
  if g then
    if redis.call('HINCRBY', p .. 'gactive', g, -1) <= 0 then redis.call('HDEL', p .. 'gactive', g) end
    to_ring(p, g)
  end
end
return #expired
"""
)

_REPROCESS = """
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return -1 end
if state ~= 'dead' then return redis.error_reply('EMQSTATE not dead') end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'pending')
redis.call('HDEL', KEYS[1], 'last_error', 'failures', 'stalled')
redis.call('ZADD', KEYS[3], 0, ARGV[1])
return 1
"""


@dataclass(frozen=True, slots=True)
class ForeignClaim:
    """What a foreign claim gave: id, payload (None without a row), token (attempts), group (None when flat)."""

    id: str
    payload: bytes | None
    token: int
    group: str | None = None


# A count or a state of the reply, or the text of a refusal (`EMQSTALE …`).
Answer = int | str


class Foreign:
    """One foreign client of one queue. A refusal (EMQ…) comes back as its text; any other error raises."""

    def __init__(self, raw: Redis, queue: str) -> None:
        self._raw = raw
        self._p = f"emq:{{{queue}}}:"

    async def enqueue(self, id: str, payload: bytes) -> Answer:
        """1 admitted, 0 duplicate, or the refusal."""
        return await self._answer(_ENQUEUE, [self._row(id), self._key("pending")], [id, payload])

    async def genqueue(self, id: str, payload: bytes, group: str) -> Answer:
        """Enqueue to a lane: 1 admitted, 0 duplicate, or the refusal."""
        names = ("ring", "paused", "glimit", "gactive", "wake")
        keys = [self._row(id), self._key(f"g:{group}:pending"), *map(self._key, names)]
        return await self._answer(_GENQUEUE, keys, [id, payload, group])

    async def claim(self, lease_ms: int) -> ForeignClaim | None:
        """The lowest id of flat pending, or None."""
        return self._claimed(await self._run(_CLAIM, ["pending", "active"], [f"{self._p}job:", lease_ms]))

    async def gclaim(self, lease_ms: int) -> ForeignClaim | None:
        """The head of the next lane on the ring, or None (also when that lane was hollow)."""
        return self._claimed(await self._run(_GCLAIM, ["ring", "active"], [self._p, lease_ms]))

    async def complete(self, id: str, token: int) -> Answer:
        """1 completed, 0 gone, or the refusal."""
        return await self._answer(_COMPLETE, [self._key("active"), self._row(id)], [id, token, self._p])

    async def retry(self, id: str, token: int, delay_ms: int, max_attempts: int, error: str) -> Answer:
        """`scheduled`, `dead`, or the refusal."""
        keys = [self._key("active"), self._key("schedule"), self._key("dead"), self._row(id)]
        return await self._answer(_RETRY, keys, [id, token, delay_ms, max_attempts, error, self._p])

    async def delay(self, id: str, token: int, value_ms: int, mode: str = "in") -> Answer:
        """1 delayed, or the refusal."""
        keys = [self._row(id), self._key("active"), self._key("schedule")]
        return await self._answer(_DELAY, keys, [id, token, mode, value_ms])

    async def promote(self, batch: int = 100) -> int:
        """How many due ids were released."""
        return int(await self._run(_PROMOTE, ["schedule", "pending"], [self._p, batch]))

    async def reap(self) -> int:
        """How many expired leases were returned."""
        return int(await self._run(_REAP, ["active", "pending"], [self._p]))

    async def reprocess(self, id: str) -> Answer:
        """1 back in flat pending (a grouped job too), -1 gone, or the refusal."""
        return await self._answer(_REPROCESS, [self._row(id), self._key("dead"), self._key("pending")], [id])

    def _key(self, name: str) -> str:
        return self._p + name

    def _row(self, id: str) -> str:
        return f"{self._p}job:{id}"

    async def _run(self, script: str, names: list[str], values: list[object]) -> Any:
        return await self._eval(script, [self._key(name) for name in names], values)

    async def _eval(self, script: str, keys: list[str], values: list[object]) -> Any:
        arguments: list[Any] = [*keys, *values]
        reply: Any = self._raw.eval(script, len(keys), *arguments)
        return await reply

    async def _answer(self, script: str, keys: list[str], values: list[object]) -> Answer:
        try:
            reply = await self._eval(script, keys, values)
        except redis.ResponseError as error:
            if not str(error).startswith("EMQ"):
                raise
            return str(error)
        return reply.decode() if isinstance(reply, bytes) else int(reply)

    @staticmethod
    def _claimed(reply: list[Any]) -> ForeignClaim | None:
        if not reply:
            return None
        group = reply[3].decode() if len(reply) > 3 else None
        return ForeignClaim(reply[0].decode(), reply[1], int(reply[2]), group)
