-- enqueue: admits a job to flat pending.
-- KEYS[1] emq:{q}:job:<id>  the row
-- KEYS[2] emq:{q}:pending
-- ARGV[1] id
-- ARGV[2] payload  opaque bytes
-- returns 1 admitted | 0 duplicate | EMQKIND
-- include: waking
if string.sub(ARGV[1], 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
local p = string.sub(KEYS[2], 1, -8)
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('ZCARD', KEYS[2])
local tokens = redis.call('LLEN', p .. 'ready')
redis.call('HSET', KEYS[1], 'state', 'pending', 'attempts', '0', 'payload', ARGV[2])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
wake_flat(p, 1, tokens)
return 1
