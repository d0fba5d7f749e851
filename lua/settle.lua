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
-- include: completions
local p = ARGV[1]
local plain, ids, first = read_plain(p .. 'job:')
local answers, done = {}, {completed = 0, failed = 0, ended = {}, erased = {}, due = {}, dead = {}}
if plain then
  local littered = is_littered(plain, not first or redis.call('EXISTS', p .. 'kept') == 1)
  local sizes, ceiling = read_queue(p)
  for n, key in ipairs(plain) do
    answers[n] = 'done'
    erase(done.erased, key, littered)
  end
  done.ended, done.completed = ids, #ids
  write_endings(p, done, sizes, ceiling)
  return answers
end

-- Every other call.
-- include: now
-- include: lanes
-- include: verdicts
-- include: endings
local at, now = parse(), now_ms()
if not at then return redis.error_reply('ERR settle verdicts are not well-formed: expected c, v, r or d and its values') end

local rows, keys, groups, ours, kin, grouped = {}, {}, {}, {}, {}, false
for n, i in ipairs(at) do
  local key = p .. 'job:' .. ARGV[i + 1]
  local row = read_row(key, ARGV[i])
  -- The group that the worker was given at the claim frees the slot also where the row is gone.
  local group = row[GROUP] or ARGV[i + 3]
  rows[n], keys[n], groups[n], ours[n] = row, key, group, is_ours(row, ARGV[i + 2])
  grouped = grouped or group ~= ''
  if row[DEDUP] or row[PARENT] then kin[n] = row end
end
local tell
if next(kin) then
-- include: flow
  for n, row in pairs(kin) do
    local id = ARGV[at[n] + 1]
    kin[n] = row[PARENT] and read_child(p, id) or child_of(id, {row[DEDUP]})
    touch_ended(p, kin[n])
  end
  tell = function(n, i, answer)
    if answer == 'done' then
      completed(p, kin[n], ARGV[i] == 'v' and ARGV[i + 4] or nil)
    elseif answer == 'dead' then
      died(p, kin[n], reason_of(rows[n], i))
    end
  end
end
local littered = is_littered(keys, true)
local sizes, ceiling = read_queue(p)
redis.call('HGET', p .. 'metrics:failed', 'count')
local known = grouped and read_lanes(p, KEYS[1], at, groups, ours) or no_lanes()

local changed, told = {}, {}
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

write_endings(p, done, sizes, ceiling, function() keep_endings(p, done, known) end)
for n, i in ipairs(at) do
  if kin[n] then tell(n, i, told[n]) end
end
return answers
