-- flow_child: admits one child of a flow (protocol section 6). Idempotent as flow_hold is. A child that is dead is not run
-- again, it tells its parent once more: one that was made anew has not heard of it.
-- KEYS[1] emq:{q}:job:<id>  the child's row
-- KEYS[2] emq:{q}:pending
-- ARGV[1] child id
-- ARGV[2] payload  opaque bytes
-- ARGV[3] parent id
-- ARGV[4] parent queue  '' where it is this one
-- ARGV[5...] parent policy `fp` or `id` (default fp), group (default none), trace of the producer's span  optional
-- returns 1 admitted | 0 stands already | EMQKIND | EMQSTATE where the row names another parent
-- include: lane
-- include: flow
if string.sub(ARGV[1], 1, 3) ~= 'JOB' then
  return redis.error_reply('EMQKIND job id must be JOB-namespaced')
end
local p = string.sub(KEYS[2], 1, -8)
local policy, group = ARGV[5] or 'fp', ARGV[6] ~= '' and ARGV[6] or nil
redis.call('ZCARD', KEYS[2])
redis.call('LLEN', p .. 'ready')
if group then touch_lane(p, group) end
local row = redis.call('HMGET', KEYS[1], 'parent', 'parent_queue', 'state', 'last_error')
local child = read_child(p, ARGV[1])
touch_ended(p, child)
if redis.call('EXISTS', KEYS[1]) == 1 then
  if row[1] ~= ARGV[3] or (row[2] or '') ~= ARGV[4] then
    return redis.error_reply('EMQSTATE flow row names another parent')
  end
  if row[3] == 'dead' then died(p, child, row[4] or '') end
  return 0
end
redis.call('HSET', KEYS[1], 'state', 'pending', 'attempts', '0', 'payload', ARGV[2], 'parent', ARGV[3], 'parent_policy',
  policy)
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'parent_queue', ARGV[4]) end
if ARGV[7] then redis.call('HSET', KEYS[1], 'trace', ARGV[7]) end
if group then
  redis.call('HSET', KEYS[1], 'group', group)
  redis.call('ZADD', lane_key(p, group), 0, ARGV[1])
  offer(p, group)
else
  redis.call('ZADD', KEYS[2], 0, ARGV[1])
  wake_flat(p, 1)
end
return 1
