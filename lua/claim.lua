-- claim: takes the lowest id of flat pending under a lease, as the reference does; serves no lane, counts no crash.
-- KEYS[1] emq:{q}:pending
-- KEYS[2] emq:{q}:active
-- ARGV[1] emq:{q}:job:  what a row's key starts with
-- ARGV[2] lease_ms
-- returns {} | {id, payload or nil, attempts}  attempts is the token
-- include: now
local id = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
if not id then return {} end
local key, deadline = ARGV[1] .. id, now_ms() + tonumber(ARGV[2])
local payload = redis.call('HGET', key, 'payload')
redis.call('ZSCORE', KEYS[2], id)
-- The one write that can still refuse (attempts that are no number) comes first.
local attempts = redis.call('HINCRBY', key, 'attempts', 1)
redis.call('HSET', key, 'state', 'active')
redis.call('ZREM', KEYS[1], id)
redis.call('ZADD', KEYS[2], deadline, id)
return {id, payload, attempts}
