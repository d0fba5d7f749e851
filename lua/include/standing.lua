-- Where one id stands, and what is wrong with that. Reads only. `hint` is a lane in which it was seen, or nil.
local BEHIND = {'logs', 'lock', 'dependencies', 'processed', 'failed', 'unsuccessful'}

-- {key, exists, state, group, sets}; a set is {key, name, score, group}, in the order in which they say what a job is.
local function look(p, id, hint)
  local key = p .. 'job:' .. id
  local row = redis.call('HMGET', key, 'state', 'group')
  local one = {key = key, exists = redis.call('EXISTS', key) == 1, state = row[1] or '', group = row[2], sets = {}}
  local places = {{name = 'active'}}
  if row[2] then places[2] = {name = 'lane', group = row[2]} end
  places[#places + 1] = {name = 'pending'}
  if hint and hint ~= row[2] then places[#places + 1] = {name = 'lane', group = hint} end
  places[#places + 1], places[#places + 2] = {name = 'schedule'}, {name = 'dead'}
  for _, place in ipairs(places) do
    place.key = place.group and lane_key(p, place.group) or p .. place.name
    place.score = redis.call('ZSCORE', place.key, id)
    if place.score then one.sets[#one.sets + 1] = place end
  end
  return one
end

local function names_behind(key)
  local names = {}
  for i, name in ipairs(BEHIND) do names[i] = key .. ':' .. name end
  return names
end

-- The name of what is wrong, '' when all is well.
local function complaint(one)
  local found = #one.sets
  if not one.exists then
    if found > 0 then return 'id_without_row' end
    return redis.call('EXISTS', unpack(names_behind(one.key))) > 0 and 'subkeys_without_row' or ''
  end
  if found > 1 then return 'two_sets' end
  if found == 1 then return '' end
  if one.state ~= 'awaiting_children' then return 'row_in_no_set' end
  return (tonumber(redis.call('GET', one.key .. ':dependencies')) or 0) < 1 and 'nothing_out' or ''
end
