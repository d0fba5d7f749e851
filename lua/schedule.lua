-- schedule: admits a job now and fences it out of pending until its run-at (enqueue_at, enqueue_in).
-- Any number is taken, also a negative one: the guard is the caller's, as in the seeds.
-- KEYS[1] emq:{q}:job:<id>  the row
-- KEYS[2] emq:{q}:schedule
-- ARGV[1] id
-- ARGV[2] payload  opaque bytes
-- ARGV[3] mode  `in`: value is a delay, priced on the server's clock; anything else: an absolute run-at
-- ARGV[4] value  ms
-- returns 1 admitted | 0 duplicate | EMQKIND
-- include: now
-- include: due
if string.sub(ARGV[1], 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('ZCARD', KEYS[2])
local score = due_at(ARGV[3], ARGV[4])
if not score then return redis.error_reply('ERR schedule value must be a number of milliseconds') end
redis.call('HSET', KEYS[1], 'state', 'scheduled', 'attempts', '0', 'payload', ARGV[2])
redis.call('ZADD', KEYS[2], score, ARGV[1])
return 1
