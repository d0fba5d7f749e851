-- retry: the handler failed; the job is scheduled again, or dead once its failures reach max_attempts or it was cancelled.
-- Sent again with the same token it gives the recorded answer and writes nothing. On a dead row (a late retry) it counts
-- the failure, keeps the reason of the death and answers dead.
-- KEYS[1] emq:{q}:active
-- KEYS[2] emq:{q}:schedule
-- KEYS[3] emq:{q}:dead
-- KEYS[4] emq:{q}:job:<id>  the row
-- KEYS[5...] the parent's failed, unsuccessful, dependencies and row, or emq:{q}:flow:outbox  as a foreign caller declares them
-- ARGV[1] id
-- ARGV[2] token  attempts, as a string; `token:random` also fences by the row's `held`
-- ARGV[3] delay_ms  from now, on the server's clock
-- ARGV[4] max_attempts  dead when failures, this one included, reach it
-- ARGV[5] error  becomes last_error
-- ARGV[6] emq:{q}:
-- ARGV[7...] `sq:fp`, `sq:id`, `xq:fp` or `xq:id` and the parent  optional: what the row says of its parent comes
--   first
-- returns scheduled | dead | EMQSTALE
-- include: now
-- include: due
-- include: lane
-- include: held
-- include: ending
-- include: flow
local id, token, max_attempts, p = ARGV[1], token_of(ARGV[2]), tonumber(ARGV[4]), ARGV[6]
local row = redis.call('HMGET', KEYS[4], 'attempts', 'held', 'settled', 'state', 'group', 'failures', 'cancel')
local attempts, state, group = row[1], row[4], row[5]
if not attempts then return redis.error_reply('EMQSTALE job gone') end
if is_stale(attempts, row[2], ARGV[2]) then return redis.error_reply('EMQSTALE retry token mismatch') end
local answer = settled_answer(row[3], token)
if answer == 'scheduled' or answer == 'dead' then return answer end
if answer then return redis.error_reply('EMQSTALE retry token mismatch') end
local score = due_at('in', ARGV[3])
if not score or not max_attempts then return redis.error_reply('ERR retry takes numbers: delay_ms, max_attempts') end
local ceiling = touch_ending(p, id, group)
local where, policy = string.match(ARGV[7] or '', '^(%a+):(%a+)$')
local elsewhere = where == 'xq'
local child = told_by_caller(read_child(p, id), elsewhere and ARGV[9] or ARGV[8], elsewhere and ARGV[8], policy)
touch_ended(p, child)
redis.call('HGET', p .. 'metrics:failed', 'count')

local failures = (tonumber(row[6]) or 0) + 1
local late = state == 'dead'
local reason = row[7] and 'cancelled: ' .. row[7] or ARGV[5]
answer = (late or row[7] or failures >= max_attempts) and 'dead' or 'scheduled'
end_claim(p, id, group, ceiling)
redis.call('HDEL', KEYS[4], 'held', 'crashes')
redis.call('HSET', KEYS[4], 'state', answer, 'failures', failures, 'settled', token .. ':' .. answer)
if not late then redis.call('HSET', KEYS[4], 'last_error', reason) end
if answer == 'dead' then
  redis.call('ZADD', KEYS[3], 0, id)
  if not late then
    redis.call('HINCRBY', p .. 'metrics:failed', 'count', 1)
    died(p, child, reason)
  end
else
  redis.call('ZADD', KEYS[2], score, id)
end
return answer
