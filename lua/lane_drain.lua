-- lane_drain: deletes the waiting jobs of one lane, with rows and logs; a child of a flow counts as dead. What is in hand goes
-- on. Bounded: called again until it answers 0.
-- KEYS[1] emq:{q}:
-- KEYS[2] emq:{q}:g:<group>:pending
-- KEYS[3] emq:{q}:ring
-- ARGV[1] group
-- returns the count of deleted jobs, at most 500 a call
-- include: lane
-- include: flow
-- include: removing
local p, group = KEYS[1], ARGV[1]
local ids = redis.call('ZRANGE', KEYS[2], 0, 499)
local children = {}
for i, id in ipairs(ids) do
  children[i] = read_child(p, id)
  touch_removal(p, id, group, children[i])
end
redis.call('LLEN', KEYS[3])

for i, id in ipairs(ids) do
  remove_job(p, id, group)
  died(p, children[i], 'drained')
end
-- A lane that was empty all along may still have an entry.
if redis.call('ZCARD', KEYS[2]) == 0 then redis.call('LREM', KEYS[3], 0, group) end
return #ids
