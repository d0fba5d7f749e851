-- claim_many: fills free slots from flat pending and the ring in fair turn, in one round trip (ours).
-- Honours the queue's pause, meta.concurrency and the rate limit; counts crashes and buries what reached max_crashes; takes
-- at most one suspect; leaves a receipt, and answers an unread one instead of claiming (protocol section 4).
-- KEYS[1] emq:{q}:pending
-- KEYS[2] emq:{q}:active
-- KEYS[3] emq:{q}:ring
-- KEYS[4] emq:{q}:meta
-- KEYS[5] emq:{q}:claimed:<consumer>
-- ARGV[1] emq:{q}:
-- ARGV[2] lease_ms
-- ARGV[3] n  free slots, at most 1000; 0 reads the receipt only
-- ARGV[4] number  of the last claim reply that this consumer has read
-- ARGV[5] random  of this claim, without spaces or colons
-- ARGV[6] max_crashes
-- ARGV[7] suspects  1 when this process has no suspect in hand, else 0
-- returns {number, why, random, {id, payload or nil, token, group or '', failures, crashes, …}, {buried id, last_error, …}}
-- returns why = ok | paused | ceiling | suspects (passed over, still there) | replayed; random is that of the claim in the reply
-- include: now
-- include: chunks
-- include: lane
-- include: receipt
-- include: candidates
-- include: rotation
local p, lease, read, random = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4]), ARGV[5]
local now = now_ms()
local claim = {p = p, active = KEYS[2], ring = KEYS[3], now = now, room = math.min(tonumber(ARGV[3]), 1000), looked = 0,
  max_crashes = tonumber(ARGV[6]), suspects = tonumber(ARGV[7]), take = {}, bury = {}, drop = {}, move = {}}

local receipt = redis.call('GET', KEYS[5])
if (receipt_number(receipt) or 0) > read then return replay(p, KEYS[2], receipt, now + lease) end
local meta = redis.call('HMGET', KEYS[4], 'paused', 'concurrency', 'max', 'window_ms', 'flat_turn')
if meta[1] then return {read, 'paused', random, {}, {}} end
local busy = redis.call('ZCARD', KEYS[2])
if tonumber(meta[2]) then claim.room = math.min(claim.room, tonumber(meta[2]) - busy) end
local started = tonumber(redis.call('GET', p .. 'limiter')) or 0
local limited = tonumber(meta[3]) and tonumber(meta[4])
if limited then claim.room = math.min(claim.room, tonumber(meta[3]) - started) end
if claim.room <= 0 then return {read, tonumber(ARGV[3]) > 0 and 'ceiling' or 'ok', random, {}, {}} end
claim.look = claim.room + 4096

-- Flat pending takes its turn among the lanes as one of them: after as many turns of lanes as the ring is long.
local flat = cursor(KEYS[1], KEYS[2], claim.room, math.max(claim.room, 64))
local flat_depth, flat_open = redis.call('ZCARD', KEYS[1]), true
local rot = new_rotation(claim)
local since = tonumber(meta[5]) or 0
while #claim.take < claim.room do
  local lane = rot.length > 0 and next_lane(claim, rot)
  if flat_open and (not lane or since >= rot.length) then
    if next_job(claim, flat, nil) then since = 0 else flat_open = false end
  elseif lane then
    if serve_lane(claim, rot) then since = math.min(since + 1, rot.length) end
  else
    break
  end
end

local scheduled = redis.call('ZCARD', p .. 'schedule')
redis.call('EXISTS', p .. 'dead', p .. 'metrics:failed', p .. 'ready', p .. 'wake')
for _, row in ipairs(claim.move) do touch_lane(p, row.group) end
for _, row in ipairs(claim.bury) do
  redis.call('EXISTS', p .. 'job:' .. row.id .. ':lock')
  if row.group then touch_lane(p, row.group) end
end

-- From here on only writes.
local leave, leave_lanes, offers, taken, leases, jobs, words = {}, {}, {}, {}, {}, {}, {read + 1, random}
local function leaves(row)
  leave[#leave + 1] = row.id
  if row.lane then
    leave_lanes[row.lane] = leave_lanes[row.lane] or {}
    table.insert(leave_lanes[row.lane], row.id)
  end
end
for _, row in ipairs(claim.drop) do leaves(row) end
for i, row in ipairs(claim.take) do
  leaves(row)
  local token = (tonumber(row.attempts) or 0) + 1
  local key, held, group = p .. 'job:' .. row.id, token .. ':' .. random, row.lane or ''
  if row.count > 0 then
    redis.call('HSET', key, 'state', 'active', 'attempts', token, 'held', held, 'crashes', row.count .. ':' .. token)
  else
    redis.call('HSET', key, 'state', 'active', 'attempts', token, 'held', held)
  end
  if row.lane and row.group ~= row.lane then redis.call('HSET', key, 'group', row.lane) end
  if row.lane and not row.expired then redis.call('HINCRBY', p .. 'gactive', row.lane, 1) end
  taken[i], leases[2 * i - 1], leases[2 * i] = row.id, now + lease, row.id
  words[2 * i + 1], words[2 * i + 2] = row.id, token
  local n = 6 * (i - 1)
  jobs[n + 1], jobs[n + 2], jobs[n + 3] = row.id, row.payload, token
  jobs[n + 4], jobs[n + 5], jobs[n + 6] = group, row.failures or '0', row.count
end
local buried = {}
for _, row in ipairs(claim.bury) do
  leaves(row)
  local key, reason = p .. 'job:' .. row.id, 'crashed: ' .. row.count .. ' claims in a row never ended'
  redis.call('HSET', key, 'state', 'dead', 'last_error', reason)
  redis.call('HDEL', key, 'held', 'crashes')
  redis.call('DEL', key .. ':lock')
  redis.call('ZADD', p .. 'dead', 0, row.id)
  redis.call('ZREM', p .. 'schedule', row.id)
  if row.expired and redis.call('ZREM', KEYS[2], row.id) == 1 and row.group then
    free_slot(p, row.group, 1)
    offers[row.group] = true
  end
  buried[#buried + 1], buried[#buried + 2] = row.id, reason
end
if #claim.bury > 0 then redis.call('HINCRBY', p .. 'metrics:failed', 'count', #claim.bury) end
for _, row in ipairs(claim.move) do
  leaves(row)
  offers[row.group] = true
end
if flat_depth > 0 then in_chunks(leave, function(...) redis.call('ZREM', KEYS[1], ...) end) end
for name, ids in pairs(leave_lanes) do
  in_chunks(ids, function(...) redis.call('ZREM', lane_key(p, name), ...) end)
end
if rot.visited > 0 then write_ring(rot) end
for _, row in ipairs(claim.move) do redis.call('ZADD', lane_key(p, row.group), 0, row.id) end
for group in pairs(offers) do offer(p, group) end
if #claim.take > 0 then
  redis.call('ZADD', KEYS[2], unpack(leases))
  if scheduled > 0 then in_chunks(taken, function(...) redis.call('ZREM', p .. 'schedule', ...) end) end
  redis.call('SET', KEYS[5], table.concat(words, ' '), 'PX', lease)
  if limited and redis.call('INCRBY', p .. 'limiter', #claim.take) == #claim.take then
    redis.call('PEXPIRE', p .. 'limiter', meta[4])
  end
end
if flat_depth > 0 and rot.length > 0 and since ~= tonumber(meta[5]) then redis.call('HSET', KEYS[4], 'flat_turn', since) end
-- Nothing is left that anyone could claim: tokens that stand now would only wake someone for nothing.
if #claim.take < claim.room and (flat.gone or 0) == flat_depth and redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('DEL', p .. 'ready', p .. 'wake')
end
local why = claim.passed and #claim.take < claim.room and 'suspects' or 'ok'
return {#claim.take > 0 and read + 1 or read, why, random, jobs, buried}
