-- While there may be a lock that a keeper wrote beside a job in hand by its first claim, the queue's `kept` stands: where it does
-- not, who settles such jobs (nobody before has left a lock) need not look for one of each.

local function touch_kept(p)
  return redis.call('EXISTS', p .. 'kept')
end

-- `row` is HMGET's attempts and held.
local function is_first(row)
  return row[1] == '1' and row[2] and true or false
end

-- `lasts` is the time in ms of the lock that was written.
local function note_kept(p, lasts)
  lasts = string.format('%.0f', lasts)
  redis.call('SET', p .. 'kept', '1', 'NX', 'PX', lasts)
  redis.call('PEXPIRE', p .. 'kept', lasts, 'GT')
end
