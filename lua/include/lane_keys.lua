-- Where lanes are. p is the queue base `emq:{q}:`.

-- What many lanes have in a hash that most queues do not have.
local function ask_lanes(key, names)
  return redis.call('EXISTS', key) == 1 and redis.call('HMGET', key, unpack(names)) or {}
end

local function lane_key(p, g)
  return p .. 'g:' .. g .. ':pending'
end
