-- admit_many: admits many jobs of any kind in one round trip, with a verdict each: flat, to a lane, scheduled (ours).
-- The effects are those of enqueue, lane_enqueue and schedule; a scheduled job with a group is promoted to its lane. An
-- id that comes twice in one call is admitted once.
-- KEYS[1] emq:{q}:pending
-- KEYS[2] emq:{q}:schedule
-- ARGV[1] emq:{q}:
-- ARGV[2...] id, payload, group, mode, value  for each job; group or ''; mode '' = now, `in` or `at` with value in ms
-- returns a verdict per job, in order: 1 admitted | 0 duplicate | -1 the id is not JOB-namespaced
-- include: now
-- include: due
-- include: chunks
-- include: lane
local p = ARGV[1]
local jobs, seen, touched, lanes = {}, {}, {}, {}
for i = 2, #ARGV, 5 do
  local job = {id = ARGV[i], payload = ARGV[i + 1], group = ARGV[i + 2], key = p .. 'job:' .. ARGV[i], state = 'pending'}
  job.verdict = 1
  if redis.call('EXISTS', job.key) == 1 or seen[job.id] then job.verdict = 0 end
  if string.sub(job.id, 1, 3) ~= 'JOB' then job.verdict = -1 end
  seen[job.id] = true
  if ARGV[i + 3] ~= '' then
    job.state, job.score = 'scheduled', due_at(ARGV[i + 3], ARGV[i + 4])
    if not job.score then return redis.error_reply('ERR admit value must be a number of milliseconds') end
  end
  if job.group ~= '' and not touched[job.group] then
    touch_lane(p, job.group)
    touched[job.group] = true
  end
  jobs[#jobs + 1] = job
end
redis.call('ZCARD', KEYS[1])
redis.call('ZCARD', KEYS[2])
redis.call('LLEN', p .. 'ready')

local verdicts, flat, due = {}, {}, {}
for i, job in ipairs(jobs) do
  verdicts[i] = job.verdict
  if job.verdict == 1 then
    redis.call('HSET', job.key, 'state', job.state, 'attempts', '0', 'payload', job.payload)
    if job.group ~= '' then redis.call('HSET', job.key, 'group', job.group) end
    if job.score then
      due[#due + 1], due[#due + 2] = job.score, job.id
    elseif job.group == '' then
      flat[#flat + 1], flat[#flat + 2] = 0, job.id
    else
      redis.call('ZADD', lane_key(p, job.group), 0, job.id)
      lanes[#lanes + 1] = job.group
    end
  end
end
in_chunks(due, function(...) redis.call('ZADD', KEYS[2], ...) end)
in_chunks(flat, function(...) redis.call('ZADD', KEYS[1], ...) end)
wake_flat(p, #flat / 2)
for _, group in ipairs(lanes) do offer(p, group) end
return verdicts
