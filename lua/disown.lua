-- disown: the process must go while a plain function still runs in a thread: its job keeps its lease and is found by
-- recovery, but leaving is no crash (ours). Only `held` is cleared, so a receipt does not take it up again either.
-- KEYS[1] emq:{q}:active
-- ARGV[1] emq:{q}:
-- ARGV[2...] id, held  pairs
-- returns per pair: ok | gone | stale | not_active
-- include: chunks
-- include: held
-- include: holding
local answers = {}
for i, one in ipairs(read_pairs(ARGV[1], KEYS[1], 2)) do
  if not one.reason then redis.call('HDEL', ARGV[1] .. 'job:' .. one.id, 'held') end
  answers[i] = one.reason or 'ok'
end
return answers
