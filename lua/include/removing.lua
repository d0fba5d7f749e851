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
