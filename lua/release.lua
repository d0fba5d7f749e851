-- release: jobs that were never started, or whose handler has ended, go straight back to pending or their lane (ours).
-- Attempts, failures, stalled and crashes stay as they are; `held` is cleared. Moves only an active member that is still the
-- caller's; a verdict that had arrived stands, and a dead row takes no release.
-- KEYS[1] emq:{q}:active
-- KEYS[2] emq:{q}:pending
-- ARGV[1] emq:{q}:
-- ARGV[2...] id, held  pairs
-- returns per pair: ok | gone | stale | not_active
-- include: chunks
-- include: lanes
-- include: held
-- include: holding
local p = ARGV[1]
local found, groups, locks = read_pairs(p, KEYS[1], 2, 'settled', 'state', 'group'), {}, {}
for i, one in ipairs(found) do
  if one.row[5] then groups[one.row[5]] = true end
  locks[i] = p .. 'job:' .. one.id .. ':lock'
end
touch_lanes(p, groups)
redis.call('ZCARD', KEYS[2])
redis.call('LLEN', p .. 'ready')
in_chunks(locks, function(...) redis.call('EXISTS', ...) end)
local scheduled = redis.call('ZCARD', p .. 'schedule')

local answers, moved, freed, flat = {}, {}, {}, 0
for i, one in ipairs(found) do
  local row, answer = one.row, one.reason or 'ok'
  if answer ~= 'gone' and settled_answer(row[3], token_of(one.held)) then answer = 'stale' end
  if answer == 'ok' and (row[4] == 'dead' or moved[one.id]) then answer = 'not_active' end
  if answer == 'ok' then
    local key, group = p .. 'job:' .. one.id, row[5]
    moved[one.id] = true
    redis.call('ZREM', KEYS[1], one.id)
    if scheduled > 0 then redis.call('ZREM', p .. 'schedule', one.id) end
    redis.call('HSET', key, 'state', 'pending')
    redis.call('HDEL', key, 'held')
    redis.call('DEL', locks[i])
    if group then
      redis.call('ZADD', lane_key(p, group), 0, one.id)
      freed[group] = (freed[group] or 0) + 1
    else
      redis.call('ZADD', KEYS[2], 0, one.id)
      flat = flat + 1
    end
  end
  answers[i] = answer
end
for group, count in pairs(freed) do
  free_slot(p, group, count)
  offer(p, group)
end
wake_flat(p, flat)
return answers
