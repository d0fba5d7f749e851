-- mend: puts one id where it belongs, where `where` complains, and nothing else (ours). A row in no set runs again, or is dead;
-- of two sets a lease that runs wins, then what the row says, then the earlier in the order of `where`; a parent that waits for
-- nobody runs; an id without a row goes, with all that hangs on it. A dedup key goes when it holds an id without a row.
-- KEYS[1] emq:{q}:job:<id>  the row
-- ARGV[1] emq:{q}:
-- ARGV[2] id
-- ARGV[3] group  of a lane in which it was seen, '' for none
-- ARGV[4] dedup key  that holds the id, '' for none
-- returns the complaint that was mended, `dedup_without_row`, or '' where there was none
-- include: now
-- include: lane
-- include: standing
local p, id = ARGV[1], ARGV[2]
local one = look(p, id, ARGV[3] ~= '' and ARGV[3] or nil)
local said = complaint(one)
for _, name in ipairs({'pending', 'dead'}) do redis.call('ZCARD', p .. name) end
redis.call('LLEN', p .. 'ready')
if one.group then touch_lane(p, one.group) end
if ARGV[3] ~= '' then touch_lane(p, ARGV[3]) end
redis.call('EXISTS', unpack(names_behind(one.key)))
local parked = p .. 'de:' .. ARGV[4]
local holds = ARGV[4] ~= '' and redis.call('GET', parked) == id

local function leave(set)
  if set.name == 'lane' then return leave_lane(p, set.group, id) end
  redis.call('ZREM', set.key, id)
  if set.name == 'active' and one.group then
    free_slot(p, one.group, 1)
    offer(p, one.group)
  end
end

local function file(state)
  redis.call('HSET', one.key, 'state', state)
  if state == 'dead' then
    redis.call('ZADD', p .. 'dead', 0, id)
  elseif one.group then
    redis.call('ZADD', lane_key(p, one.group), 0, id)
    offer(p, one.group)
  else
    redis.call('ZADD', p .. 'pending', 0, id)
    wake_flat(p, 1)
  end
end

local STATES = {active = 'active', pending = 'pending', lane = 'pending', schedule = 'scheduled', dead = 'dead'}
local function rightful()
  local first = one.sets[1]
  if first.name == 'active' and tonumber(first.score) > now_ms() then return first end
  for _, set in ipairs(one.sets) do
    if STATES[set.name] == one.state and set.name ~= 'active' then return set end
  end
  return first.name == 'active' and one.sets[2] or first
end

if said == 'id_without_row' or said == 'subkeys_without_row' then
  for _, set in ipairs(one.sets) do leave(set) end
  redis.call('UNLINK', unpack(names_behind(one.key)))
elseif said == 'two_sets' then
  local right = rightful()
  for _, set in ipairs(one.sets) do
    if set ~= right then leave(set) end
  end
  redis.call('HSET', one.key, 'state', STATES[right.name])
elseif said == 'row_in_no_set' then
  file(one.state == 'dead' and 'dead' or 'pending')
elseif said == 'nothing_out' then
  file('pending')
end
if holds and not one.exists then
  redis.call('DEL', parked)
  if said == '' then said = 'dedup_without_row' end
end
return said
