"""An operator beside the workers: lanes paused, resumed and limited, by Lua of the driver's own.

Source: protocol section 5. It reads and writes just what the section says of each verb.
"""

from __future__ import annotations

_SERVABLE = """
local function settle(p, g)
  local limit = tonumber(redis.call('HGET', p .. 'glimit', g) or '')
  local busy = tonumber(redis.call('HGET', p .. 'gactive', g) or '0')
  local shut = (limit and busy >= limit) or redis.call('SISMEMBER', p .. 'paused', g) == 1
  if shut or redis.call('ZCARD', p .. 'g:' .. g .. ':pending') == 0 then
    redis.call('LREM', p .. 'ring', 0, g)
  elseif not redis.call('LPOS', p .. 'ring', g) then
    redis.call('RPUSH', p .. 'ring', g)
    redis.call('LPUSH', p .. 'wake', '1')
    redis.call('LTRIM', p .. 'wake', 0, 63)
  end
end
"""

OPERATOR = {
    "op:pause": _SERVABLE + "redis.call('SADD', ARGV[1] .. 'paused', ARGV[2]) settle(ARGV[1], ARGV[2]) return 1",
    "op:resume": _SERVABLE + "redis.call('SREM', ARGV[1] .. 'paused', ARGV[2]) settle(ARGV[1], ARGV[2]) return 1",
    "op:limit": _SERVABLE
    + "redis.call('HSET', ARGV[1] .. 'glimit', ARGV[2], ARGV[3]) settle(ARGV[1], ARGV[2]) return 1",
}
