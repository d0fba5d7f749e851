-- reprocess: a dead job gets a new life: back to pending or its lane, with nothing held against it. `settled` stays, so that a
-- verdict which is sent again is still known. A child of a flow has reported when it died: its parent hears nothing more. The
-- dedup key went then too, or goes now where a foreign client buried the job.
-- KEYS[1] emq:{q}:job:<id>  the row
-- KEYS[2] emq:{q}:dead
-- KEYS[3] emq:{q}:pending
-- ARGV[1] id
-- ARGV[2...] force  optional: `force`, also a parent whose children are still out
-- returns 1 | -1 gone | EMQSTATE
-- include: lane
-- include: flow
local id, p = ARGV[1], string.sub(KEYS[3], 1, -8)
local row = redis.call('HMGET', KEYS[1], 'state', 'group', 'dedup')
if not row[1] and redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local dead = redis.call('ZSCORE', KEYS[2], id)
redis.call('ZCARD', KEYS[3])
redis.call('LLEN', p .. 'ready')
if row[2] then touch_lane(p, row[2]) end
local child = child_of(id, {row[3]})
touch_ended(p, child)
if row[1] ~= 'dead' or not dead then return redis.error_reply('EMQSTATE not dead') end
local out = tonumber(redis.call('GET', KEYS[1] .. ':dependencies')) or 0
-- A child that is dead has not counted down, unless it has completed all the same.
for _, child in ipairs(redis.call('HKEYS', KEYS[1] .. ':failed')) do
  if redis.call('HEXISTS', KEYS[1] .. ':processed', child) == 0 then out = out - 1 end
end
if out > 0 and ARGV[2] ~= 'force' then return redis.error_reply('EMQSTATE children still out') end
redis.call('ZREM', KEYS[2], id)
release_dedup(p, child)
redis.call('HDEL', KEYS[1], 'last_error', 'failures', 'stalled', 'crashes', 'held', 'cancel', 'expires_at', 'dedup', 'parent',
  'parent_queue', 'parent_policy')
redis.call('HSET', KEYS[1], 'state', 'pending')
if row[2] then
  redis.call('ZADD', lane_key(p, row[2]), 0, id)
  offer(p, row[2])
else
  redis.call('ZADD', KEYS[3], 0, id)
  wake_flat(p, 1)
end
return 1
