-- cancel: asks for the end of one job (ours). A job that does not run is removed; one that does gets the request on its row
-- and, where somebody listens, on the queue's cancel channel; whoever claims it after a crash buries it.
-- KEYS[1] emq:{q}:job:<id>  the row
-- KEYS[2] emq:{q}:pending
-- KEYS[3] emq:{q}:active
-- KEYS[4] emq:{q}:schedule
-- ARGV[1] id
-- ARGV[2] reason
-- ARGV[3] emq:{q}:
-- returns removed | asked | ended (it is dead) | gone
-- include: lane
-- include: flow
-- include: removing
local id, p = ARGV[1], ARGV[3]
local row = redis.call('HMGET', KEYS[1], 'state', 'group')
if not row[1] and redis.call('EXISTS', KEYS[1]) == 0 then return 'gone' end
if row[1] == 'dead' then return 'ended' end
local child = read_child(p, id)
touch_removal(p, id, row[2], child)
if redis.call('ZSCORE', KEYS[3], id) then
  redis.call('HSET', KEYS[1], 'cancel', ARGV[2])
  -- A server that refuses the channel does not refuse the request: it arrives when the lease is extended.
  redis.pcall('PUBLISH', p .. 'cancel', cjson.encode({id = id, reason = ARGV[2]}))
  return 'asked'
end
remove_job(p, id, row[2])
died(p, child, 'cancelled: ' .. ARGV[2])
return 'removed'
