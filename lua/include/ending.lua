-- What complete, retry, delay and the sweep's burial share: an ending takes the id out of every set that has it, frees the
-- group's slot when it was this ending that took it from active, and deletes the lock (protocol section 4).

-- Reads every key that end_claim may write. Answers whether the queue has a ceiling (meta.concurrency).
local function touch_ending(p, id, group)
  for _, name in ipairs({'active', 'pending', 'schedule', 'dead'}) do redis.call('ZSCORE', p .. name, id) end
  for _, name in ipairs({'ready', 'ring'}) do redis.call('LLEN', p .. name) end
  redis.call('EXISTS', p .. 'job:' .. id .. ':lock')
  if group then touch_lane(p, group) end
  return redis.call('HGET', p .. 'meta', 'concurrency') and true or false
end

local function end_claim(p, id, group, ceiling)
  local freed = redis.call('ZREM', p .. 'active', id) == 1
  redis.call('ZREM', p .. 'pending', id)
  redis.call('ZREM', p .. 'schedule', id)
  redis.call('DEL', p .. 'job:' .. id .. ':lock')
  if group then
    leave_lane(p, group, id)
    if freed then
      free_slot(p, group, 1)
      offer(p, group, true)
    end
  end
  -- A consumer that parked below a full ceiling waits for this token, whichever kind of job is next.
  if freed and ceiling and (redis.call('ZCARD', p .. 'pending') > 0 or redis.call('EXISTS', p .. 'ring') == 1) then
    wake_flat(p, 1)
  end
end
