-- What promote, reap and the sweep share: many ids are read before the first write, then go back where they can be claimed.

-- Reads the rows, and every key that the functions below may write for them.
local function read_members(p, ids)
  local members, groups = {}, {}
  for i, id in ipairs(ids) do
    local f = redis.call('HMGET', p .. 'job:' .. id, 'state', 'attempts', 'group', 'stalled')
    local group = f[3]
    members[i] = {id = id, state = f[1], exists = (f[1] or f[2]) and true or false, group = group, stalled = f[4]}
    if group then groups[group] = true end
  end
  touch_lanes(p, groups)
  for _, name in ipairs({'active', 'pending', 'schedule', 'dead'}) do redis.call('ZCARD', p .. name) end
  redis.call('LLEN', p .. 'ready')
  return members
end

-- The rows of expired leases, and those of them that can run again: not gone, not dead, not waiting in the schedule or for
-- children.
local function recoverable(p, expired)
  local members, back = read_members(p, expired), {}
  local scheduled = ask_chunked('ZMSCORE', p .. 'schedule', expired)
  for i, member in ipairs(members) do
    local elsewhere = member.state == 'dead' or (member.state == 'scheduled' and scheduled[i])
    if member.exists and not elsewhere and not is_waiting(p, member.id, member.state) then
      back[#back + 1] = member
    end
  end
  return members, back
end

local function ids_of(members)
  local ids = {}
  for i, member in ipairs(members) do ids[i] = member.id end
  return ids
end

local function remove(key, members)
  in_chunks(ids_of(members), function(...) redis.call('ZREM', key, ...) end)
end

local function add(key, members)
  local scored = {}
  for i, member in ipairs(members) do scored[2 * i - 1], scored[2 * i] = 0, member.id end
  in_chunks(scored, function(...) redis.call('ZADD', key, ...) end)
end

-- Takes members that are in active out of it and frees their groups' slots.
local function drop_leases(p, members)
  remove(p .. 'active', members)
  for _, member in ipairs(members) do
    if member.group then free_slot(p, member.group, 1) end
  end
end

-- A grouped job goes back to its lane, a flat one to pending. The row is written pending whether or not one was there: a
-- ghost gets a skeleton row, as in the seeds.
local function put_back(p, members)
  local flat = {}
  for _, member in ipairs(members) do
    redis.call('HSET', p .. 'job:' .. member.id, 'state', 'pending')
    if member.group then
      redis.call('ZADD', lane_key(p, member.group), 0, member.id)
    else
      flat[#flat + 1] = member
    end
  end
  add(p .. 'pending', flat)
  wake_flat(p, #flat)
end

-- Last, when slots are free and jobs are back: each job that did either offers its lane once.
local function offer_lanes(p, members)
  local groups = {}
  for _, member in ipairs(members) do groups[#groups + 1] = member.group or nil end
  offer_all(p, groups)
end
