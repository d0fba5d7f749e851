-- lane_drain: deletes the waiting jobs of one lane, with rows and logs; a child of a flow counts as dead. What is in hand goes
-- on: what a foreign client has put back while it is held or dead only leaves the lane. Bounded: called again until it answers 0.
-- KEYS[1] emq:{q}:
-- KEYS[2] emq:{q}:g:<group>:pending
-- KEYS[3] emq:{q}:ring
-- ARGV[1] group
-- returns the count of jobs that were taken out, at most 200 a call
-- include: now
-- include: lane
-- include: flow
-- include: removing
local p, group = KEYS[1], ARGV[1]
local ids = redis.call('ZRANGE', KEYS[2], 0, 199)
local found = read_removals(p, ids, group)
redis.call('LLEN', KEYS[3])

remove_all(p, found, 'drained', {KEYS[2]})
-- A lane that was empty all along may still have an entry.
if redis.call('ZCARD', KEYS[2]) == 0 then redis.call('LREM', KEYS[3], 0, group) end
return #ids
