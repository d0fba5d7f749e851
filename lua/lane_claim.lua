-- lane_claim: takes the head of the next lane on the ring under a lease, then rotates the ring one step.
-- A hollow, paused or full lane at the head falls off the ring and does not end the claim. Serves no flat job, counts no
-- crash.
-- KEYS[1] emq:{q}:ring
-- KEYS[2] emq:{q}:active
-- ARGV[1] emq:{q}:
-- ARGV[2] lease_ms
-- returns {} | {id, payload or nil, attempts, group}  attempts is the token
-- include: now
-- include: lane
local p, deadline = ARGV[1], now_ms() + tonumber(ARGV[2])
local function head_of(group)
  if redis.call('SISMEMBER', p .. 'paused', group) == 1 then return nil end
  local limit, busy = tonumber(redis.call('HGET', p .. 'glimit', group)), redis.call('HGET', p .. 'gactive', group)
  local room = limit and limit - (tonumber(busy) or 0) or math.huge
  local ids = redis.call('ZRANGE', lane_key(p, group), 0, 1)
  if room < 1 or #ids == 0 then return nil end
  return ids[1], #ids > 1 and room > 1
end

local fallen, id, group, again = 0, nil, nil, nil
for position = 0, redis.call('LLEN', KEYS[1]) - 1 do
  group = redis.call('LINDEX', KEYS[1], position)
  id, again = head_of(group)
  if id then break end
  fallen = fallen + 1
end
local key = id and p .. 'job:' .. id
local row = id and redis.call('HMGET', key, 'payload', 'group')
redis.call('ZCARD', KEYS[2])

-- The one write that can still refuse (attempts that are no number) comes first.
local attempts = id and redis.call('HINCRBY', key, 'attempts', 1)
if fallen > 0 then redis.call('LTRIM', KEYS[1], fallen, -1) end
if not id then return {} end
redis.call('HSET', key, 'state', 'active')
if row[2] ~= group then redis.call('HSET', key, 'group', group) end
redis.call('ZREM', lane_key(p, group), id)
redis.call('ZADD', KEYS[2], deadline, id)
redis.call('HINCRBY', p .. 'gactive', group, 1)
if again then redis.call('LMOVE', KEYS[1], KEYS[1], 'LEFT', 'RIGHT') else redis.call('LREM', KEYS[1], 0, group) end
return {id, row[1], attempts, group}
