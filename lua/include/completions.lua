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
-- each, of no lane, and nobody waits for them. nil for every other call. With them whether all are in hand by their first claim.
local function read_plain(prefix)
  local keys, ids, n, seen, argv, first = {}, {}, 0, {}, ARGV, true
  local last = #argv
  if last % 4 ~= 1 then return nil end
  for i = 2, last, 4 do
    local id, held = argv[i + 1], argv[i + 2]
    local key, token = prefix .. id, token_once(held)
    if argv[i] ~= 'c' or argv[i + 3] ~= '' or seen[id] then return nil end
    local row = redis.call('HMGET', key, 'held', 'attempts', 'settled', 'group', 'dedup', 'parent')
    if row[1] ~= held or row[2] ~= token or row[3] or row[4] or row[5] or row[6] then return nil end
    n = n + 1
    keys[n], ids[n], seen[id], first = key, id, true, first and token == '1'
  end
  return keys, ids, first
end

-- Whether something stands beside a row of these: logs, children that were counted, and where one may stand a lock.
local function is_littered(keys, locked)
  local beside, found, count = {}, 0, #keys
  for n, key in ipairs(keys) do beside[2 * n - 1], beside[2 * n] = key .. ':logs', key .. ':dependencies' end
  for n = 1, locked and count or 0 do beside[2 * count + n] = keys[n] .. ':lock' end
  in_chunks(beside, function(...) found = found + redis.call('EXISTS', ...) end)
  return found > 0
end

-- What is left of a job when it is over: a row, and where there is one its logs, lock and a flow parent's subkeys.
local function erase(erased, key, littered)
  erased[#erased + 1] = key
  if not littered then return end
  for _, name in ipairs({'logs', 'lock', 'dependencies', 'processed', 'failed', 'unsuccessful'}) do
    erased[#erased + 1] = key .. ':' .. name
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
