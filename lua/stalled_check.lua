-- stalled_check: the counting sweep; a job whose lease ran out goes back, or is dead at max_stalled.
-- Adds 1 to the row's `stalled`. A burial is an ending: `held` and `crashes` are cleared, the lock is deleted.
-- KEYS[1] emq:{q}:active
-- KEYS[2] emq:{q}:pending
-- KEYS[3] emq:{q}:dead
-- ARGV[1] emq:{q}:
-- ARGV[2] max_stalled  dead when stalled, this time included, reaches it
-- ARGV[3] limit  at most so many leases
-- returns {{recovered id, …}, {dead id, …}}
-- include: now
-- include: chunks
-- include: lanes
-- include: waiting
-- include: recovery
-- include: flow
local p, max_stalled, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local expired = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms(), 'LIMIT', 0, limit)
local members, counted = recoverable(p, expired)
redis.call('HGET', p .. 'metrics:failed', 'count')
local back, buried = {}, {}
for _, member in ipairs(counted) do
  redis.call('EXISTS', p .. 'job:' .. member.id .. ':lock')
  member.child = read_child(p, member.id)
  touch_ended(p, member.child)
  member.stalled = (tonumber(member.stalled) or 0) + 1
  local list = member.stalled >= max_stalled and buried or back
  list[#list + 1] = member
end

drop_leases(p, members)
remove(p .. 'schedule', counted)
for _, member in ipairs(back) do redis.call('HSET', p .. 'job:' .. member.id, 'stalled', member.stalled) end
put_back(p, back)
for _, member in ipairs(buried) do
  local key = p .. 'job:' .. member.id
  redis.call('HSET', key, 'state', 'dead', 'stalled', member.stalled, 'last_error', 'stalled')
  redis.call('HDEL', key, 'held', 'crashes')
  redis.call('DEL', key .. ':lock')
  if member.group then leave_lane(p, member.group, member.id) end
end
remove(KEYS[2], buried)
add(KEYS[3], buried)
for _, member in ipairs(buried) do died(p, member.child, 'stalled') end
if #buried > 0 then redis.call('HINCRBY', p .. 'metrics:failed', 'count', #buried) end
offer_lanes(p, members)
return {ids_of(back), ids_of(buried)}
