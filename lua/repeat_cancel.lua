-- repeat_cancel: removes a registration, its record and its place in the registry.
-- KEYS[1] emq:{q}:repeat
-- KEYS[2] emq:{q}:repeat:<name>  the record
-- ARGV[1] name
-- returns 1 cancelled | 0 there was none
local score, exists = redis.call('ZSCORE', KEYS[1], ARGV[1]), redis.call('EXISTS', KEYS[2]) == 1
if not score and not exists then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
return 1
