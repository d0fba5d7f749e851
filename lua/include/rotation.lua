-- The ring as claim_many walks it: each lane's turn takes up to its weight, a lane that can be served again goes to the
-- tail, a hollow, paused or full one falls out. Reads only; write_ring stores the result.
local MOST_LANES = 1000

-- `cut` is `name:taken` of a lane whose turn the last claim had no room to finish: it stands at the head and goes on. A lane
-- is a number, its place on the ring. Of a lane as most are `members` has the first ones, those behind last[lane - 1] up to
-- last[lane], of which those up to at[lane] are taken; full[lane] is the one that fills it. `opened` has the sources of the
-- others.
local function new_rotation(claim, ring, length, cut)
  local name, taken = string.match(cut or '', '^(.*):(%d+)$')
  return {ring = ring, length = length, lanes = length, size = math.min(claim.room, MOST_LANES), loaded = 0, visited = 0,
    share = math.ceil(claim.room / math.max(claim.has_flat and length + 1 or length, 1)), head = 1, queue = {}, later = {},
    seen = {}, wrapped = false, progress = true, cut_name = name, cut_taken = tonumber(taken), members = {scores = {}},
    names = {}, keys = {}, busy = {}, limits = {}, full = {}, at = {}, last = {[0] = 0}, more = {}, opened = {}}
end

local function is_full(lane)
  return lane.limit and (lane.busy or 0) + lane.started >= lane.limit
end

-- The source of a lane that needs one: what was taken from it so far is told.
local function open_lane(rot, n)
  local lane, last, at = rot.opened[n], rot.last[n], rot.at[n]
  if lane then return lane end
  lane = source(rot.keys[n], rot.names[n])
  local first = rot.last[n - 1]
  lane.ids, lane.i, lane.size, lane.at, lane.ended = rot.members, at, last, last - first, not rot.more[n]
  lane.busy, lane.limit, lane.started = rot.busy[n], rot.limits[n], at - first
  for i = first + 1, at do lane.leave[i - first] = rot.members[i] end
  rot.opened[n] = lane
  return lane
end

-- Reads on: names, counters, the first members of each lane (one more than its share, so that it shows whether something is
-- left), and their leases in one call.
local function load_lanes(claim, rot)
  local p, first, share = claim.p, rot.loaded, rot.share
  local names = redis.call('LRANGE', rot.ring, first, first + rot.size - 1)
  local busy, limits = redis.call('HMGET', p .. 'gactive', unpack(names)), ask_lanes(p .. 'glimit', names)
  local weights = ask_lanes(p .. 'gweight', names)
  local paused = redis.call('EXISTS', p .. 'paused') == 1 and redis.call('SMISMEMBER', p .. 'paused', unpack(names)) or {}
  local members, keys, queue, at, last, more, seen = rot.members, rot.keys, rot.queue, rot.at, rot.last, rot.more, rot.seen
  local before = last[first]
  local count = before
  for i, name in ipairs(names) do
    local n, key, limit, room = first + i, lane_key(p, name), tonumber(limits[i]), 1
    rot.names[n], keys[n], queue[n], at[n] = name, key, n, count
    if busy[i] then rot.busy[n] = tonumber(busy[i]) end
    if limit then
      room = limit - (rot.busy[n] or 0)
      rot.limits[n], rot.full[n] = limit, count + math.ceil(room)
    end
    if paused[i] ~= 1 and not seen[name] and room >= 1 then
      local ids = redis.call('ZRANGE', key, 0, share)
      local found = #ids
      if found > share then more[n], found = true, share end
      for k = 1, found do members[count + k] = ids[k] end
      count = count + found
    end
    last[n], seen[name] = count, true
    if weights[i] then
      local lane = open_lane(rot, n)
      lane.weight = math.max(1, tonumber(weights[i]) or 1)
      lane.page = math.min(math.max(lane.weight + 1, PAGE), MOST_LANES + 1)
    end
  end
  if count > before then
    for i, lease in ipairs(redis.call('ZMSCORE', claim.active, unpack(members, before + 1, count))) do
      if lease then members.scores[before + i] = lease end
    end
  end
  rot.loaded, rot.size = first + #names, math.min(2 * rot.size, MOST_LANES)
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

-- A turn of each lane from the head on, `most` at most, as long as lane and job are as most are. Ends at the first that is
-- another, whose row it leaves for next_job; answers how many turns it were.
local function serve_plain(claim, rot, most)
  local queue, head, later, kept = rot.queue, rot.head, rot.later, #rot.later
  local members, at, last, more, seen, count = rot.members, rot.at, rot.last, rot.more, claim.seen, claim.count
  local jobs, tokens, before, room = claim.jobs, claim.tokens, count, math.min(count + most, claim.room)
  local waiting = kept
  if rot.cut_name then return 0 end
  while count < room do
    local lane = queue[head]
    local i = lane and not rot.opened[lane] and at[lane] + 1
    if not i or i > last[lane] then break end
    local id, name = members[i], rot.names[lane]
    local row = read_row(claim, id)
    if seen[id] or not is_plain(name, row, members.scores[i]) then
      claim.row = row
      break
    end
    if row[PARENT] then claim.kin[#claim.kin + 1] = id end
    local attempts, n = row[ATTEMPTS], 6 * count
    if not tokens[attempts] then tokens[attempts] = token_after(attempts) end
    jobs[n + 1], jobs[n + 2], jobs[n + 3] = id, row[PAYLOAD], tokens[attempts]
    jobs[n + 4], jobs[n + 5], jobs[n + 6] = name, row[FAILURES] or '0', 0
    at[lane], count, head = i, count + 1, head + 1
    if claim.has_flat then claim.leave[#claim.leave + 1] = id end
    if i ~= rot.full[lane] and (i < last[lane] or more[lane]) then
      kept = kept + 1
      later[kept] = lane
    end
  end
  local served = count - before
  claim.count, claim.looked, rot.head, rot.cut = count, claim.looked + served, head, nil
  rot.progress = rot.progress or served > 0
  rot.lanes = rot.lanes - (served - (kept - waiting))
  if not rot.wrapped then rot.visited = rot.visited + served end
  return served
end

-- One turn of the head. Answers whether it is over: it goes on with the next claim where there is no room to finish it.
local function serve_lane(claim, rot)
  local n = rot.queue[rot.head]
  local lane = open_lane(rot, n)
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
  if again then rot.later[#rot.later + 1] = n else rot.lanes = rot.lanes - 1 end
  return true
end

-- How many entries the ring keeps.
local function entries_left(rot)
  return #rot.later + (rot.wrapped and #rot.queue - rot.head + 1 or rot.length - rot.visited)
end

local function write_ring(rot)
  local names = {}
  if rot.wrapped then
    for i = rot.head, #rot.queue do names[#names + 1] = rot.names[rot.queue[i]] end
    redis.call('DEL', rot.ring)
  elseif rot.visited > 0 then
    redis.call('LTRIM', rot.ring, rot.visited, -1)
  end
  for _, lane in ipairs(rot.later) do names[#names + 1] = rot.names[lane] end
  call_chunked('RPUSH', rot.ring, names)
end
