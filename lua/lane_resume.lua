-- lane_resume: a paused lane is served again, on the ring as soon as it can be.
-- KEYS[1] emq:{q}:paused
-- KEYS[2] emq:{q}:ring
-- KEYS[3] emq:{q}:glimit
-- KEYS[4] emq:{q}:gactive
-- KEYS[5] emq:{q}:wake
-- ARGV[1] emq:{q}:
-- ARGV[2] group
-- returns 1
-- include: lane
touch_lane(ARGV[1], ARGV[2])
redis.call('SREM', KEYS[1], ARGV[2])
offer(ARGV[1], ARGV[2])
return 1
