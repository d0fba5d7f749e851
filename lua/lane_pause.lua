-- lane_pause: a lane is not served until it is resumed; its jobs stay where they are.
-- KEYS[1] emq:{q}:paused
-- KEYS[2] emq:{q}:ring
-- ARGV[1] group
-- returns 1
redis.call('SISMEMBER', KEYS[1], ARGV[1])
redis.call('LLEN', KEYS[2])
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('LREM', KEYS[2], 0, ARGV[1])
return 1
