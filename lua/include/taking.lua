-- The writing pass of claim_many: what is buried, moved and taken. Everything was touched before.

-- Reads the keys that only burials and moves write.
local function touch_filed(claim)
  local groups = {}
  for _, one in ipairs(claim.move) do groups[one.group] = true end
  for _, one in ipairs(claim.bury) do
    redis.call('EXISTS', claim.rows .. one.id .. ':lock')
    one.child = read_child(claim.p, one.id)
    touch_ended(claim.p, one.child)
    if one.lease and one.group then groups[one.group] = true end
  end
  if #claim.bury > 0 then redis.call('HGET', claim.p .. 'metrics:failed', 'count') end
  touch_lanes(claim.p, groups)
end

-- No slot is freed: whoever took the job from active has done that. Where nobody had, the id is still there with its lease
-- run out, and this takes it from active.
local function bury(claim, offers)
  local buried = {}
  for _, one in ipairs(claim.bury) do
    local key = claim.rows .. one.id
    redis.call('HSET', key, 'state', 'dead', 'last_error', one.reason)
    redis.call('HDEL', key, 'held', 'crashes')
    redis.call('DEL', key .. ':lock')
    redis.call('ZADD', claim.p .. 'dead', 0, one.id)
    redis.call('ZREM', claim.p .. 'schedule', one.id)
    if one.lease and redis.call('ZREM', claim.active, one.id) == 1 and one.group then
      free_slot(claim.p, one.group, 1)
      offers[one.group] = true
    end
    buried[#buried + 1], buried[#buried + 2] = one.id, one.reason
  end
  if #claim.bury > 0 then redis.call('HINCRBY', claim.p .. 'metrics:failed', 'count', #claim.bury) end
  for _, one in ipairs(claim.bury) do died(claim.p, one.child, one.reason) end
  return buried
end

-- Behind the removals: an id that stood in flat pending and in its lane stays in its lane.
local function move(claim, offers)
  for _, one in ipairs(claim.move) do
    redis.call('ZADD', lane_key(claim.p, one.group), 0, one.id)
    offers[one.group] = true
  end
end

-- Rows and active; answers the words of the receipt.
local function hand_out(claim, random, deadline)
  local jobs, leases, words, rows, held = claim.jobs, {}, {}, claim.rows, {}
  for _, token in pairs(claim.tokens) do held[token] = token .. ':' .. random end
  for i = 1, claim.count do
    local n = 6 * i - 5
    local id, token, crashes = jobs[n], jobs[n + 2], jobs[n + 5]
    if crashes > 0 then
      redis.call('HSET', rows .. id, 'state', 'active', 'attempts', token, 'held', held[token],
        'crashes', crashes .. ':' .. token)
    else
      redis.call('HSET', rows .. id, 'state', 'active', 'attempts', token, 'held', held[token])
    end
    leases[2 * i - 1], leases[2 * i] = deadline, id
    words[2 * i - 1], words[2 * i] = id, token
  end
  for id, group in pairs(claim.regroup) do redis.call('HSET', claim.rows .. id, 'group', group) end
  redis.call('ZADD', claim.active, unpack(leases))
  return table.concat(words, ' ')
end

-- A server searches a small hash from end to end for each of its fields, which many lanes make dear, until a name this long
-- has been in it: then it looks them up. A lane of this very name, which no client of ours makes, keeps its count.
local MANY, LONG_NAME = 32, string.rep('-', 65)

local function count_started(p, started)
  local many = #started > 2 * MANY and redis.call('HSETNX', p .. 'gactive', LONG_NAME, '') == 1
  redis.call('HSET', p .. 'gactive', unpack(started))
  if many and redis.call('HGET', p .. 'gactive', LONG_NAME) == '' then redis.call('HDEL', p .. 'gactive', LONG_NAME) end
end

-- What was judged leaves flat pending and the lanes; what was taken from a lane has a slot of it.
local function leave_sets(claim, rot)
  local started = {}
  if not claim.lanes and not claim.passed and #claim.leave == claim.looked then
    -- Everything that was looked at leaves, and it was the head of flat pending: that costs less by rank, the deeper the more.
    if claim.looked > 0 then redis.call('ZREMRANGEBYRANK', claim.pending, 0, claim.looked - 1) end
  elseif claim.depth > 0 then
    call_chunked('ZREM', claim.pending, claim.leave)
  end
  for n = 1, rot.loaded do
    local lane, first, last = rot.opened[n], rot.last[n - 1], rot.at[n]
    if lane then
      call_chunked('ZREM', lane.key, lane.leave)
    elseif last == first + 1 then
      redis.call('ZREM', rot.keys[n], rot.members[last])
    elseif last > first then
      redis.call('ZREM', rot.keys[n], unpack(rot.members, first + 1, last))
    end
    local more = lane and lane.started or last - first
    if more > 0 then started[#started + 1], started[#started + 2] = rot.names[n], (rot.busy[n] or 0) + more end
  end
  if #started > 0 then count_started(claim.p, started) end
end
