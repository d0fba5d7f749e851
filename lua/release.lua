-- release: jobs that were never started, or whose handler has ended, go straight back to pending or their lane (ours).
-- Attempts, failures, stalled and crashes stay as they are; `held` is cleared. Moves only an active member that is still the
-- caller's; a verdict that had arrived stands.
-- KEYS[1] emq:{q}:active
-- KEYS[2] emq:{q}:pending
-- ARGV[1] emq:{q}:
-- ARGV[2...] id, held  pairs
-- returns per pair: ok | gone | stale | not_active
-- include: lane
-- include: held
local p = ARGV[1]
local rows, groups = {}, {}
for i = 2, #ARGV, 2 do
  local f = redis.call('HMGET', p .. 'job:' .. ARGV[i], 'attempts', 'held', 'settled', 'state', 'group')
  redis.call('EXISTS', p .. 'job:' .. ARGV[i] .. ':lock')
  rows[i] = f
  if f[5] and not groups[f[5]] then
    touch_lane(p, f[5])
    groups[f[5]] = true
  end
end
redis.call('EXISTS', KEYS[1], KEYS[2], p .. 'ready')

local answers, freed, flat = {}, {}, 0
for i = 2, #ARGV, 2 do
  local id, token, row = ARGV[i], token_of(ARGV[i + 1]), rows[i]
  local answer = 'ok'
  if not row[1] then
    answer = 'gone'
  elseif is_stale(row[1], row[2], ARGV[i + 1]) or settled_answer(row[3], token) then
    answer = 'stale'
  elseif row[4] == 'dead' or redis.call('ZREM', KEYS[1], id) == 0 then
    answer = 'not_active'
  else
    local key = p .. 'job:' .. id
    redis.call('HSET', key, 'state', 'pending')
    redis.call('HDEL', key, 'held')
    redis.call('DEL', key .. ':lock')
    if row[5] then
      redis.call('ZADD', lane_key(p, row[5]), 0, id)
      freed[row[5]] = (freed[row[5]] or 0) + 1
    else
      redis.call('ZADD', KEYS[2], 0, id)
      flat = flat + 1
    end
  end
  answers[#answers + 1] = answer
end
for group, count in pairs(freed) do
  free_slot(p, group, count)
  offer(p, group)
end
wake_flat(p, flat)
return answers
