-- repeat_fire: claims due occurrences, enqueues them and advances their score, so that each fires once per period for the
-- whole fleet and no crash falls in between (ours; seed "Recurrence", decisions P1 and P2).
-- The clock is the caller's host clock, as the seed has it: next run = now + period, or with `fixed_rate` on the record
-- due + period, whole missed periods skipped. An id that has a row already fires nothing and stays due: the next try mints
-- another one. A record that cannot run (no period, no template) is dropped from the registry like one that is absent.
-- KEYS[1] emq:{q}:repeat
-- KEYS[2] emq:{q}:pending
-- ARGV[1] emq:{q}:
-- ARGV[2] now_ms  of the host
-- ARGV[3...] name, job id  pairs
-- returns per pair: fired | not_due | absent | duplicate, then the lowest next run in ms or '' | EMQKIND
-- include: firing
local p, now = ARGV[1], tonumber(ARGV[2])
if not now then return redis.error_reply('ERR repeat now must be a number of milliseconds') end
local scores, taken = look_at_due(p, 2)
if not scores then return redis.error_reply(taken) end
local records = {}
for i = 3, #ARGV, 2 do
  records[i] = redis.call('HMGET', p .. 'repeat:' .. ARGV[i], 'every_ms', 'template', 'fixed_rate')
end

local answers, fired = {}, 0
for i = 3, #ARGV, 2 do
  local name, id, record, answer = ARGV[i], ARGV[i + 1], records[i], nil
  local every, score = tonumber(record[1]) or 0, scores[name]
  -- As it is written: no comparison holds for a period that is no number.
  if not (every >= 1) or not record[2] then
    redis.call('ZREM', KEYS[1], name)
    answer = 'absent'
  elseif not score or score > now then
    answer = 'not_due'
  elseif taken[id] then
    answer = 'duplicate'
  else
    local next_at = now + every
    if record[3] then next_at = score + every * (math.floor((now - score) / every) + 1) end
    fire(p, name, id, record[2], next_at)
    scores[name], taken[id], fired, answer = next_at, true, fired + 1, 'fired'
  end
  answers[#answers + 1] = answer
end
return conclude(p, answers, fired)
