-- What a job's end means to others (protocol sections 4 and 6): its dedup key is released, and the parent of a flow hears of
-- it. `child` is {id, dedup, parent, parent_queue, policy}; p is the queue base. Everything that may be written is read by
-- touch_ended first, every level of a tree.
local NUL = '\0'
local LEVELS = 8
local LONGEST = 1000

-- The first 1,000 characters of a text in UTF-8: what a last_error may have.
local function cut(text)
  if #text <= LONGEST then return text end
  local count = 0
  for at = 1, #text do
    local byte = string.byte(text, at)
    if byte < 128 or byte > 191 then
      count = count + 1
      if count > LONGEST then return string.sub(text, 1, at - 1) end
    end
  end
  return text
end

local function child_of(id, f)
  return {id = id, dedup = f[1], parent = f[2], parent_queue = f[3], policy = f[4]}
end

-- The row fields of child_of, to be asked for by every script that ends jobs.
local function read_child(p, id)
  return child_of(id, redis.call('HMGET', p .. 'job:' .. id, 'dedup', 'parent', 'parent_queue', 'parent_policy'))
end

-- A caller of a plain verb names the parent too, and the policy: they count where the row does not say.
local function told_by_caller(child, parent, parent_queue, policy)
  if not child.parent and parent and parent ~= '' then child.parent, child.parent_queue = parent, parent_queue end
  child.policy = child.policy or policy
  return child
end

local function same_queue(child)
  return child.parent and (not child.parent_queue or child.parent_queue == '')
end

-- Reads what `completed` and `died` may write for this child: the dedup key, the outbox, and the parents above it, each
-- parent once in a call.
local touched = {}
local function touch_ended(p, child)
  if child.dedup then redis.call('GET', p .. 'de:' .. child.dedup) end
  local level = child
  for _ = 1, LEVELS do
    if not level.parent then return end
    if not same_queue(level) then
      redis.call('LLEN', p .. 'flow:outbox')
      return
    end
    if touched[level.parent] then return end
    touched[level.parent] = true
    local key = p .. 'job:' .. level.parent
    local f = redis.call('HMGET', key, 'dedup', 'parent', 'parent_queue', 'parent_policy', 'group')
    redis.call('GET', key .. ':dependencies')
    for _, name in ipairs({'processed', 'failed', 'unsuccessful'}) do redis.call('HLEN', key .. ':' .. name) end
    redis.call('ZCARD', p .. 'pending')
    redis.call('ZCARD', p .. 'dead')
    redis.call('HGET', p .. 'metrics:failed', 'count')
    redis.call('LLEN', p .. 'ready')
    if f[5] then touch_lane(p, f[5]) end
    if f[1] then redis.call('GET', p .. 'de:' .. f[1]) end
    level = child_of(level.parent, f)
  end
end

-- The dedup key goes where it still stands for this id.
local function release_dedup(p, child)
  local key = child.dedup and p .. 'de:' .. child.dedup
  if key and redis.call('GET', key) == child.id then redis.call('DEL', key) end
end

-- One decrement per child; at zero the parent is released, only from awaiting_children. A count that is none is over.
local function count_down(p, parent)
  local key = p .. 'job:' .. parent
  local out = (tonumber(redis.call('GET', key .. ':dependencies')) or 1) - 1
  redis.call('SET', key .. ':dependencies', string.format('%.0f', out))
  if out > 0 then return end
  local f = redis.call('HMGET', key, 'state', 'group')
  if f[1] ~= 'awaiting_children' then return end
  redis.call('HSET', key, 'state', 'pending')
  if f[2] then
    redis.call('ZADD', lane_key(p, f[2]), 0, parent)
    offer(p, f[2])
  else
    redis.call('ZADD', p .. 'pending', 0, parent)
    wake_flat(p, 1)
  end
end

-- Whether a row waits for children, or did: a parent that is gone is not made anew, and a job that came later under its id
-- has no children.
local function is_parent(key)
  return redis.call('EXISTS', key, key .. ':dependencies') == 2 or redis.call('HGET', key, 'state') == 'awaiting_children'
end

-- The parent's side of a child that is done.
local function child_done(p, parent, child, result)
  local key = p .. 'job:' .. parent
  if not is_parent(key) then return end
  if redis.call('HSETNX', key .. ':processed', child, result) == 0 then return end
  -- It counted already when it died and its death was ignored.
  if redis.call('HEXISTS', key .. ':unsuccessful', child) == 0 then count_down(p, parent) end
end

local died

-- The parent's side of a child that is dead: by policy it fails with it, or goes on without it.
local function child_dead(p, parent, child, reason, policy)
  local key = p .. 'job:' .. parent
  if not is_parent(key) then return end
  if policy == 'id' then
    if redis.call('HSETNX', key .. ':unsuccessful', child, reason) == 0 then return end
    if redis.call('HEXISTS', key .. ':processed', child) == 0 then count_down(p, parent) end
    return
  end
  redis.call('HSETNX', key .. ':failed', child, reason)
  -- Of a child that has completed all the same (its death is told again, or told late) nobody dies.
  if redis.call('HEXISTS', key .. ':processed', child) == 1 then return end
  if redis.call('HGET', key, 'state') ~= 'awaiting_children' then return end
  local said = cut('child ' .. child .. ' died: ' .. reason)
  redis.call('HSET', key, 'state', 'dead', 'last_error', said)
  redis.call('ZADD', p .. 'dead', 0, parent)
  redis.call('HINCRBY', p .. 'metrics:failed', 'count', 1)
  died(p, read_child(p, parent), said)
end

-- A job of this queue is done; without a result its id stands for it.
local function completed(p, child, result)
  release_dedup(p, child)
  if not child.parent then return end
  result = result or child.id
  if same_queue(child) then
    child_done(p, child.parent, child.id, result)
  else
    redis.call('RPUSH', p .. 'flow:outbox', table.concat({child.parent_queue, child.parent, child.id, result}, NUL))
  end
end

-- A job of this queue is dead, whoever buried it; the death climbs every level of the tree.
died = function(p, child, reason)
  release_dedup(p, child)
  if not child.parent then return end
  local policy = child.policy == 'id' and 'id' or 'fp'
  if same_queue(child) then
    child_dead(p, child.parent, child.id, reason, policy)
  else
    local entry = {'', 'fail', child.parent_queue, child.parent, child.id, policy, reason}
    redis.call('RPUSH', p .. 'flow:outbox', table.concat(entry, NUL))
  end
end
