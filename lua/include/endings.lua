-- The sets' side of many endings at once (settle): an ended id is taken out of every set that has it, then is in the one
-- that its verdict names, or in none.

-- Leases of the grouped jobs, by the verdict's number, and every key of their lanes is read.
local function read_leases(p, active, lanes, at, groups)
  local ids, numbers, leases = {}, {}, {}
  for n, i in ipairs(at) do
    if groups[n] ~= '' then ids[#ids + 1], numbers[#numbers + 1] = ARGV[i + 1], n end
  end
  for i = 1, #ids, CHUNK do
    for j, lease in ipairs(redis.call('ZMSCORE', active, unpack(ids, i, math.min(i + CHUNK - 1, #ids)))) do
      leases[numbers[i + j - 1]] = lease
    end
  end
  touch_lanes(p, lanes)
  return leases
end

-- `slot`: this ending takes the id from active, so it gives the slot back.
local function leaves_lane(done, group, id, slot)
  if slot then done.freed[group] = (done.freed[group] or 0) + 1 end
  done.left[group] = done.left[group] or {}
  table.insert(done.left[group], id)
end

-- `sizes` of active, pending, schedule and dead: nothing is sent to an empty set.
local function write_endings(p, done, sizes, ceiling)
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
  for group, ids in pairs(done.left) do
    if call_chunked('ZREM', lane_key(p, group), ids) > 0 and redis.call('ZCARD', lane_key(p, group)) == 0 then
      redis.call('LREM', p .. 'ring', 0, group)
    end
  end
  for group, count in pairs(done.freed) do
    free_slot(p, group, count)
    offer(p, group, true)
  end
  if done.completed > 0 then redis.call('HINCRBY', p .. 'metrics:completed', 'count', done.completed) end
  if done.failed > 0 then redis.call('HINCRBY', p .. 'metrics:failed', 'count', done.failed) end
  -- A consumer that parked below a full ceiling waits for this token, whichever kind of job is next.
  if ceiling and freed > 0 and (redis.call('ZCARD', KEYS[2]) > 0 or redis.call('EXISTS', p .. 'ring') == 1) then
    wake_flat(p, freed)
  end
end
