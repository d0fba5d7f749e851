-- The ring as claim_many walks it: each lane's turn takes up to its weight, a lane that can be served again goes to the
-- tail, a hollow, paused or full one falls out. Reads only; write_ring stores the result.

local function load_lanes(claim, rot)
  local names = redis.call('LRANGE', rot.ring, rot.loaded, rot.loaded + rot.size - 1)
  rot.loaded = rot.loaded + #names
  if #names == 0 then
    rot.length = rot.loaded
    return
  end
  local limits = redis.call('HMGET', claim.p .. 'glimit', unpack(names))
  local busy = redis.call('HMGET', claim.p .. 'gactive', unpack(names))
  local weights = redis.call('HMGET', claim.p .. 'gweight', unpack(names))
  local paused = redis.call('SMISMEMBER', claim.p .. 'paused', unpack(names))
  for i, name in ipairs(names) do
    local depth = rot.seen[name] and 0 or redis.call('ZCARD', lane_key(claim.p, name))
    local free = tonumber(limits[i]) and tonumber(limits[i]) - (tonumber(busy[i]) or 0) or math.huge
    if paused[i] == 1 then free = 0 end
    local weight = math.max(1, tonumber(weights[i]) or 1)
    rot.queue[#rot.queue + 1] = {name = name, depth = depth, free = free, weight = weight, taken = 0,
      cursor = cursor(lane_key(claim.p, name), claim.active, math.max(weight, rot.share), math.max(weight, rot.share, 16))}
    rot.seen[name] = true
  end
end

local function new_rotation(claim)
  local length = redis.call('LLEN', claim.ring)
  local size = math.max(claim.room, 16)
  return {ring = claim.ring, length = length, size = math.min(size, 1000), share = math.ceil(claim.room / (length + 1)),
    loaded = 0, visited = 0, head = 1, queue = {}, later = {}, seen = {}, wrapped = false, progress = true}
end

-- The lane whose turn it is, or nil when a whole round has served nobody.
local function next_lane(claim, rot)
  if rot.head > #rot.queue and rot.loaded < rot.length then load_lanes(claim, rot) end
  if rot.head > #rot.queue then
    if #rot.later == 0 or not rot.progress then return nil end
    rot.queue, rot.later, rot.head, rot.wrapped, rot.progress = rot.later, {}, 1, true, false
  end
  return rot.queue[rot.head]
end

-- One turn. Answers whether the lane was served.
local function serve_lane(claim, rot)
  local lane = rot.queue[rot.head]
  rot.head = rot.head + 1
  if not rot.wrapped then rot.visited = rot.visited + 1 end
  local served = 0
  while served < lane.weight and lane.free > 0 and lane.depth > (lane.cursor.gone or 0) and #claim.take < claim.room do
    if not next_job(claim, lane.cursor, lane.name) then break end
    served = served + 1
    lane.free = lane.free - 1
  end
  lane.taken = lane.taken + served
  if lane.free > 0 and lane.depth > (lane.cursor.gone or 0) then rot.later[#rot.later + 1] = lane end
  if served > 0 then rot.progress = true end
  return served > 0
end

local function write_ring(rot)
  local names = {}
  if rot.wrapped then
    for i = rot.head, #rot.queue do names[#names + 1] = rot.queue[i].name end
  end
  for _, lane in ipairs(rot.later) do names[#names + 1] = lane.name end
  if rot.wrapped then
    redis.call('DEL', rot.ring)
  elseif rot.visited > 0 then
    redis.call('LTRIM', rot.ring, rot.visited, -1)
  end
  in_chunks(names, function(...) redis.call('RPUSH', rot.ring, ...) end)
end
