-- disown: the process must go while a plain function still runs in a thread: its job keeps its lease and is found by
-- recovery, but leaving is no crash (ours). Only `held` is cleared, so a receipt does not take it up again either.
-- KEYS[1] emq:{q}:active
-- ARGV[1] emq:{q}:
-- ARGV[2...] id, held  pairs
-- returns per pair: ok | gone | stale | not_active
-- include: held
local p = ARGV[1]
local rows, answers = {}, {}
for i = 2, #ARGV, 2 do rows[i] = redis.call('HMGET', p .. 'job:' .. ARGV[i], 'attempts', 'held') end
for i = 2, #ARGV, 2 do
  local row, answer = rows[i], 'ok'
  if not row[1] then
    answer = 'gone'
  elseif is_stale(row[1], row[2], ARGV[i + 1]) then
    answer = 'stale'
  elseif not redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    answer = 'not_active'
  else
    redis.call('HDEL', p .. 'job:' .. ARGV[i], 'held')
  end
  answers[#answers + 1] = answer
end
return answers
