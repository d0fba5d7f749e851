-- Taking a job away for good: out of every set, its slot given back, its row and all that hangs on it deleted.
local PARTS = {'logs', 'lock', 'dependencies', 'processed', 'failed', 'unsuccessful'}

-- Reads every key that remove_job and the flow's `died` may write.
local function touch_removal(p, id, group, child)
  for _, name in ipairs({'pending', 'active', 'schedule', 'dead'}) do redis.call('ZSCORE', p .. name, id) end
  local key = p .. 'job:' .. id
  for _, part in ipairs(PARTS) do redis.call('EXISTS', key .. ':' .. part) end
  if group then touch_lane(p, group) end
  touch_ended(p, child)
end

local function remove_job(p, id, group)
  local freed = redis.call('ZREM', p .. 'active', id) == 1
  for _, name in ipairs({'pending', 'schedule', 'dead'}) do redis.call('ZREM', p .. name, id) end
  if group then
    leave_lane(p, group, id)
    if freed then
      free_slot(p, group, 1)
      offer(p, group)
    end
  end
  local key = p .. 'job:' .. id
  local names = {key}
  for _, part in ipairs(PARTS) do names[#names + 1] = key .. ':' .. part end
  redis.call('UNLINK', unpack(names))
end

-- Many jobs that wait: {id, group, child, elsewhere}. `elsewhere`: a foreign client has put back what is held under a lease
-- that runs, or dead.
local function read_removals(p, ids, group)
  local found, seen, now = {}, {}, now_ms()
  for _, id in ipairs(ids) do
    if not seen[id] then
      seen[id] = true
      local lease, row = tonumber(redis.call('ZSCORE', p .. 'active', id)), redis.call('HMGET', p .. 'job:' .. id, 'state', 'group')
      local job = {id = id, group = group or row[2], child = read_child(p, id)}
      job.elsewhere = lease and lease > now or (row[1] == 'dead' and redis.call('ZSCORE', p .. 'dead', id))
      touch_removal(p, id, job.group, job.child)
      found[#found + 1] = job
    end
  end
  return found
end

-- Deletes them, flow children as deaths; what is elsewhere too only leaves `sets`.
local function remove_all(p, found, reason, sets)
  for _, job in ipairs(found) do
    if job.elsewhere then
      for _, key in ipairs(sets) do redis.call('ZREM', key, job.id) end
    else
      remove_job(p, job.id, job.group)
      died(p, job.child, reason)
    end
  end
end
