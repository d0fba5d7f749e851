-- What obliterate finds in one call, within its budget, and how it goes. Everything is read before the first write.
local SUBKEYS = {'logs', 'lock', 'dependencies', 'processed', 'failed', 'unsuccessful'}

local function new_work(p, budget)
  return {p = p, left = budget, ids = {}, seen = {}, lanes = {}, named = {}, entries = 0, gone = {}, freed = {}, kin = {}}
end

local function find(work, id)
  if work.seen[id] then return end
  work.seen[id] = true
  work.ids[#work.ids + 1] = id
  work.left = work.left - 1
end

local function find_set(work, name)
  if work.left < 1 then return end
  for _, id in ipairs(redis.call('ZRANGE', work.p .. name, 0, work.left - 1)) do find(work, id) end
end

-- The lanes that a key names. One costs one more than its members, so that many empty ones are bounded too.
local function find_lanes(work, command, name)
  if work.left < 1 then return end
  local ring = name == 'ring'
  local names = ring and redis.call('LRANGE', work.p .. name, 0, work.left - 1)
    or redis.call(command, work.p .. name, work.left)
  for _, group in ipairs(names) do
    if work.left < 1 then return end
    if not work.named[group] then
      local ids = redis.call('ZRANGE', lane_key(work.p, group), 0, work.left - 1)
      if #ids < work.left then work.gone[#work.gone + 1] = group end
      work.named[group] = #ids < work.left
      work.lanes[#work.lanes + 1] = {group = group, size = #ids}
      for _, id in ipairs(ids) do find(work, id) end
      work.left = work.left - 1
    end
    if ring and work.named[group] then work.entries = work.entries + 1 end
  end
end

-- The rows of what was found: all that is written for them is read.
local function read_found(work)
  local p, groups = work.p, {}
  local leases = redis.call('ZCARD', p .. 'active') > 0
  for i, id in ipairs(work.ids) do
    local key, names = p .. 'job:' .. id, {}
    local f = redis.call('HMGET', key, 'dedup', 'parent', 'parent_queue', 'parent_policy', 'state', 'group')
    for j, name in ipairs(SUBKEYS) do names[j] = key .. ':' .. name end
    redis.call('EXISTS', unpack(names))
    if f[1] or f[2] then
      work.kin[i] = child_of(id, f)
      work.kin[i].dead = f[5] == 'dead'
      touch_ended(p, work.kin[i])
    end
    if f[6] then
      groups[f[6]] = true
      if leases and redis.call('ZSCORE', p .. 'active', id) then work.freed[f[6]] = (work.freed[f[6]] or 0) + 1 end
      if redis.call('ZSCORE', lane_key(p, f[6]), id) and work.named[f[6]] == nil then
        work.lanes[#work.lanes + 1] = {group = f[6], id = id}
      end
    end
  end
  touch_lanes(p, groups)
  for _, name in ipairs({'pending', 'schedule', 'dead'}) do redis.call('ZCARD', p .. name) end
end

local function delete_lanes(work)
  local p = work.p
  if work.entries > 0 then redis.call('LTRIM', p .. 'ring', work.entries, -1) end
  for _, lane in ipairs(work.lanes) do
    if lane.id then
      -- A ring entry that this leaves hollow is found as one, and goes then: to look for it now would take as long as the
      -- ring is.
      redis.call('ZREM', lane_key(p, lane.group), lane.id)
    elseif lane.size > 0 then
      redis.call('ZREMRANGEBYRANK', lane_key(p, lane.group), 0, lane.size - 1)
    end
  end
  for group, count in pairs(work.freed) do free_slot(p, group, count) end
  for _, name in ipairs({'glimit', 'gactive', 'gweight'}) do call_chunked('HDEL', p .. name, work.gone) end
  call_chunked('SREM', p .. 'paused', work.gone)
end

local function delete_jobs(work)
  local p, names = work.p, {}
  for _, id in ipairs(work.ids) do
    local key = p .. 'job:' .. id
    names[#names + 1] = key
    for _, name in ipairs(SUBKEYS) do names[#names + 1] = key .. ':' .. name end
  end
  for _, name in ipairs({'active', 'pending', 'schedule', 'dead'}) do call_chunked('ZREM', p .. name, work.ids) end
  in_chunks(names, function(...) redis.call('UNLINK', ...) end)
  for _, child in pairs(work.kin) do
    -- Who was dead has reported then.
    if child.dead then release_dedup(p, child) else died(p, child, 'obliterated') end
    work.told = work.told or (not child.dead and same_queue(child))
  end
end
