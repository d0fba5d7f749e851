-- Taking a job away for good: out of every set, its slot given back, its row and all that hangs on it deleted.
local PARTS = {'logs', 'lock', 'dependencies', 'processed', 'failed', 'unsuccessful'}

-- Reads every key that remove_job and the flow's `died` may write; sets and lanes once in a call.
local sets_touched, lanes_touched = false, {}
local function touch_removal(p, id, group, child)
  if not sets_touched then
    for _, name in ipairs({'pending', 'active', 'schedule', 'dead'}) do redis.call('ZCARD', p .. name) end
    sets_touched = true
  end
  local key, keys = p .. 'job:' .. id, {}
  for i, part in ipairs(PARTS) do keys[i] = key .. ':' .. part end
  redis.call('EXISTS', unpack(keys))
  if group and not lanes_touched[group] then
    touch_lane(p, group)
    lanes_touched[group] = true
  end
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
      local lease = tonumber(redis.call('ZSCORE', p .. 'active', id))
      local row = redis.call('HMGET', p .. 'job:' .. id, 'state', 'group', 'dedup', 'parent', 'parent_queue', 'parent_policy')
      local job = {id = id, group = group or row[2], child = child_of(id, {unpack(row, 3)})}
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
