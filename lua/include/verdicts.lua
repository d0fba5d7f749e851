-- The verdicts of one settle: parsed and touched first, each then decided on its row, then written.

local function read_row(p, id)
  local f = redis.call('HMGET', p .. 'job:' .. id, 'attempts', 'held', 'settled', 'state', 'failures', 'group')
  return {attempts = f[1], held = f[2], settled = f[3], state = f[4], failures = f[5], group = f[6]}
end

local LENGTH = {c = 4, r = 7, d = 6}

-- The group that the worker was given at the claim frees the slot also where the row is gone.
local function read_verdicts(p)
  local verdicts, ids, marks, i = {}, {}, {}, 2
  while i <= #ARGV do
    local kind, id = ARGV[i], ARGV[i + 1]
    local v = {kind = kind, id = id, given = ARGV[i + 2], a = ARGV[i + 4], b = ARGV[i + 5], error = ARGV[i + 6]}
    v.row = read_row(p, id)
    v.lane = v.row.group or (ARGV[i + 3] ~= '' and ARGV[i + 3]) or nil
    verdicts[#verdicts + 1], ids[#ids + 1] = v, id
    local key = p .. 'job:' .. id
    marks[#marks + 1], marks[#marks + 2] = key .. ':logs', key .. ':lock'
    i = i + LENGTH[kind]
  end
  return verdicts, ids, marks
end

-- The answer, and whether it ends the claim (takes the id out of every set). A row that is gone is cleaned from active all
-- the same. A dead row takes only complete: a late retry counts its failure, nothing else moves.
local function decide(v)
  local row, token = v.row, token_of(v.given)
  if not row.attempts then return 'gone', true end
  local before = settled_answer(row.settled, token)
  if before and row.attempts == token then return before, false end
  if is_stale(row.attempts, row.held, v.given) then return 'stale', false end
  if v.kind == 'c' then return 'done', true end
  if v.kind == 'd' then
    if row.state == 'dead' then return 'dead', false end
    return 'delayed', true
  end
  v.failures = (tonumber(row.failures) or 0) + 1
  if row.state == 'dead' then
    v.late = true
    return 'dead', true
  end
  return v.failures >= tonumber(v.b) and 'dead' or 'scheduled', true
end

-- The row's side of an ending; what the sets get is collected in `done`.
local function write_verdict(p, v, answer, now, done)
  local key, token = p .. 'job:' .. v.id, token_of(v.given)
  if answer == 'gone' then return end
  if answer == 'done' then
    done.completed = done.completed + 1
    for _, name in ipairs({key, key .. ':logs', key .. ':lock'}) do done.erased[#done.erased + 1] = name end
    done.erased_ids[v.id] = true
    if v.row.state == 'dead' then table.insert(done.risen, v.id) end
    return
  end
  redis.call('HDEL', key, 'held', 'crashes')
  redis.call('DEL', key .. ':lock')
  if answer == 'delayed' then
    redis.call('HSET', key, 'state', 'scheduled', 'settled', token .. ':delayed')
    table.insert(done.due, {v.a == 'in' and now + tonumber(v.b) or tonumber(v.b), v.id})
  elseif v.late then
    redis.call('HSET', key, 'failures', v.failures, 'settled', token .. ':dead')
  elseif answer == 'dead' then
    redis.call('HSET', key, 'state', 'dead', 'failures', v.failures, 'last_error', v.error, 'settled', token .. ':dead')
    done.failed = done.failed + 1
    table.insert(done.buried, v.id)
  else
    redis.call('HSET', key, 'state', 'scheduled', 'failures', v.failures, 'last_error', v.error, 'settled',
      token .. ':scheduled')
    table.insert(done.due, {now + tonumber(v.a), v.id})
  end
end

-- Schedule and dead: whoever ended leaves the schedule, unless its own verdict put it there.
local function write_sets(p, done)
  if #done.ended > 0 and redis.call('ZCARD', p .. 'schedule') > 0 then
    in_chunks(done.ended, function(...) redis.call('ZREM', p .. 'schedule', ...) end)
  end
  for _, due in ipairs(done.due) do redis.call('ZADD', p .. 'schedule', due[1], due[2]) end
  for _, id in ipairs(done.buried) do redis.call('ZADD', p .. 'dead', 0, id) end
  for _, id in ipairs(done.risen) do redis.call('ZREM', p .. 'dead', id) end
end
