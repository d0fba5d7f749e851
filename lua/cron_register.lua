-- cron_register: writes a registration that runs by a calendar; a live name is left alone unless `update` asks (ours).
-- It stands in a registry of its own, so that a Pump that knows periods only never sees it. The next run moves to first_at
-- when the calendar or the zone does.
-- KEYS[1] emq:{q}:cron
-- KEYS[2] emq:{q}:repeat:<name>  the record
-- KEYS[3] emq:{q}:repeat
-- ARGV[1] name
-- ARGV[2] cron  the expression
-- ARGV[3] tz  the time zone
-- ARGV[4] template  payload of each occurrence
-- ARGV[5] first_at  ms on the host's clock
-- ARGV[6...] flags  `update`: replace a live name
-- returns 1 registered | 0 exists, nothing written | 2 updated
local first_at = tonumber(ARGV[5])
if not first_at then return redis.error_reply('ERR repeat first_at must be a number of milliseconds') end
local exists = redis.call('EXISTS', KEYS[2]) == 1
local record = redis.call('HMGET', KEYS[2], 'cron', 'tz', 'template')
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
redis.call('ZSCORE', KEYS[3], ARGV[1])
local moved = record[1] ~= ARGV[2] or record[2] ~= ARGV[3]
local same = not moved and record[3] == ARGV[4]
if exists and (same or ARGV[6] ~= 'update') then return 0 end

redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('HDEL', KEYS[2], 'every_ms', 'fixed_rate')
redis.call('HSET', KEYS[2], 'cron', ARGV[2], 'tz', ARGV[3], 'template', ARGV[4])
if not exists or moved or not score then redis.call('ZADD', KEYS[1], first_at, ARGV[1]) end
return exists and 2 or 1
