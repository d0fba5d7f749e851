-- lane_reassign: a pending job moves to another lane, at its place in mint order there.
-- KEYS[1] emq:{q}:job:<id>  the row
-- KEYS[2] emq:{q}:g:<group>:pending  the lane it moves to
-- KEYS[3] emq:{q}:ring
-- KEYS[4] emq:{q}:paused
-- KEYS[5] emq:{q}:glimit
-- KEYS[6] emq:{q}:gactive
-- KEYS[7] emq:{q}:wake
-- ARGV[1] id
-- ARGV[2] group
-- ARGV[3] emq:{q}:
-- returns 1 reassigned | 0 it is there already | -1 not found | -2 not pending
-- include: lane
local id, group, p = ARGV[1], ARGV[2], ARGV[3]
local row = redis.call('HMGET', KEYS[1], 'state', 'group')
if not row[1] and redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local old = row[2]
-- A foreign reprocess leaves a grouped job in flat pending.
local flat = redis.call('ZSCORE', p .. 'pending', id)
local stands = old and redis.call('ZSCORE', lane_key(p, old), id)
touch_lane(p, group)
if old then touch_lane(p, old) end
if not flat and not stands then return -2 end
if old == group and not flat then return 0 end
if stands and old ~= group then leave_lane(p, old, id) end
if flat then redis.call('ZREM', p .. 'pending', id) end
redis.call('HSET', KEYS[1], 'group', group)
redis.call('ZADD', KEYS[2], 0, id)
offer(p, group)
return 1
