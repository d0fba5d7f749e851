-- cron_fire: claims due occurrences of calendars, enqueues them and moves them on to the run that the host has computed, so
-- that each fires once for the whole fleet and no crash falls in between (ours).
-- A name whose next run is not `due` any more was fired, or moved, by somebody else. One whose record says another calendar
-- than the host computed with stays due, for the next tick. An id that has a row already fires nothing and stays due. A record
-- that says a period, too, was registered anew by a client that knows periods only, and runs by that.
-- KEYS[1] emq:{q}:cron
-- KEYS[2] emq:{q}:pending
-- ARGV[1] emq:{q}:
-- ARGV[2] now_ms  of the host
-- ARGV[3...] name, job id, due, next, cron, tz  for each: the run that fires and the one after it, ms on the host's clock
-- returns per name: fired | not_due | absent | changed | duplicate, then the lowest next run in ms or '' | EMQKIND
-- include: firing
local p, now = ARGV[1], tonumber(ARGV[2])
if not now then return redis.error_reply('ERR repeat now must be a number of milliseconds') end
local scores, taken = look_at_due(p, 6)
if not scores then return redis.error_reply(taken) end
local records = {}
for i = 3, #ARGV, 6 do
  if not (tonumber(ARGV[i + 2]) and tonumber(ARGV[i + 3])) then
    return redis.error_reply('ERR repeat due and next must be numbers of milliseconds')
  end
  records[i] = redis.call('HMGET', p .. 'repeat:' .. ARGV[i], 'cron', 'tz', 'template', 'every_ms')
end

local answers, fired = {}, 0
for i = 3, #ARGV, 6 do
  local name, id, due, next_at = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local record, score, answer = records[i], scores[name], nil
  if record[4] or not (record[1] and record[3]) then
    redis.call('ZREM', KEYS[1], name)
    answer = 'absent'
  elseif score ~= due or due > now then
    answer = 'not_due'
  elseif record[1] ~= ARGV[i + 4] or record[2] ~= ARGV[i + 5] or next_at <= due then
    answer = 'changed'
  elseif taken[id] then
    answer = 'duplicate'
  else
    fire(p, name, id, record[3], next_at)
    scores[name], taken[id], fired, answer = next_at, true, fired + 1, 'fired'
  end
  answers[#answers + 1] = answer
end
return conclude(p, answers, fired)
