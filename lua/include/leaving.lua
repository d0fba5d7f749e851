-- How what claim_many has judged leaves flat pending and the lanes.
-- include: chunks

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
  local started, names, keys, members, m = {}, rot.names, rot.keys, rot.members, 0
  if not claim.lanes and not claim.passed and claim.count + #claim.leave == claim.looked then
    -- Everything that was looked at leaves, and it was the head of flat pending: that costs less by rank, the deeper the more.
    if claim.looked > 0 then redis.call('ZREMRANGEBYRANK', claim.pending, 0, claim.looked - 1) end
  elseif claim.has_flat then
    -- What was taken from a lane too: an id may stand in both.
    call_chunked('ZREM', claim.pending, claim.leave)
    call_chunked('ZREM', claim.pending, taken_ids(claim))
  end
  for n = 1, rot.loaded do
    local lane, first, last = rot.opened[n], rot.last[n - 1], rot.at[n]
    local more = last - first
    if lane then
      call_chunked('ZREM', lane.key, lane.leave)
      more = lane.started
    elseif more == 1 then
      redis.call('ZREM', keys[n], members[last])
    elseif more > 0 then
      redis.call('ZREM', keys[n], unpack(members, first + 1, last))
    end
    if more > 0 then
      local busy = rot.busy[n]
      started[m + 1] = names[n]
      m = m + 2
      started[m] = busy and busy + more or more
    end
  end
  if #started > 0 then count_started(claim.p, started) end
end

-- A row that its lane got without the group, or with another one.
local function regroup(claim)
  for id, group in pairs(claim.regroup) do redis.call('HSET', claim.rows .. id, 'group', group) end
end
