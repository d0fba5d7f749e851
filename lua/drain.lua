-- drain: deletes waiting jobs, flat ones and, where asked, scheduled ones, with rows and logs; lanes have lane_drain. A child
-- of a flow counts as dead. What is in hand and the repeats go on. Bounded: called again until it answers 0.
-- KEYS[1] emq:{q}:
-- KEYS[2] emq:{q}:pending
-- KEYS[3...] emq:{q}:schedule  optional: drained too
-- returns the count of deleted jobs, at most 500 a call
-- include: lane
-- include: flow
-- include: removing
local p, left, found = KEYS[1], 500, {}
for i = 2, #KEYS do
  for _, id in ipairs(left > 0 and redis.call('ZRANGE', KEYS[i], 0, left - 1) or {}) do found[#found + 1] = id end
  left = 500 - #found
end
local children, groups = {}, {}
for i, id in ipairs(found) do
  children[i], groups[i] = read_child(p, id), redis.call('HGET', p .. 'job:' .. id, 'group')
  touch_removal(p, id, groups[i], children[i])
end

for i, id in ipairs(found) do
  remove_job(p, id, groups[i])
  died(p, children[i], 'drained')
end
return #found
