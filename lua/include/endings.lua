-- The sets' side of many endings at once (settle): an ended id is taken out of every set that has it, then is in the one
-- that its verdict names, or in none.

-- What the endings of grouped jobs need to know. By the verdict's number: the lease, and whether the id still stands in its
-- lane. By lane: the jobs in flight and the limit. Every key that they write is read, each lane by one call.
local function no_lanes()
  return {leases = {}, stands = {}, busy = {}, limits = {}}
end

local function read_lanes(p, active, at, groups)
  local known = no_lanes()
  -- Of most lanes one job ends at a time: `only` has its number, `more` the numbers of those that have several.
  local names, only, more, numbers, ids = {}, {}, {}, {}, {}
  for n, i in ipairs(at) do
    local group = groups[n]
    if group ~= '' then
      local count = #numbers + 1
      numbers[count], ids[count] = n, ARGV[i + 1]
      if not only[group] then
        names[#names + 1], only[group] = group, n
      else
        more[group] = more[group] or {only[group]}
        table.insert(more[group], n)
      end
    end
  end
  touch_lane(p, names[1])
  each_score(active, ids, function(i, lease) known.leases[numbers[i]] = lease end)
  for _, group in ipairs(names) do
    local key, several = lane_key(p, group), more[group]
    if several then
      local members = {}
      for k, n in ipairs(several) do members[k] = ARGV[at[n] + 1] end
      each_score(key, members, function(k, score) known.stands[several[k]] = score end)
    else
      local n = only[group]
      known.stands[n] = redis.call('ZSCORE', key, ARGV[at[n] + 1]) or nil
    end
  end
  for first = 1, #names, CHUNK do
    local last = math.min(first + CHUNK - 1, #names)
    local busy = redis.call('HMGET', p .. 'gactive', unpack(names, first, last))
    local limits = redis.call('HMGET', p .. 'glimit', unpack(names, first, last))
    for i = first, last do
      known.busy[names[i]] = tonumber(busy[i - first + 1]) or 0
      known.limits[names[i]] = tonumber(limits[i - first + 1])
    end
  end
  return known
end

-- Takes ended ids, by lane, out of the lanes in which they still stood; whoever empties a lane drops its ring entry.
local function leave_lanes(p, left)
  for group, ids in pairs(left) do
    call_chunked('ZREM', lane_key(p, group), ids)
    if redis.call('ZCARD', lane_key(p, group)) == 0 then redis.call('LREM', p .. 'ring', 0, group) end
  end
end

-- Gives back `freed` slots by lane. A lane that was below its limit was on the ring, if it could be served: nothing is
-- looked for there, which a long ring makes dear.
local function free_slots(p, freed, known)
  local counts, none = {}, {}
  for group, count in pairs(freed) do
    local left = known.busy[group] - count
    if left > 0 then
      counts[#counts + 1], counts[#counts + 2] = group, string.format('%.0f', left)
    else
      none[#none + 1] = group
    end
  end
  in_chunks(counts, function(...) redis.call('HSET', p .. 'gactive', ...) end)
  in_chunks(none, function(...) redis.call('HDEL', p .. 'gactive', ...) end)
  for group in pairs(freed) do
    if known.limits[group] and known.busy[group] >= known.limits[group] then offer(p, group, true) end
  end
end

-- Files that the id of verdict `n` ends. `slot`: this ending takes it from active, so it gives the slot back.
local function leaves_lane(done, known, n, group, id, slot)
  if slot then done.freed[group] = (done.freed[group] or 0) + 1 end
  if known.stands[n] then
    done.left[group] = done.left[group] or {}
    table.insert(done.left[group], id)
  end
end

-- `sizes` of active, pending, schedule and dead: nothing is sent to an empty set.
local function write_endings(p, done, sizes, ceiling, known)
  if #done.ended == 0 then return end
  local freed = 0
  for i, key in ipairs(KEYS) do
    if sizes[i] > 0 then
      local removed = call_chunked('ZREM', key, done.ended)
      if i == 1 then freed = removed end
    end
  end
  in_chunks(done.erased, function(...) redis.call('UNLINK', ...) end)
  call_chunked('ZADD', KEYS[3], done.due)
  call_chunked('ZADD', KEYS[4], done.dead)
  leave_lanes(p, done.left)
  free_slots(p, done.freed, known)
  if done.completed > 0 then redis.call('HINCRBY', p .. 'metrics:completed', 'count', done.completed) end
  if done.failed > 0 then redis.call('HINCRBY', p .. 'metrics:failed', 'count', done.failed) end
  -- A consumer that parked below a full ceiling waits for this token, whichever kind of job is next.
  if ceiling and freed > 0 and (redis.call('ZCARD', KEYS[2]) > 0 or redis.call('EXISTS', p .. 'ring') == 1) then
    wake_flat(p, freed)
  end
end
