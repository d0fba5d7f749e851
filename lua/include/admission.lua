-- Admission of jobs of any kind, in two passes: `read_jobs` looks and touches, `admit` writes. A job is eight arguments: id,
-- payload, group, mode, value, dedup key, dedup_ttl_ms, expires.
-- include: now
-- include: due
-- include: chunks
-- include: lanes

-- The jobs from the argument `from` on, or nil and what is wrong.
local function read_jobs(p, from)
  local jobs, seen, touched = {}, {}, {}
  for i = from, #ARGV, 8 do
    local job = {id = ARGV[i], payload = ARGV[i + 1], group = ARGV[i + 2], key = p .. 'job:' .. ARGV[i], state = 'pending'}
    job.verdict = 1
    if redis.call('EXISTS', job.key) == 1 or seen[job.id] then job.verdict = 0 end
    if string.sub(job.id, 1, 3) ~= 'JOB' then job.verdict = -1 end
    seen[job.id] = true
    if ARGV[i + 5] ~= '' then
      job.dedup, job.parked = ARGV[i + 5], p .. 'de:' .. ARGV[i + 5]
      job.ttl = ARGV[i + 6] ~= '' and tonumber(ARGV[i + 6]) or nil
      local first = redis.call('GET', job.parked)
      if first then redis.call('EXISTS', p .. 'job:' .. first) end
    end
    if ARGV[i + 7] ~= '' then
      local mode, ms = string.match(ARGV[i + 7], '^(%a+):(%-?%d+)$')
      job.expires = mode and due_at(mode, ms)
      if not job.expires then return nil, 'ERR admit expires must be in:ms or at:ms' end
    end
    if ARGV[i + 3] ~= '' then
      job.state, job.score = 'scheduled', due_at(ARGV[i + 3], ARGV[i + 4])
      if not job.score then return nil, 'ERR admit value must be a number of milliseconds' end
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
  return jobs
end

-- A verdict per job. `trace` goes into each row where it is given.
local function admit(p, jobs, trace)
  local verdicts, flat, due, lanes = {}, {}, {}, {}
  for i, job in ipairs(jobs) do
    -- An id whose row is gone (completed by somebody who knows no dedup key) does not block: the next takes the key over.
    local first = job.verdict == 1 and job.parked and redis.call('GET', job.parked)
    if first and first ~= job.id and redis.call('EXISTS', p .. 'job:' .. first) == 1 then job.verdict = first end
    verdicts[i] = job.verdict
    if job.verdict == 1 then
      redis.call('HSET', job.key, 'state', job.state, 'attempts', '0', 'payload', job.payload)
      if job.group ~= '' then redis.call('HSET', job.key, 'group', job.group) end
      if job.expires then redis.call('HSET', job.key, 'expires_at', string.format('%.0f', job.expires)) end
      if trace then redis.call('HSET', job.key, 'trace', trace) end
      if job.parked then
        redis.call('HSET', job.key, 'dedup', job.dedup)
        redis.call('SET', job.parked, job.id, unpack(job.ttl and {'PX', job.ttl} or {}))
      end
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
  offer_all(p, lanes)
  return verdicts
end
