-- recount: repairs what a foreign worker leaves wrong about lanes (ours): slots that were never given back (its delay of a
-- grouped job) or given back twice, ring entries that cannot be served or stand twice, and lanes that could be served but
-- are not on the ring. A lane is known by a job in hand, a counter or a limit, or is told. Bounded: a queue with more of them
-- than the limit is left alone.
-- KEYS[1] emq:{q}:active
-- ARGV[1] emq:{q}:
-- ARGV[2] limit  ids in active, counters, limits and ring entries that one call may look at
-- ARGV[3...] look, group  optional: `look` only tells what is wrong, '' repairs it; then lanes that nothing else may name
-- returns the number of corrections, or -1 where the limit was passed; with `look` a list of group, key, what it has, what is right
-- include: lanes
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
for i = 4, #ARGV do groups[ARGV[i]] = true end
local entries, on_ring = redis.call('LRANGE', ring, 0, -1), {}
for _, group in ipairs(entries) do groups[group] = true end
touch_lanes(p, groups)

local corrections, told, look = 0, {}, ARGV[3] == 'look'
local function wrong(group, key, stored, right, repair)
  corrections = corrections + 1
  for _, value in ipairs({group, key, tostring(stored), tostring(right)}) do told[#told + 1] = value end
  if not look then repair() end
end
local function servable(group)
  local ceiling = tonumber(redis.call('HGET', limits, group))
  return not (ceiling and (counted[group] or 0) >= ceiling) and redis.call('ZCARD', lane_key(p, group)) > 0
    and redis.call('SISMEMBER', p .. 'paused', group) == 0
end
for _, group in ipairs(entries) do on_ring[group] = (on_ring[group] or 0) + 1 end
for group, times in pairs(on_ring) do
  local right = servable(group) and 1 or 0
  if times > right then
    wrong(group, 'ring', times, right, function() redis.call('LREM', ring, right - times, group) end)
  end
end
for group in pairs(groups) do
  local right = counted[group] and string.format('%d', counted[group])
  if stored[group] ~= right then
    wrong(group, 'gactive', stored[group] or 0, right or 0, function()
      if right then redis.call('HSET', counters, group, right) else redis.call('HDEL', counters, group) end
    end)
  end
  if not on_ring[group] and servable(group) then
    wrong(group, 'ring', 0, 1, function() offer(p, group) end)
  end
end
return look and told or corrections
