-- drain: deletes waiting jobs, flat ones and, where asked, scheduled ones, with rows and logs; lanes have lane_drain. A child
-- of a flow counts as dead. What is in hand and the repeats go on: what a foreign client has put back while it is held or dead
-- only leaves the set. Bounded: called again until it answers 0.
-- KEYS[1] emq:{q}:
-- KEYS[2] emq:{q}:pending
-- KEYS[3...] emq:{q}:schedule  optional: drained too
-- returns the count of jobs that were taken out, at most 200 a call
-- include: now
-- include: lane
-- include: flow
-- include: removing
local p, left, ids = KEYS[1], 200, {}
for i = 2, #KEYS do
  local page = left > 0 and redis.call('ZRANGE', KEYS[i], 0, left - 1) or {}
  for _, id in ipairs(page) do ids[#ids + 1] = id end
  left = left - #page
end
local found = read_removals(p, ids)

remove_all(p, found, 'drained', {unpack(KEYS, 2)})
return #ids
