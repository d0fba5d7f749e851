-- repeat_register: writes a registration under a name; a live name is left alone unless `update` asks.
-- An update replaces period, template and grid; the next run moves to first_at only when the period changes. What ran by a
-- calendar (`cron` beside `repeat`) runs by its period from then on.
-- KEYS[1] emq:{q}:repeat
-- KEYS[2] emq:{q}:repeat:<name>  the record
-- ARGV[1] name
-- ARGV[2] every_ms
-- ARGV[3] template  payload of each occurrence
-- ARGV[4] first_at  ms on the host's clock
-- ARGV[5...] flags  `fixed`: runs keep the grid, due + every | `update`: replace a live name (ours)
-- returns 1 registered | 0 exists, nothing written | 2 updated
local fixed, update = false, false
for i = 5, #ARGV do
  fixed = fixed or ARGV[i] == 'fixed'
  update = update or ARGV[i] == 'update'
end
local first_at = tonumber(ARGV[4])
if not first_at then return redis.error_reply('ERR repeat first_at must be a number of milliseconds') end
local exists = redis.call('EXISTS', KEYS[2]) == 1
local record = redis.call('HMGET', KEYS[2], 'every_ms', 'template', 'fixed_rate')
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
local calendars = string.gsub(KEYS[1], 'repeat$', 'cron')
local calendar = redis.call('ZSCORE', calendars, ARGV[1])
local moved = record[1] ~= ARGV[2]
local same = not moved and record[2] == ARGV[3] and (record[3] and true or false) == fixed
if exists and (same or not update) then return 0 end

if calendar then redis.call('ZREM', calendars, ARGV[1]) end
if exists then redis.call('HDEL', KEYS[2], 'cron', 'tz') end
redis.call('HSET', KEYS[2], 'every_ms', ARGV[2], 'template', ARGV[3])
if fixed then redis.call('HSET', KEYS[2], 'fixed_rate', '1') elseif exists then redis.call('HDEL', KEYS[2], 'fixed_rate') end
if not exists or moved or not score then redis.call('ZADD', KEYS[1], first_at, ARGV[1]) end
return exists and 2 or 1
