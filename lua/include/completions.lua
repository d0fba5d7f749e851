-- What settle needs for the calls that are as most are, and for all others: nothing of it is made for a single kind of verdict.
-- include: chunks
-- include: held
-- include: waking

-- Jobs of one claim mostly have the same `held`.
local tokens = {}
local function token_once(held)
  local token = tokens[held]
  if not token then
    token = token_of(held)
    tokens[held] = token
  end
  return token
end

-- The row keys and ids of a call that is as most are: completions of jobs that are in hand by the claim that is told, once
-- each, of no lane, and nobody waits for them. nil for every other call. With them what may stand beside the rows: logs,
-- children that were counted, and a lock, where one was `kept` or the claim is not the row's first.
local function read_plain(prefix, kept)
  local keys, ids, beside, n, m, seen, argv, call = {}, {}, {}, 0, 0, {}, ARGV, redis.call
  local last, held, token = #argv, nil, nil
  if last % 4 ~= 1 then return nil end
  for i = 2, last, 4 do
    local id = argv[i + 1]
    if argv[i + 2] ~= held then
      held = argv[i + 2]
      token = token_once(held)
    end
    if argv[i] ~= 'c' or argv[i + 3] ~= '' or seen[id] then return nil end
    local key = prefix .. id
    local row = call('HMGET', key, 'attempts', 'held', 'settled', 'group', 'dedup', 'parent')
    if row[1] ~= token or row[2] ~= held or row[3] or row[4] or row[5] or row[6] then return nil end
    n = n + 1
    keys[n], ids[n], seen[id] = key, id, true
    beside[m + 1], beside[m + 2] = key .. ':logs', key .. ':dependencies'
    m = m + 2
    if kept or token ~= '1' then
      m = m + 1
      beside[m] = key .. ':lock'
    end
  end
  return keys, ids, beside
end

local function any_stands(keys)
  local found = 0
  in_chunks(keys, function(...) found = found + redis.call('EXISTS', ...) end)
  return found > 0
end

-- Of a job that is over, where something stands beside rows: the row, logs, lock and a flow parent's subkeys.
local function erase_littered(erased, key)
  for _, part in ipairs({'', ':logs', ':lock', ':dependencies', ':processed', ':failed', ':unsuccessful'}) do
    erased[#erased + 1] = key .. part
  end
end

-- Reads what every ending may write of the queue's. Answers the sizes of active, pending, schedule and dead, and the ceiling.
local function read_queue(p)
  local sizes = {}
  for i, key in ipairs(KEYS) do sizes[i] = redis.call('ZCARD', key) end
  redis.call('HGET', p .. 'metrics:completed', 'count')
  local ceiling = redis.call('HGET', p .. 'meta', 'concurrency')
  if ceiling then
    redis.call('LLEN', p .. 'ready')
    redis.call('LLEN', p .. 'ring')
  end
  return sizes, ceiling
end

-- The sets' side of many endings at once: an ended id is taken out of every set that has it (nothing is sent to an empty one),
-- then `keep` puts it into the one that its verdict names, or it is in none.
local function write_endings(p, done, sizes, ceiling, keep)
  if #done.ended == 0 then return end
  local freed = 0
  for i, key in ipairs(KEYS) do
    if sizes[i] > 0 then
      local removed = call_chunked('ZREM', key, done.ended)
      if i == 1 then freed = removed end
    end
  end
  in_chunks(done.erased, function(...) redis.call('UNLINK', ...) end)
  if keep then keep() end
  if done.completed > 0 then redis.call('HINCRBY', p .. 'metrics:completed', 'count', done.completed) end
  -- A consumer that parked below a full ceiling waits for this token, whichever kind of job is next.
  if ceiling and freed > 0 and (redis.call('ZCARD', KEYS[2]) > 0 or redis.call('EXISTS', p .. 'ring') == 1) then
    wake_flat(p, freed)
  end
end
