-- What claim_many buries and moves: touched before the first write, written by `file`.
-- include: lanes
-- include: flow

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

-- All of it; the lanes that got a job or a slot are offered when their counts are right. Answers what was buried.
local function file(claim)
  local offers = {}
  move(claim, offers)
  local buried = bury(claim, offers)
  for group in pairs(offers) do offer(claim.p, group) end
  return buried
end
