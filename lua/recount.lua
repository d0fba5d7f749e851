-- recount: repairs what a foreign worker leaves wrong about lanes: slots that were never given back (its delay of a grouped
-- job) or given back twice, and ring entries that cannot be served (ours). Bounded: a queue with more in hand than the
-- limit is left alone.
-- KEYS[1] emq:{q}:active
-- ARGV[1] emq:{q}:
-- ARGV[2] limit  ids in active, counted lanes and ring entries that one call may look at
-- returns the number of corrections, or -1 where the limit was passed
-- include: now
-- include: chunks
-- include: lane
local p, limit = ARGV[1], tonumber(ARGV[2])
local counters, ring = p .. 'gactive', p .. 'ring'
if redis.call('ZCARD', KEYS[1]) > limit or redis.call('HLEN', counters) > limit or redis.call('LLEN', ring) > limit then
  return -1
end
local counted = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local group = redis.call('HGET', p .. 'job:' .. id, 'group')
  if group then counted[group] = (counted[group] or 0) + 1 end
end
local standing, entries = redis.call('HGETALL', counters), redis.call('LRANGE', ring, 0, -1)
local stored = {}
for i = 1, #standing, 2 do stored[standing[i]] = tonumber(standing[i + 1]) end
for group in pairs(stored) do touch_lane(p, group) end
for group in pairs(counted) do touch_lane(p, group) end
for _, group in ipairs(entries) do touch_lane(p, group) end

local corrections = 0
for group, count in pairs(stored) do
  if counted[group] ~= count then
    corrections = corrections + 1
    if counted[group] then redis.call('HSET', counters, group, counted[group]) else redis.call('HDEL', counters, group) end
    offer(p, group)
  end
end
for group, count in pairs(counted) do
  if not stored[group] then
    corrections = corrections + 1
    redis.call('HSET', counters, group, count)
  end
end
local seen = {}
for _, group in ipairs(entries) do
  local most = tonumber(redis.call('HGET', p .. 'glimit', group))
  local full = most and (counted[group] or 0) >= most
  if full or redis.call('ZCARD', lane_key(p, group)) == 0 or redis.call('SISMEMBER', p .. 'paused', group) == 1 then
    corrections = corrections + redis.call('LREM', ring, 0, group)
  elseif seen[group] then
    corrections = corrections + redis.call('LREM', ring, -1, group)
  end
  seen[group] = true
end
return corrections
