-- One lane (protocol section 5). p is the queue base `emq:{q}:`.
-- include: waking
-- include: lane_keys

local function wake_lanes(p, count)
  if count > 0 then push_tokens(p .. 'wake', count) end
end

-- Reads every key that offer, free_slot and leave_lane may write, by a command of its type, so that a key that cannot be
-- reached or is of another type raises before the first write of the script.
local function touch_lane(p, g)
  redis.call('ZCARD', lane_key(p, g))
  redis.call('SISMEMBER', p .. 'paused', g)
  redis.call('HGET', p .. 'glimit', g)
  redis.call('HGET', p .. 'gactive', g)
  redis.call('LLEN', p .. 'ring')
  redis.call('LLEN', p .. 'wake')
end

-- Puts the lane on the ring if it can be served: not paused, not empty, below its limit, not there yet. One wake token
-- when it can be served at all, since a consumer that parked saw it exhausted; where only a slot was freed (`quiet`) a
-- lane that is on the ring already gets none.
local function offer(p, g, quiet)
  if redis.call('ZCARD', lane_key(p, g)) == 0 then return end
  if redis.call('SISMEMBER', p .. 'paused', g) == 1 then return end
  local limit = tonumber(redis.call('HGET', p .. 'glimit', g))
  if limit and (tonumber(redis.call('HGET', p .. 'gactive', g)) or 0) >= limit then return end
  if not redis.call('LPOS', p .. 'ring', g) then
    redis.call('RPUSH', p .. 'ring', g)
  elseif quiet then
    return
  end
  wake_lanes(p, 1)
end

-- Gives `count` slots of the lane back; the caller says so only for ids that it removed from active itself.
local function free_slot(p, g, count)
  if redis.call('HINCRBY', p .. 'gactive', g, -count) <= 0 then redis.call('HDEL', p .. 'gactive', g) end
end

-- Takes an id out of its lane; whoever empties a lane drops its ring entry.
local function leave_lane(p, g, id)
  if redis.call('ZREM', lane_key(p, g), id) == 1 and redis.call('ZCARD', lane_key(p, g)) == 0 then
    redis.call('LREM', p .. 'ring', 0, g)
  end
end
