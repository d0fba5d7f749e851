-- look: how many jobs a claim could take now, counted up to n; reads only (ours).
-- Honours what claim_many honours: the queue's pause, meta.concurrency, the rate limit, and the lanes' own limits.
-- KEYS[1] emq:{q}:pending
-- KEYS[2] emq:{q}:active
-- KEYS[3] emq:{q}:ring
-- KEYS[4] emq:{q}:meta
-- ARGV[1] emq:{q}:
-- ARGV[2] n  counts no further
-- returns the number, at most n
local p, room = ARGV[1], tonumber(ARGV[2])
local meta = redis.call('HMGET', KEYS[4], 'paused', 'concurrency', 'max', 'window_ms')
if meta[1] then return 0 end
if tonumber(meta[2]) then room = math.min(room, tonumber(meta[2]) - redis.call('ZCARD', KEYS[2])) end
if tonumber(meta[3]) and math.floor(tonumber(meta[4]) or 0) > 0 then
  room = math.min(room, tonumber(meta[3]) - (tonumber(redis.call('GET', p .. 'limiter')) or 0))
end
room = math.max(0, math.floor(room))
local count = redis.call('ZCARD', KEYS[1])
if count >= room then return room end
for _, group in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
  local depth, limit = redis.call('ZCARD', p .. 'g:' .. group .. ':pending'), redis.call('HGET', p .. 'glimit', group)
  if redis.call('SISMEMBER', p .. 'paused', group) == 1 then depth = 0 end
  if tonumber(limit) then
    depth = math.min(depth, math.max(0, tonumber(limit) - (tonumber(redis.call('HGET', p .. 'gactive', group)) or 0)))
  end
  count = count + depth
  if count >= room then return room end
end
return count
