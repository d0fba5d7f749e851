-- update_data: another payload for a job, wherever it is; a claim that is out keeps the one it has.
-- KEYS[1] emq:{q}:job:<id>  the row
-- ARGV[1] payload  opaque bytes
-- returns 1 | -1 gone
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
redis.call('HSET', KEYS[1], 'payload', ARGV[1])
return 1
