-- lane_enqueue: admits a job to the lane of its group.
-- The lane joins the ring when it can be served: not paused, below its limit, not there yet. A lane that can be served
-- gets one wake token.
-- KEYS[1] emq:{q}:job:<id>  the row
-- KEYS[2] emq:{q}:g:<group>:pending  the lane
-- KEYS[3] emq:{q}:ring
-- KEYS[4] emq:{q}:paused
-- KEYS[5] emq:{q}:glimit
-- KEYS[6] emq:{q}:gactive
-- KEYS[7] emq:{q}:wake
-- ARGV[1] id
-- ARGV[2] payload  opaque bytes
-- ARGV[3] group  a branded id of any namespace
-- returns 1 admitted | 0 duplicate | EMQKIND
-- include: lane
if string.sub(ARGV[1], 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
local p = string.sub(KEYS[3], 1, -5)
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
touch_lane(p, ARGV[3])
redis.call('HSET', KEYS[1], 'state', 'pending', 'attempts', '0', 'payload', ARGV[2], 'group', ARGV[3])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
offer(p, ARGV[3])
return 1
