-- repeat_cancel: removes a registration, its record and its place in the registry, or among the calendars beside it.
-- KEYS[1] emq:{q}:repeat
-- KEYS[2] emq:{q}:repeat:<name>  the record
-- ARGV[1] name
-- returns 1 cancelled | 0 there was none
local score, exists = redis.call('ZSCORE', KEYS[1], ARGV[1]), redis.call('EXISTS', KEYS[2]) == 1
local calendars = string.gsub(KEYS[1], 'repeat$', 'cron')
local calendar = redis.call('ZSCORE', calendars, ARGV[1])
if not score and not exists and not calendar then return 0 end
if calendar then redis.call('ZREM', calendars, ARGV[1]) end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
return 1
