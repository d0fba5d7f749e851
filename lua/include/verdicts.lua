-- The verdicts of one settle: parsed and read first, each then decided on its row, then its row is written.
-- A row is the reply of its HMGET; a verdict is the position in ARGV where it begins.
local ATTEMPTS, HELD, SETTLED, GROUP, DEDUP, PARENT = 1, 2, 3, 4, 5, 6
local STATE, FAILURES, CANCEL = 7, 8, 9
local LENGTH = {c = 4, v = 5, r = 7, d = 6}

-- What a completion asks for, to which the state matters behind another verdict only; and all that any verdict does.
local function read_row(key, kind)
  if kind ~= 'c' and kind ~= 'v' then
    return redis.call('HMGET', key, 'attempts', 'held', 'settled', 'group', 'dedup', 'parent', 'state', 'failures', 'cancel')
  end
  local row = redis.call('HMGET', key, 'attempts', 'held', 'settled', 'group', 'dedup', 'parent')
  if row[SETTLED] then row[STATE] = redis.call('HGET', key, 'state') end
  return row
end

local function number(text)
  local value = tonumber(text)
  return value == value and value or nil
end

-- Positions of the verdicts, or nil where ARGV is not well-formed: then nothing is written.
local function parse()
  local at, n, argv, i = {}, 0, ARGV, 2
  local last, lengths = #argv, LENGTH
  while i <= last do
    local kind = argv[i]
    local length = lengths[kind]
    if not length or i + length - 1 > last then return nil end
    if kind == 'r' and not (number(argv[i + 4]) and number(argv[i + 5])) then return nil end
    if kind == 'd' and not number(argv[i + 5]) then return nil end
    n = n + 1
    at[n] = i
    i = i + length
  end
  return at
end

-- The answer, and whether it ends the claim (takes the id out of every set). A row that is gone is cleaned from active all
-- the same. A dead row takes only complete: a late retry counts its failure, nothing else moves. A job that was cancelled
-- is dead instead of retried or delayed.
local function decide(row, i)
  local kind, held = ARGV[i], ARGV[i + 2]
  if not row[ATTEMPTS] then return 'gone', true end
  local token = token_once(held)
  if is_stale(row[ATTEMPTS], row[HELD], held, token) then return 'stale', false end
  local before, dead = settled_answer(row[SETTLED], token), row[STATE] == 'dead'
  if kind == 'c' or kind == 'v' then
    if before and not (dead and before == 'dead') then return 'stale', false end
    return 'done', true
  elseif kind == 'd' then
    if before == 'delayed' then return before, false end
    if before == 'dead' and row[CANCEL] then return before, false end
    if before or dead then return 'stale', false end
    return row[CANCEL] and 'dead' or 'delayed', true
  end
  if before then return before == 'delayed' and 'stale' or before, false end
  if dead or row[CANCEL] or (tonumber(row[FAILURES]) or 0) + 1 >= tonumber(ARGV[i + 5]) then return 'dead', true end
  return 'scheduled', true
end

-- Why the job of a verdict is dead.
local function reason_of(row, i)
  return row[CANCEL] and 'cancelled: ' .. row[CANCEL] or ARGV[i + 6]
end

-- The row's side of an ending that keeps the row. What the sets get is collected in `done`: due jobs as score and id, dead
-- ones as id.
local function write_row(done, key, row, i, answer, now)
  local id, settled = ARGV[i + 1], token_of(ARGV[i + 2]) .. ':' .. answer
  local value, failures = ARGV[i + 4], (tonumber(row[FAILURES]) or 0) + 1
  redis.call('HDEL', key, 'held', 'crashes')
  done.erased[#done.erased + 1] = key .. ':lock'
  if answer == 'delayed' then
    redis.call('HSET', key, 'state', 'scheduled', 'settled', settled)
    local base = value == 'in' and now or 0
    table.insert(done.due, base + tonumber(ARGV[i + 5]))
    table.insert(done.due, id)
  elseif answer == 'scheduled' then
    redis.call('HSET', key, 'state', 'scheduled', 'failures', failures, 'last_error', ARGV[i + 6], 'settled', settled)
    table.insert(done.due, now + tonumber(value))
    table.insert(done.due, id)
  else
    -- A late retry: the reason of the death stays, and it was counted then.
    if row[STATE] == 'dead' then
      redis.call('HSET', key, 'failures', failures, 'settled', settled)
    else
      if ARGV[i] == 'd' then failures = failures - 1 end
      redis.call('HSET', key, 'state', 'dead', 'failures', failures, 'last_error', reason_of(row, i), 'settled', settled)
      done.failed = done.failed + 1
    end
    table.insert(done.dead, 0)
    table.insert(done.dead, id)
  end
end
