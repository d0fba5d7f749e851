-- settle: many verdicts in one round trip, with an answer each; once only however often it is sent (ours).
-- The effects are those of complete, retry and delay. A verdict whose claim is not the row's answers stale and writes nothing.
-- KEYS[1] emq:{q}:active
-- KEYS[2] emq:{q}:pending
-- KEYS[3] emq:{q}:schedule
-- KEYS[4] emq:{q}:dead
-- ARGV[1] emq:{q}:
-- ARGV[2...] verdicts  each `c` id held group | `v` id held group result | `r` id held group delay_ms max_attempts error | `d` id
--   held group in|at value_ms; `v` is a completion with what a flow's parent gets to read
-- returns an answer per verdict, in order: done | gone | stale | scheduled | dead | delayed
-- include: now
-- include: chunks
-- include: lane
-- include: held
-- include: flow
-- include: verdicts
-- include: endings
local p, now = ARGV[1], now_ms()
local plain, first = read_plain(p .. 'job:')
local at = plain or parse()
if not at then return redis.error_reply('ERR settle verdicts are not well-formed: expected c, v, r or d and its values') end

local rows, keys, groups, ours, kin, grouped = {}, plain or {}, {}, {}, {}, false
if not plain then
  for n, i in ipairs(at) do
    local key = p .. 'job:' .. ARGV[i + 1]
    local row = read_row(key, ARGV[i])
    -- The group that the worker was given at the claim frees the slot also where the row is gone.
    local group = row[GROUP] or ARGV[i + 3]
    rows[n], keys[n], groups[n], ours[n] = row, key, group, is_ours(row, ARGV[i + 2])
    grouped = grouped or group ~= ''
    if row[DEDUP] or row[PARENT] then
      kin[n] = row[PARENT] and read_child(p, ARGV[i + 1]) or child_of(ARGV[i + 1], {row[DEDUP]})
      touch_ended(p, kin[n])
    end
  end
end
local littered = is_littered(keys, not first or redis.call('EXISTS', p .. 'kept') == 1)
local sizes = {}
for i, key in ipairs(KEYS) do sizes[i] = redis.call('ZCARD', key) end
redis.call('HGET', p .. 'metrics:completed', 'count')
redis.call('HGET', p .. 'metrics:failed', 'count')
local ceiling = redis.call('HGET', p .. 'meta', 'concurrency')
if ceiling then
  redis.call('LLEN', p .. 'ready')
  redis.call('LLEN', p .. 'ring')
end
local known = grouped and read_lanes(p, KEYS[1], at, groups, ours) or no_lanes()

local answers, changed, told = {}, {}, {}
local done = {completed = 0, failed = 0, ended = {}, erased = {}, due = {}, dead = {}}
if plain then
  done.completed = #keys
  for n, key in ipairs(keys) do
    answers[n], done.ended[n] = 'done', ARGV[4 * n - 1]
    erase(done.erased, key, littered)
  end
  write_endings(p, done, sizes, ceiling, known)
  return answers
end
for n, i in ipairs(at) do
  local id, row = ARGV[i + 1], rows[n]
  -- The same id twice in one call: the second is decided on what the first left behind.
  if changed[id] == 'erased' then row = {} elseif changed[id] then row = read_row(keys[n], ARGV[i]) end
  local answer, ends = decide(row, i, ours[n] and not changed[id])
  answers[n] = answer
  if ends then
    -- Who has died before has told of it then.
    if row[STATE] ~= 'dead' or answer == 'done' then told[n] = answer end
    done.ended[#done.ended + 1] = id
    if groups[n] ~= '' then leaves_lane(known, n, id, known.leases[n] and not changed[id]) end
    if answer == 'done' or answer == 'gone' then
      erase(done.erased, keys[n], littered)
      changed[id] = 'erased'
      if answer == 'done' then done.completed = done.completed + 1 end
    else
      write_row(done, keys[n], row, i, answer, now)
      changed[id] = 'written'
    end
  end
end

write_endings(p, done, sizes, ceiling, known)
if next(kin) then
  for n, i in ipairs(at) do
    if kin[n] and told[n] == 'done' then
      completed(p, kin[n], ARGV[i] == 'v' and ARGV[i + 4] or nil)
    elseif kin[n] and told[n] == 'dead' then
      died(p, kin[n], reason_of(rows[n], i))
    end
  end
end
return answers
