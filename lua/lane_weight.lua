-- lane_weight: how many jobs of a lane are served in its turn, where others get one.
-- KEYS[1] emq:{q}:gweight
-- ARGV[1] group
-- ARGV[2] w  1 or more; 1 is what a lane has without
-- returns 1
if not tonumber(ARGV[2]) or tonumber(ARGV[2]) < 1 then return redis.error_reply('ERR lane weight must be 1 or more') end
redis.call('HGET', KEYS[1], ARGV[1])
if tonumber(ARGV[2]) == 1 then redis.call('HDEL', KEYS[1], ARGV[1]) else redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
return 1
