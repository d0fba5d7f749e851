-- Many lanes at once (protocol section 5). p is the queue base `emq:{q}:`.
-- include: lane

-- touch_lane of many: `groups` has them as its keys.
local function touch_lanes(p, groups)
  local first = true
  for g in pairs(groups) do
    if first then touch_lane(p, g) else redis.call('ZCARD', lane_key(p, g)) end
    first = false
  end
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
