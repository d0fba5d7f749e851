-- claim_many: fills free slots from flat pending and the ring in fair turn, in one round trip (ours).
-- Honours the queue's pause, meta.concurrency and the rate limit; counts crashes; buries what reached max_crashes, expired
-- or was cancelled; takes at most one suspect; leaves a receipt, and answers an unread one instead of claiming (protocol
-- section 4).
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
-- returns {number, why, random, {id, payload or nil, token, group or '', failures, crashes, …}, {buried id, last_error, …},
--   {id of a flow's child, …}}
-- returns why = ok | paused | ceiling | rate:<ms until the window ends> | suspects (passed over, still there) | replayed; random
--   is that of the claim in the reply
-- include: now
local p, lease, read, random = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4]), ARGV[5]
local room = math.min(tonumber(ARGV[3]), 1000)
if lease < 1 or lease % 1 > 0 then return redis.error_reply('ERR claim lease_ms must be a whole number above 0') end

local receipt = redis.call('GET', KEYS[5])
local number = receipt and tonumber(string.match(receipt, '^%d+')) or 0
if number > read then
-- include: receipt
  return replay(p, KEYS[2], KEYS[5], receipt, now_ms(), lease)
end
if room < 1 then return {read, 'ok', random, {}, {}, {}} end
local meta = redis.call('HMGET', KEYS[4], 'paused', 'concurrency', 'max', 'window_ms', 'flat_turn', 'lane_turn')
if meta[1] then return {read, 'paused', random, {}, {}, {}} end
if tonumber(meta[2]) then room = math.min(room, tonumber(meta[2]) - redis.call('ZCARD', KEYS[2])) end
-- Three centuries at most: what is longer can be written by nobody.
local window, spent, rate = math.min(math.floor(tonumber(meta[4]) or 0), 1e13), 0, nil
local limited = tonumber(meta[3]) and window > 0
if limited then
  spent = tonumber(redis.call('GET', p .. 'limiter')) or 0
  local left = tonumber(meta[3]) - spent
  -- What the window still lets start, where that is less than what is free.
  if left < room then
    room = left
    rate = 'rate:' .. math.max(math.min(spent > 0 and redis.call('PTTL', p .. 'limiter') or window, 1e13), 1)
  end
end
room = math.floor(room)
if room < 1 then return {read, rate or 'ceiling', random, {}, {}, {}} end

-- Where nothing is left that anyone could claim, tokens that stand would only wake someone for nothing.
local function has_tokens()
  return redis.call('EXISTS', p .. 'ready', p .. 'wake') > 0
end
local function drop_tokens()
  redis.call('DEL', p .. 'ready', p .. 'wake')
end

local ring = redis.call('LLEN', KEYS[3])
local asked = ring > 0 and math.min(room, 17) or room
local first = redis.call('ZRANGE', KEYS[1], 0, asked - 1)
-- Whether flat pending is all there is.
local alone = ring == 0 and not meta[6]
if alone and #first == 0 then
  if has_tokens() then drop_tokens() end
  return {read, 'ok', random, {}, {}, {}}
end

-- include: plain
-- include: taking
local claim = {p = p, rows = p .. 'job:', pending = KEYS[1], active = KEYS[2], now = now_ms(), room = room, count = 0,
  looked = 0, jobs = {}, tokens = {}, leave = {}, kin = {}}
local flat = source(KEYS[1])
flat.page = math.max(room, PAGE)
local flat_open = turn_page(claim, flat, first, asked)
if ring == 0 then take_plain(claim, flat) end

-- What is taken leaves schedule and dead, where it should not stand: nothing is sent to an empty one.
local function read_strays()
  return redis.call('ZCARD', p .. 'schedule'), redis.call('ZCARD', p .. 'dead')
end
local function write_taken(scheduled, dead)
  if scheduled + dead > 0 then
    local ids = taken_ids(claim)
    if scheduled > 0 then redis.call('ZREM', p .. 'schedule', unpack(ids)) end
    if dead > 0 then redis.call('ZREM', p .. 'dead', unpack(ids)) end
  end
  local words = hand_out(claim, random, string.format('%.0f', claim.now + lease))
  redis.call('SET', KEYS[5], (read + 1) .. ' ' .. random .. ' ' .. words, 'PX', lease)
  if not limited then return end
  if spent > 0 then
    redis.call('INCRBY', p .. 'limiter', claim.count)
  else
    redis.call('SET', p .. 'limiter', claim.count, 'PX', window)
  end
end

-- Most claims end here: no lanes, and every job that was met is as most are.
if alone and not claim.row then
  local short, scheduled, dead = claim.count < room, read_strays()
  local idle = short and has_tokens()
  if idle then drop_tokens() end
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, claim.count - 1)
  write_taken(scheduled, dead)
  return {read + 1, not short and rate or 'ok', random, claim.jobs, {}, claim.kin}
end

-- include: leaving
-- include: lane_keys
-- include: candidates
-- include: rotation
claim.look, claim.max_crashes, claim.suspects = room + 4096, tonumber(ARGV[6]), tonumber(ARGV[7])
claim.regroup, claim.seen, claim.told, claim.bury, claim.move = {}, {}, 0, {}, {}
claim.lanes, claim.has_flat = ring > 0, flat_open
local rot = new_rotation(claim, KEYS[3], ring, meta[6])

-- Flat pending takes its turn among the lanes as one of them: when each of those that stood on the ring at its last turn has
-- had its own or fallen off.
local turns = math.min(tonumber(meta[5]) or ring, ring)
while claim.count < room do
  local lane = claim.lanes and next_lane(claim, rot)
  if flat_open and (not lane or turns < 1) then
    flat_open = not (claim.lanes or claim.row) and take_plain(claim, flat) or next_job(claim, flat)
    if flat_open then turns = rot.lanes end
  elseif not lane then
    break
  else
    local served = serve_plain(claim, rot, flat_open and math.floor(turns) or room)
    turns = turns - served
    if (served == 0 or claim.row) and serve_lane(claim, rot) then turns = turns - 1 end
    turns = math.max(turns, 0)
  end
end
local short = claim.count < room

local filed = #claim.bury + #claim.move > 0
local buried, write_filed = {}, nil
if filed then
-- include: filing
  touch_filed(claim)
  write_filed = file
end
local scheduled, dead = 0, 0
if claim.count + #claim.bury > 0 then scheduled, dead = read_strays() end
local idle = short and not flat.passed and not has_more(claim, flat) and #claim.move == 0 and entries_left(rot) == 0
idle = idle and has_tokens()

-- From here on only writes.
if idle then drop_tokens() end
if rot.visited > 0 then write_ring(rot) end
leave_sets(claim, rot)
if filed then buried = write_filed(claim) end
if claim.count > 0 then
  write_taken(scheduled, dead)
  regroup(claim)
end
if claim.lanes and claim.has_flat and turns ~= tonumber(meta[5]) then redis.call('HSET', KEYS[4], 'flat_turn', turns) end
local cut = rot.cut or (rot.cut_name and meta[6])
if cut and cut ~= meta[6] then redis.call('HSET', KEYS[4], 'lane_turn', cut) end
if meta[6] and not cut then redis.call('HDEL', KEYS[4], 'lane_turn') end
local why = short and (claim.passed and 'suspects' or 'ok') or rate or 'ok'
return {claim.count > 0 and read + 1 or read, why, random, claim.jobs, buried, claim.kin}
