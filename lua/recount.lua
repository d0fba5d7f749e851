-- recount: repairs what a foreign worker leaves wrong about lanes (ours): slots that were never given back (its delay of a
-- grouped job) or given back twice, ring entries that cannot be served or stand twice, and lanes that could be served but
-- are not on the ring. A lane is known by a job in hand, a counter or a limit, or is told. Bounded: a queue with more of them
-- than the limit is left alone.
-- KEYS[1] emq:{q}:active
-- ARGV[1] emq:{q}:
-- ARGV[2] limit  ids in active, counters, limits and ring entries that one call may look at
-- ARGV[3...] group  optional: lanes that nothing else may name
-- returns the number of corrections, or -1 where the limit was passed
-- include: lane
local p, limit = ARGV[1], tonumber(ARGV[2])
local counters, limits, ring = p .. 'gactive', p .. 'glimit', p .. 'ring'
local most = math.max(redis.call('ZCARD', KEYS[1]), redis.call('HLEN', counters), redis.call('HLEN', limits),
  redis.call('LLEN', ring))
if most > limit then return -1 end

local counted, groups = {}, {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local group = redis.call('HGET', p .. 'job:' .. id, 'group')
  if group then counted[group], groups[group] = (counted[group] or 0) + 1, true end
end
local stored = {}
local standing = redis.call('HGETALL', counters)
for i = 1, #standing, 2 do stored[standing[i]], groups[standing[i]] = standing[i + 1], true end
for _, group in ipairs(redis.call('HKEYS', limits)) do groups[group] = true end
for i = 3, #ARGV do groups[ARGV[i]] = true end
local entries, on_ring = redis.call('LRANGE', ring, 0, -1), {}
for _, group in ipairs(entries) do groups[group] = true end
touch_lanes(p, groups)

local corrections = 0
local function servable(group)
  local ceiling = tonumber(redis.call('HGET', limits, group))
  return not (ceiling and (counted[group] or 0) >= ceiling) and redis.call('ZCARD', lane_key(p, group)) > 0
    and redis.call('SISMEMBER', p .. 'paused', group) == 0
end
for _, group in ipairs(entries) do
  if not servable(group) then
    corrections = corrections + redis.call('LREM', ring, 0, group)
  elseif on_ring[group] then
    corrections = corrections + redis.call('LREM', ring, -1, group)
  end
  on_ring[group] = true
end
for group in pairs(groups) do
  local right = counted[group] and string.format('%d', counted[group])
  if stored[group] ~= right then
    corrections = corrections + 1
    if right then redis.call('HSET', counters, group, right) else redis.call('HDEL', counters, group) end
  end
  if not on_ring[group] and servable(group) then
    corrections = corrections + 1
    offer(p, group)
  end
end
return corrections
