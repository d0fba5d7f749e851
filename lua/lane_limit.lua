-- lane_limit: at most n jobs of a lane in hand at a time; it leaves the ring at its limit and returns below it.
-- KEYS[1] emq:{q}:glimit
-- KEYS[2] emq:{q}:gactive
-- KEYS[3] emq:{q}:ring
-- KEYS[4] emq:{q}:paused
-- KEYS[5] emq:{q}:wake
-- ARGV[1] emq:{q}:
-- ARGV[2] group
-- ARGV[3] n  0 or more; '' takes the limit away
-- returns 1
-- include: lane
local p, group, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
if ARGV[3] ~= '' and not limit then return redis.error_reply('ERR lane limit must be a number') end
touch_lane(p, group)
if ARGV[3] == '' then redis.call('HDEL', KEYS[1], group) else redis.call('HSET', KEYS[1], group, ARGV[3]) end
if limit and (tonumber(redis.call('HGET', KEYS[2], group)) or 0) >= limit then
  redis.call('LREM', KEYS[3], 0, group)
else
  offer(p, group)
end
return 1
