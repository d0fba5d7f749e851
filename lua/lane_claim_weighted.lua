-- lane_claim_weighted: rotates the ring one step and serves min(weight, depth, room under the limit) heads of that lane
-- (gwclaim in the protocol). A hollow, paused or full lane at the head falls off the ring and does not end the claim.
-- KEYS[1] emq:{q}:ring
-- KEYS[2] emq:{q}:active
-- ARGV[1] emq:{q}:
-- ARGV[2] lease_ms
-- returns {} | {{id, payload or nil, attempts, group}, …}  attempts is the token
-- include: now
-- include: lane
local p, deadline = ARGV[1], now_ms() + tonumber(ARGV[2])
local function heads_of(group)
  local limit, busy = tonumber(redis.call('HGET', p .. 'glimit', group)), redis.call('HGET', p .. 'gactive', group)
  local weight = math.max(1, tonumber(redis.call('HGET', p .. 'gweight', group)) or 1)
  local room = limit and limit - (tonumber(busy) or 0) or math.huge
  if redis.call('SISMEMBER', p .. 'paused', group) == 1 or room < 1 then return {} end
  local depth = redis.call('ZCARD', lane_key(p, group))
  local size = math.min(weight, depth, room, 1000)
  return redis.call('ZRANGE', lane_key(p, group), 0, size - 1), depth > size and room > size
end

local fallen, ids, group, again = 0, {}, nil, nil
for position = 0, redis.call('LLEN', KEYS[1]) - 1 do
  group = redis.call('LINDEX', KEYS[1], position)
  ids, again = heads_of(group)
  if #ids > 0 then break end
  fallen = fallen + 1
end
local rows = {}
for i, id in ipairs(ids) do rows[i] = redis.call('HMGET', p .. 'job:' .. id, 'payload', 'group', 'attempts') end
redis.call('ZCARD', KEYS[2])

if fallen > 0 then redis.call('LTRIM', KEYS[1], fallen, -1) end
local claimed = {}
for i, id in ipairs(ids) do
  local key, token = p .. 'job:' .. id, (tonumber(rows[i][3]) or 0) + 1
  redis.call('HSET', key, 'state', 'active', 'attempts', token)
  if rows[i][2] ~= group then redis.call('HSET', key, 'group', group) end
  redis.call('ZREM', lane_key(p, group), id)
  redis.call('ZADD', KEYS[2], deadline, id)
  claimed[i] = {id, rows[i][1], token, group}
end
if #ids == 0 then return {} end
redis.call('HINCRBY', p .. 'gactive', group, #ids)
if again then redis.call('LMOVE', KEYS[1], KEYS[1], 'LEFT', 'RIGHT') else redis.call('LREM', KEYS[1], 0, group) end
return claimed
