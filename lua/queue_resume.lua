-- queue_resume: the queue is served again; a consumer that parks is woken where something waits.
-- KEYS[1] emq:{q}:meta
-- returns 1
-- include: lane
local p = string.sub(KEYS[1], 1, -5)
redis.call('HGET', KEYS[1], 'paused')
local waiting = redis.call('ZCARD', p .. 'pending') + redis.call('LLEN', p .. 'ring')
redis.call('LLEN', p .. 'ready')
redis.call('HDEL', KEYS[1], 'paused')
wake_flat(p, waiting)
return 1
