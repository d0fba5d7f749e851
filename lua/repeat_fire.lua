-- repeat_fire: claims due occurrences, enqueues them and advances their score, so that each fires once per period for the
-- whole fleet and no crash falls in between (ours; seed "Recurrence", decisions P1 and P2).
-- The clock is the caller's host clock, as the seed has it: next run = now + period, or with `fixed_rate` on the record
-- due + period, whole missed periods skipped.
-- KEYS[1] emq:{q}:repeat
-- KEYS[2] emq:{q}:pending
-- ARGV[1] emq:{q}:
-- ARGV[2] now_ms  of the host
-- ARGV[3...] name, job id  pairs
-- returns per pair: fired | not_due | absent | duplicate, then the lowest next run in ms or ''
-- include: lane
local p, now = ARGV[1], tonumber(ARGV[2])
local due, answers, fired = {}, {}, 0
for i = 3, #ARGV, 2 do
  local name, row = ARGV[i], p .. 'job:' .. ARGV[i + 1]
  local record = redis.call('HMGET', p .. 'repeat:' .. name, 'every_ms', 'template', 'fixed_rate')
  due[i] = {name = name, id = ARGV[i + 1], row = row, every = tonumber(record[1]), template = record[2], fixed = record[3],
    taken = redis.call('EXISTS', row) == 1, score = tonumber(redis.call('ZSCORE', KEYS[1], name))}
end
redis.call('EXISTS', KEYS[2], p .. 'ready')

for i = 3, #ARGV, 2 do
  local one, answer = due[i], 'fired'
  local score = tonumber(redis.call('ZSCORE', KEYS[1], one.name))
  if not one.every then
    redis.call('ZREM', KEYS[1], one.name)
    answer = 'absent'
  elseif not score or score > now then
    answer = 'not_due'
  else
    local next_at = now + one.every
    if one.fixed then next_at = score + one.every * (math.floor((now - score) / one.every) + 1) end
    redis.call('ZADD', KEYS[1], 'XX', next_at, one.name)
    if one.taken then
      answer = 'duplicate'
    else
      redis.call('HSET', one.row, 'state', 'pending', 'attempts', '0', 'payload', one.template)
      redis.call('ZADD', KEYS[2], 0, one.id)
      fired = fired + 1
    end
  end
  answers[#answers + 1] = answer
end
wake_flat(p, fired)
answers[#answers + 1] = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2] or ''
return answers
