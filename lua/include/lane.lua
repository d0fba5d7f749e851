-- Lanes (protocol section 5). p is the queue base `emq:{q}:`.
-- include: waking
-- include: lane_keys

local function wake_lanes(p, count)
  if count > 0 then push_tokens(p .. 'wake', count) end
end

-- Reads every key that offer, free_slot and leave_lane may write, by a command of its type, so that a key that cannot be
-- reached or is of another type raises before the first write of the script.
local function touch_lane(p, g)
  redis.call('ZCARD', lane_key(p, g))
  redis.call('SISMEMBER', p .. 'paused', g)
  redis.call('HGET', p .. 'glimit', g)
  redis.call('HGET', p .. 'gactive', g)
  redis.call('LLEN', p .. 'ring')
  redis.call('LLEN', p .. 'wake')
end

-- The same for many: `groups` has them as its keys.
local function touch_lanes(p, groups)
  local first = true
  for g in pairs(groups) do
    if first then touch_lane(p, g) else redis.call('ZCARD', lane_key(p, g)) end
    first = false
  end
end

-- Puts the lane on the ring if it can be served: not paused, not empty, below its limit, not there yet. One wake token
-- when it can be served at all, since a consumer that parked saw it exhausted; where only a slot was freed (`quiet`) a
-- lane that is on the ring already gets none.
local function offer(p, g, quiet)
  if redis.call('ZCARD', lane_key(p, g)) == 0 then return end
  if redis.call('SISMEMBER', p .. 'paused', g) == 1 then return end
  local limit = tonumber(redis.call('HGET', p .. 'glimit', g))
  if limit and (tonumber(redis.call('HGET', p .. 'gactive', g)) or 0) >= limit then return end
  if not redis.call('LPOS', p .. 'ring', g) then
    redis.call('RPUSH', p .. 'ring', g)
  elseif quiet then
    return
  end
  wake_lanes(p, 1)
end

-- Which of these lanes are on the ring: few are searched for, for many it is read.
local FEW, PIECE = 8, 4000
local function on_ring(p, groups)
  local found, ring = {}, p .. 'ring'
  if #groups < FEW then
    for _, g in ipairs(groups) do found[g] = redis.call('LPOS', ring, g) and true end
    return found
  end
  local wanted = {}
  for _, g in ipairs(groups) do wanted[g] = true end
  for first = 0, redis.call('LLEN', ring) - 1, PIECE do
    for _, g in ipairs(redis.call('LRANGE', ring, first, first + PIECE - 1)) do found[g] = wanted[g] end
  end
  return found
end

-- The lanes of these that can be served, as keys and as a list.
local function servable(p, names)
  local paused, limits = redis.call('EXISTS', p .. 'paused') == 1, ask_lanes(p .. 'glimit', names)
  local busy, open = next(limits) and redis.call('HMGET', p .. 'gactive', unpack(names)) or {}, {}
  local list = {}
  for i, g in ipairs(names) do
    local limit = tonumber(limits[i])
    local full = limit and (tonumber(busy[i]) or 0) >= limit
    local shut = full or (paused and redis.call('SISMEMBER', p .. 'paused', g) == 1)
    if not shut and redis.call('ZCARD', lane_key(p, g)) > 0 then open[g], list[#list + 1] = true, g end
  end
  return open, list
end

local function offer_some(p, groups, quiet)
  local names, seen = {}, {}
  for _, g in ipairs(groups) do
    if not seen[g] then names[#names + 1], seen[g] = g, true end
  end
  local open, list = servable(p, names)
  local standing, new, tokens = on_ring(p, list), {}, 0
  for _, g in ipairs(groups) do
    if open[g] and not standing[g] then
      new[#new + 1], standing[g], tokens = g, true, tokens + 1
    elseif open[g] and not quiet then
      tokens = tokens + 1
    end
  end
  if #new > 0 then redis.call('RPUSH', p .. 'ring', unpack(new)) end
  wake_lanes(p, tokens)
end

-- The same as `offer` of each in turn, in a few calls.
local function offer_all(p, groups, quiet)
  if #groups == 1 then return offer(p, groups[1], quiet) end
  for first = 1, #groups, PIECE do
    offer_some(p, {unpack(groups, first, math.min(first + PIECE - 1, #groups))}, quiet)
  end
end

-- Gives `count` slots of the lane back; the caller says so only for ids that it removed from active itself.
local function free_slot(p, g, count)
  if redis.call('HINCRBY', p .. 'gactive', g, -count) <= 0 then redis.call('HDEL', p .. 'gactive', g) end
end

-- Takes an id out of its lane; whoever empties a lane drops its ring entry.
local function leave_lane(p, g, id)
  if redis.call('ZREM', lane_key(p, g), id) == 1 and redis.call('ZCARD', lane_key(p, g)) == 0 then
    redis.call('LREM', p .. 'ring', 0, g)
  end
end
