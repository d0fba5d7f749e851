-- The ring as claim_many walks it: each lane's turn takes up to its weight, a lane that can be served again goes to the
-- tail, a hollow, paused or full one falls out. Reads only; write_ring stores the result.
local MOST_LANES = 1000

-- `cut` is `name:taken` of a lane whose turn the last claim had no room to finish: it stands at the head and goes on.
local function new_rotation(claim, ring, cut)
  local length = redis.call('LLEN', ring)
  local name, taken = string.match(cut or '', '^(.*):(%d+)$')
  return {ring = ring, length = length, lanes = length, size = math.min(claim.room, MOST_LANES), loaded = 0, visited = 0,
    share = math.ceil(claim.room / (length + 1)), head = 1, queue = {}, later = {}, seen = {}, all = {},
    wrapped = false, progress = true, cut_name = name, cut_taken = tonumber(taken)}
end

local function is_full(lane)
  return lane.limit and (lane.busy or 0) + lane.started >= lane.limit
end

-- Reads on: names, counters, the first members of each lane (one more than its share, so that it shows whether something
-- is left), and their leases in one call.
local function load_lanes(claim, rot)
  local names = redis.call('LRANGE', rot.ring, rot.loaded, rot.loaded + rot.size - 1)
  local limits = redis.call('HMGET', claim.p .. 'glimit', unpack(names))
  local busy = redis.call('HMGET', claim.p .. 'gactive', unpack(names))
  local weights = redis.call('HMGET', claim.p .. 'gweight', unpack(names))
  local paused = redis.call('SMISMEMBER', claim.p .. 'paused', unpack(names))
  local all, first, count = {}, #rot.queue, 0
  for i, name in ipairs(names) do
    local lane = source(lane_key(claim.p, name), name)
    if weights[i] then
      lane.weight = math.max(1, tonumber(weights[i]) or 1)
      lane.page = math.min(math.max(lane.weight + 1, PAGE), MOST_LANES + 1)
    end
    if busy[i] then lane.busy = tonumber(busy[i]) end
    if limits[i] then lane.limit = tonumber(limits[i]) end
    if paused[i] == 1 or rot.seen[name] or is_full(lane) then
      lane.ended = true
    else
      local ids = redis.call('ZRANGE', lane.key, 0, rot.share)
      -- All lanes share one list, each has its part of it.
      lane.ids, lane.i = all, count
      for k = 1, #ids do all[count + k] = ids[k] end
      count = count + #ids
      lane.size = count
      lane.at = #ids
      if #ids <= rot.share then lane.ended = true end
    end
    rot.queue[first + i], rot.all[first + i], rot.seen[name] = lane, lane, true
  end
  if count > 0 then all.scores = redis.call('ZMSCORE', claim.active, unpack(all)) end
  rot.loaded, rot.size = rot.loaded + #names, math.min(2 * rot.size, MOST_LANES)
end

-- Makes the lane whose turn it is the head; false when a whole round has served nobody.
local function next_lane(claim, rot)
  if rot.head > #rot.queue and rot.loaded < rot.length then load_lanes(claim, rot) end
  if rot.head > #rot.queue then
    if #rot.later == 0 or not rot.progress then return false end
    rot.queue, rot.later, rot.head, rot.wrapped, rot.progress = rot.later, {}, 1, true, false
  end
  return true
end

-- One turn of the head. Answers whether it is over: it goes on with the next claim where there is no room to finish it.
local function serve_lane(claim, rot)
  local lane = rot.queue[rot.head]
  local before = lane.name == rot.cut_name and math.min(rot.cut_taken, lane.weight or 1) or 0
  local taken = before
  rot.cut_name, rot.cut = nil, nil
  local weight = lane.weight or 1
  while taken < weight and not is_full(lane) and claim.count < claim.room
    and next_job(claim, lane) do taken = taken + 1 end
  if taken > before then rot.progress = true end
  local again = not is_full(lane) and (has_more(claim, lane) or lane.passed)
  if again and taken > 0 and taken < weight and claim.count >= claim.room then
    rot.cut = lane.name .. ':' .. taken
    return false
  end
  rot.head = rot.head + 1
  if not rot.wrapped then rot.visited = rot.visited + 1 end
  if again then rot.later[#rot.later + 1] = lane else rot.lanes = rot.lanes - 1 end
  return true
end

-- How many entries the ring keeps.
local function entries_left(rot)
  return #rot.later + (rot.wrapped and #rot.queue - rot.head + 1 or rot.length - rot.visited)
end

local function write_ring(rot)
  local names = {}
  if rot.wrapped then
    for i = rot.head, #rot.queue do names[#names + 1] = rot.queue[i].name end
    redis.call('DEL', rot.ring)
  elseif rot.visited > 0 then
    redis.call('LTRIM', rot.ring, rot.visited, -1)
  end
  for _, lane in ipairs(rot.later) do names[#names + 1] = lane.name end
  call_chunked('RPUSH', rot.ring, names)
end
