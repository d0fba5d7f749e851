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
local prefix, kept = p .. 'job:', redis.call('EXISTS', p .. 'kept') == 1
local plain, ids, beside = read_plain(prefix, kept)
local answers, done = {}, {completed = 0, failed = 0, ended = {}, erased = {}, due = {}, dead = {}}
if plain then
  local littered = any_stands(beside)
  local sizes, ceiling = read_queue(p)
  for n = 1, #ids do answers[n] = 'done' end
  done.ended, done.completed, done.erased = ids, #ids, littered and {} or plain
  for n = 1, littered and #plain or 0 do erase_littered(done.erased, plain[n]) end
  write_endings(p, done, sizes, ceiling)
  return answers
end

-- Every other call.
-- include: now
-- include: lanes
-- include: verdicts
-- include: endings
local at, now, argv = parse(), now_ms(), ARGV
if not at then return redis.error_reply('ERR settle verdicts are not well-formed: expected c, v, r or d and its values') end

local rows, keys, groups, ours, kin, grouped, last, token, m = {}, {}, {}, {}, {}, false, nil, nil, 0
ids, beside = {}, {}
for n = 1, #at do
  local i = at[n]
  local kind, id, held = argv[i], argv[i + 1], argv[i + 2]
  local key = prefix .. id
  local row = read_row(key, kind)
  -- The group that the worker was given at the claim frees the slot also where the row is gone.
  local group = row[GROUP] or argv[i + 3]
  if held ~= last then
    last = held
    token = token_once(held)
  end
  -- Whether the row shows the claim that the verdict is of.
  local mine = row[HELD] == held and row[ATTEMPTS] == token
  rows[n], keys[n], ids[n], groups[n], ours[n] = row, key, id, group, mine
  grouped = grouped or group ~= ''
  if row[DEDUP] or row[PARENT] then kin[n] = row end
  beside[m + 1], beside[m + 2] = key .. ':logs', key .. ':dependencies'
  m = m + 2
  if kept or token ~= '1' or not mine or kind ~= 'c' then
    m = m + 1
    beside[m] = key .. ':lock'
  end
end
local tell
if next(kin) then
-- include: flow
  for n, row in pairs(kin) do
    kin[n] = row[PARENT] and read_child(p, ids[n]) or child_of(ids[n], {row[DEDUP]})
    touch_ended(p, kin[n])
  end
  tell = function(n, i, answer)
    if answer == 'done' then
      completed(p, kin[n], argv[i] == 'v' and argv[i + 4] or nil)
    elseif answer == 'dead' then
      died(p, kin[n], reason_of(rows[n], i))
    end
  end
end
local littered = any_stands(beside)
local sizes, ceiling = read_queue(p)
redis.call('HGET', p .. 'metrics:failed', 'count')
local known = grouped and read_lanes(p, KEYS[1], ids, groups, ours) or no_lanes()

local changed, told, ended, erased = {}, {}, done.ended, done.erased
local lanes, leases, stands, freed = known.lanes, known.leases, known.stands, known.freed
for n = 1, #at do
  local i, id, row, before = at[n], ids[n], rows[n], changed[ids[n]]
  -- The same id twice in one call: the second is decided on what the first left behind.
  if before == 'erased' then row = {} elseif before then row = read_row(keys[n], argv[i]) end
  local answer, ends = 'done', true
  -- Most are: completions of what is in hand.
  if before or not ours[n] or argv[i] ~= 'c' or row[SETTLED] then answer, ends = decide(row, i) end
  answers[n] = answer
  if ends then
    -- Who has died before has told of it then.
    if kin[n] and (row[STATE] ~= 'dead' or answer == 'done') then told[n] = answer end
    ended[#ended + 1] = id
    local lane = lanes[n]
    -- This ending takes it from active, so it gives the slot back.
    if lane and leases[n] and not before then freed[lane] = (freed[lane] or 0) + 1 end
    if lane and stands[n] then leaves_lane(known, lane, id) end
    if answer == 'done' or answer == 'gone' then
      if littered then erase_littered(erased, keys[n]) else erased[#erased + 1] = keys[n] end
      changed[id] = 'erased'
      if answer == 'done' then done.completed = done.completed + 1 end
    else
      write_row(done, keys[n], row, i, answer, now)
      changed[id] = 'written'
    end
  end
end

write_endings(p, done, sizes, ceiling, function() keep_endings(p, done, known) end)
if tell then
  for n, i in ipairs(at) do
    if kin[n] then tell(n, i, told[n]) end
  end
end
return answers
