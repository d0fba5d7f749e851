-- The sets' side of endings that `completions` has not: of jobs of lanes, and of jobs that are not over.

-- What the endings of grouped jobs need to know, and what becomes of it. By the verdict's number: the lane's number, the lease,
-- and whether the id still stands in its lane. By lane: the name, the jobs in flight, the limit, the slots that are given
-- back, the ids that leave it. Every key that they write is read.
local function no_lanes()
  return {lanes = {}, leases = {}, stands = {}, names = {}, busy = {}, limits = {}, freed = {}, left = {}}
end

-- Numbers the lanes and reads where the ended ids stand. `ours` has by number whether the row shows this very claim: what it
-- has in active it took from the lane, and nobody puts a job back without taking it from active.
local function read_standing(p, known, active, at, groups, ours)
  local names, lanes, numbered, numbers, ids, asked = known.names, known.lanes, {}, {}, {}, {}
  for n, i in ipairs(at) do
    local group = groups[n]
    if group ~= '' then
      local lane = numbered[group]
      if not lane then
        lane = #names + 1
        names[lane], numbered[group] = group, lane
      end
      lanes[n], numbers[#numbers + 1], ids[#ids + 1] = lane, n, ARGV[i + 1]
    end
  end
  each_score(active, ids, function(i, lease) known.leases[numbers[i]] = lease end)
  for _, n in ipairs(numbers) do
    if not (ours[n] and known.leases[n]) then
      local lane = lanes[n]
      asked[lane] = asked[lane] or {}
      table.insert(asked[lane], n)
    end
  end
  for lane, those in pairs(asked) do
    local members = {}
    for k, n in ipairs(those) do members[k] = ARGV[at[n] + 1] end
    each_score(lane_key(p, names[lane]), members, function(k, score) known.stands[those[k]] = score end)
  end
end

local function read_lanes(p, active, at, groups, ours)
  local known = no_lanes()
  read_standing(p, known, active, at, groups, ours)
  local names = known.names
  touch_lane(p, names[1])
  local limited = redis.call('EXISTS', p .. 'glimit') == 1
  for first = 1, #names, CHUNK do
    local last = math.min(first + CHUNK - 1, #names)
    for i, busy in ipairs(redis.call('HMGET', p .. 'gactive', unpack(names, first, last))) do
      known.busy[first + i - 1] = tonumber(busy) or 0
    end
    if limited then
      for i, limit in ipairs(redis.call('HMGET', p .. 'glimit', unpack(names, first, last))) do
        known.limits[first + i - 1] = tonumber(limit)
      end
    end
  end
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
  local counts, none, full = {}, {}, {}
  for lane, name in ipairs(known.names) do
    local busy, freed = known.busy[lane], known.freed[lane]
    local left = freed and busy - freed
    if freed and left > 0 then
      counts[#counts + 1], counts[#counts + 2] = name, string.format('%.0f', left)
    elseif freed then
      none[#none + 1] = name
    end
    if freed and known.limits[lane] and busy >= known.limits[lane] then full[#full + 1] = name end
  end
  in_chunks(counts, function(...) redis.call('HSET', p .. 'gactive', ...) end)
  in_chunks(none, function(...) redis.call('HDEL', p .. 'gactive', ...) end)
  offer_all(p, full, true)
end

-- Files that the id of verdict `n` ends. `slot`: this ending takes it from active, so it gives the slot back.
local function leaves_lane(known, n, id, slot)
  local lane = known.lanes[n]
  if slot then known.freed[lane] = (known.freed[lane] or 0) + 1 end
  if known.stands[n] then
    known.left[lane] = known.left[lane] or {}
    table.insert(known.left[lane], id)
  end
end

-- The ids that stay go into the sets of their verdicts; those of lanes leave these.
local function keep_endings(p, done, known)
  call_chunked('ZADD', KEYS[3], done.due)
  call_chunked('ZADD', KEYS[4], done.dead)
  leave_lanes(p, known)
  free_slots(p, known)
  if done.failed > 0 then redis.call('HINCRBY', p .. 'metrics:failed', 'count', done.failed) end
end
