-- repeat_advance: sets a name's next run. A name without a record (cancelled meanwhile) is dropped from the registry, and so
-- is one that runs by a calendar, whose place is not there.
-- KEYS[1] emq:{q}:repeat
-- KEYS[2] emq:{q}:repeat:<name>  the record
-- ARGV[1] name
-- ARGV[2] next_at  ms on the host's clock
-- returns 1 advanced | 0 absent
local next_at = tonumber(ARGV[2])
if not next_at then return redis.error_reply('ERR repeat next_at must be a number of milliseconds') end
redis.call('ZSCORE', KEYS[1], ARGV[1])
if redis.call('EXISTS', KEYS[2]) == 0 or redis.call('HEXISTS', KEYS[2], 'cron') == 1 then
  redis.call('ZREM', KEYS[1], ARGV[1])
  return 0
end
redis.call('ZADD', KEYS[1], next_at, ARGV[1])
return 1
