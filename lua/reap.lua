-- reap: jobs whose lease ran out go back to pending or their lane; their groups' slots are freed.
-- `held` stays on the row: the next claim counts the crash. An id whose row is gone, dead, waits for children, or is scheduled
-- and in the schedule is only dropped from active.
-- KEYS[1] emq:{q}:active
-- KEYS[2] emq:{q}:pending
-- ARGV[1] emq:{q}:
-- returns the count of expired leases that were selected, at most 100 a pass
-- include: now
local p = ARGV[1]
local expired = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms(), 'LIMIT', 0, 100)
if #expired == 0 then return 0 end

-- include: chunks
-- include: lanes
-- include: waiting
-- include: recovery
local members, back = recoverable(p, expired)

drop_leases(p, members)
remove(p .. 'schedule', back)
put_back(p, back)
offer_lanes(p, members)
return #expired
