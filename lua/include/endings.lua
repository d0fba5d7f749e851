-- The sets' side of endings that `completions` has not: of jobs of lanes, and of jobs that are not over.

-- What the endings of grouped jobs need to know, and what becomes of it. By the verdict's number: the lane's number, the lease,
-- and whether the id still stands in its lane. By lane: the name, the jobs in flight and the limit as they are read, the slots
-- that are given back, the ids that leave it. Every key that they write is read.
local function no_lanes()
  return {lanes = {}, leases = {}, stands = {}, names = {}, busy = {}, limits = {}, freed = {}, left = {}}
end

-- Numbers the lanes and reads where the ended ids stand. `ours` has by number whether the row shows this very claim: what it
-- has in active it took from the lane, and nobody puts a job back without taking it from active.
local function read_standing(p, known, active, ids, groups, ours)
  local names, lanes, numbered, asked = known.names, known.lanes, {}, {}
  local count, leases = 0, ask_chunked('ZMSCORE', active, ids)
  for n = 1, #ids do
    local group = groups[n]
    if group ~= '' then
      local lane = numbered[group]
      if not lane then
        count = count + 1
        lane = count
        names[lane], numbered[group] = group, lane
      end
      lanes[n] = lane
      if not (ours[n] and leases[n]) then
        asked[lane] = asked[lane] or {}
        table.insert(asked[lane], n)
      end
    end
  end
  known.leases = leases
  for lane, those in pairs(asked) do
    local members = {}
    for k, n in ipairs(those) do members[k] = ids[n] end
    local standing = ask_chunked('ZMSCORE', lane_key(p, names[lane]), members)
    for k, n in ipairs(those) do known.stands[n] = standing[k] end
  end
end

local function read_lanes(p, active, ids, groups, ours)
  local known = no_lanes()
  read_standing(p, known, active, ids, groups, ours)
  touch_lane(p, known.names[1])
  known.busy = ask_chunked('HMGET', p .. 'gactive', known.names)
  if redis.call('EXISTS', p .. 'glimit') == 1 then known.limits = ask_chunked('HMGET', p .. 'glimit', known.names) end
  return known
end

-- Takes ended ids out of the lanes in which they still stood; whoever empties a lane drops its ring entry.
local function leave_lanes(p, known)
  for lane, ids in pairs(known.left) do
    local name = known.names[lane]
    call_chunked('ZREM', lane_key(p, name), ids)
    if redis.call('ZCARD', lane_key(p, name)) == 0 then redis.call('LREM', p .. 'ring', 0, name) end
  end
end

-- Gives slots back. A lane that was below its limit was on the ring, if it could be served: nothing is looked for there,
-- which a long ring makes dear.
local function free_slots(p, known)
  local counts, none, full, names, limits, m = {}, {}, {}, known.names, known.limits, 0
  for lane = 1, #names do
    local name, said, freed = names[lane], known.busy[lane], known.freed[lane]
    if freed then
      -- Most lanes have one job in flight: that text is not made a number.
      local busy = said == '1' and 1 or tonumber(said) or 0
      if busy > freed then
        counts[#counts + 1], counts[#counts + 2] = name, string.format('%.0f', busy - freed)
      else
        m = m + 1
        none[m] = name
      end
      local limit = limits[lane] and tonumber(limits[lane])
      if limit and busy >= limit then full[#full + 1] = name end
    end
  end
  in_chunks(counts, function(...) redis.call('HSET', p .. 'gactive', ...) end)
  in_chunks(none, function(...) redis.call('HDEL', p .. 'gactive', ...) end)
  offer_all(p, full, true)
end

-- Files an id that still stands in its lane.
local function leaves_lane(known, lane, id)
  known.left[lane] = known.left[lane] or {}
  table.insert(known.left[lane], id)
end

-- The ids that stay go into the sets of their verdicts; those of lanes leave these.
local function keep_endings(p, done, known)
  call_chunked('ZADD', KEYS[3], done.due)
  call_chunked('ZADD', KEYS[4], done.dead)
  leave_lanes(p, known)
  free_slots(p, known)
  if done.failed > 0 then redis.call('HINCRBY', p .. 'metrics:failed', 'count', done.failed) end
end
