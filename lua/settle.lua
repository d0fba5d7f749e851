-- settle: many verdicts in one round trip, with an answer each; once only however often it is sent (ours).
-- The effects are those of complete, retry and delay. A verdict whose claim is not the row's answers stale and writes nothing.
-- KEYS[1] emq:{q}:active
-- KEYS[2] emq:{q}:pending
-- KEYS[3] emq:{q}:schedule
-- KEYS[4] emq:{q}:dead
-- ARGV[1] emq:{q}:
-- ARGV[2...] verdicts  each `c` id held group | `r` id held group delay_ms max_attempts error | `d` id held group in|at value_ms
-- returns an answer per verdict, in order: done | gone | stale | scheduled | dead | delayed
-- include: now
-- include: chunks
-- include: lane
-- include: held
-- include: verdicts
local p = ARGV[1]
local now = now_ms()
local verdicts, ids, marks = read_verdicts(p)
local leases = {}
for i = 1, #ids, CHUNK do
  for _, score in ipairs(redis.call('ZMSCORE', KEYS[1], unpack(ids, i, math.min(i + CHUNK - 1, #ids)))) do
    leases[#leases + 1] = score
  end
end
in_chunks(marks, function(...) redis.call('EXISTS', ...) end)
redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4], p .. 'metrics:completed', p .. 'metrics:failed', p .. 'ready', p .. 'wake')
local ceiling = tonumber(redis.call('HGET', p .. 'meta', 'concurrency'))
local touched = {}
for _, v in ipairs(verdicts) do
  if v.lane and not touched[v.lane] then
    touch_lane(p, v.lane)
    touched[v.lane] = true
  end
end

local answers, changed = {}, {}
local done = {completed = 0, failed = 0, ended = {}, erased = {}, erased_ids = {}, freed = {}, left = {}, due = {}, buried = {},
  risen = {}}
for i, v in ipairs(verdicts) do
  -- The same id twice in one call: the second is decided on what the first left behind.
  if changed[v.id] then
    v.row = done.erased_ids[v.id] and {} or read_row(p, v.id)
    leases[i] = false
  end
  local answer, ends = decide(v)
  answers[i] = answer
  if ends then
    changed[v.id] = true
    done.ended[#done.ended + 1] = v.id
    if v.lane then
      done.left[#done.left + 1] = v
      if leases[i] then done.freed[v.lane] = (done.freed[v.lane] or 0) + 1 end
    end
    write_verdict(p, v, answer, now, done)
  end
end

if #done.ended > 0 then
  in_chunks(done.ended, function(...) redis.call('ZREM', KEYS[1], ...) end)
  in_chunks(done.ended, function(...) redis.call('ZREM', KEYS[2], ...) end)
end
in_chunks(done.erased, function(...) redis.call('UNLINK', ...) end)
write_sets(p, done)
for _, v in ipairs(done.left) do leave_lane(p, v.lane, v.id) end
for lane, count in pairs(done.freed) do free_slot(p, lane, count) end
for lane in pairs(done.freed) do offer(p, lane) end
if done.completed > 0 then redis.call('HINCRBY', p .. 'metrics:completed', 'count', done.completed) end
if done.failed > 0 then redis.call('HINCRBY', p .. 'metrics:failed', 'count', done.failed) end
-- A consumer that parked below a full ceiling waits for this token, whichever kind of job is next.
if ceiling and #done.ended > 0 and (redis.call('ZCARD', KEYS[2]) > 0 or redis.call('EXISTS', p .. 'ring') == 1) then
  wake_flat(p, #done.ended)
end
return answers
