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
  local before, call = last[first], redis.call
  local count = before
  for i = 1, #names do
    local n, name, room = first + i, names[i], 1
    local key, limit = lane_key(p, name), limits[i] and tonumber(limits[i])
    rot.names[n] = name
    keys[n] = key
    queue[n] = n
    at[n] = count
    if busy[i] then rot.busy[n] = tonumber(busy[i]) end
    if limit then
      room = limit - (rot.busy[n] or 0)
      rot.limits[n], rot.full[n] = limit, count + math.ceil(room)
    end
    if paused[i] ~= 1 and not seen[name] and room >= 1 then
      local ids = call('ZRANGE', key, 0, share)
      local found = #ids
      if found > share then more[n], found = true, share end
      for k = 1, found do members[count + k] = ids[k] end
      count = count + found
    end
    last[n] = count
    seen[name] = true
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
  local queue, head, later, kept, names, opened = rot.queue, rot.head, rot.later, #rot.later, rot.names, rot.opened
  local members, at, last, more, full = rot.members, rot.at, rot.last, rot.more, rot.full
  local jobs, tokens, rows, seen, count, call = claim.jobs, claim.tokens, claim.rows, claim.seen, claim.count, redis.call
  local before, room, scores = count, math.min(count + most, claim.room), members.scores
  local waiting, n = kept, 6 * count
  if rot.cut_name then return 0 end
  while count < room do
    local lane = queue[head]
    local i = lane and not opened[lane] and at[lane] + 1
    if not i or i > last[lane] then break end
    local id, name = members[i], names[lane]
    local said, payload, attempts, failures = call('HGETALL', rows .. id), nil, nil, '0'
    -- A row as a producer leaves it, in the order of its fields too.
    if said[1] == 'state' and said[2] == 'pending' and said[3] == 'attempts' and said[5] == 'payload' and said[7] == 'group'
      and said[8] == name and #said == 8 and not (scores[i] or seen[id]) then
      attempts, payload = said[4], said[6]
    else
      local row = row_of(said)
      if seen[id] or not is_plain(name, row, scores[i]) then
        claim.row = row
        break
      end
      if row[PARENT] then claim.kin[#claim.kin + 1] = id end
      attempts, payload, failures = row[ATTEMPTS], row[PAYLOAD], row[FAILURES] or '0'
    end
    local token = tokens[attempts]
    if not token then
      token = token_after(attempts)
      tokens[attempts] = token
    end
    jobs[n + 1] = id
    jobs[n + 2] = payload
    jobs[n + 3] = token
    jobs[n + 4] = name
    jobs[n + 5] = failures
    n = n + 6
    jobs[n] = 0
    at[lane], count, head = i, count + 1, head + 1
    if i ~= full[lane] and (i < last[lane] or more[lane]) then
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
  local later, m, all = rot.later, #names, rot.names
  for i = 1, #later do names[m + i] = all[later[i]] end
  call_chunked('RPUSH', rot.ring, names)
end
