-- extend_lock: a worker's checkpoint of one lease. Never shortens it, never revives one that was reaped.
-- Marks the job as held by a keeper (`lock`, twice the lease), so that nobody removes it, and the queue (`kept`) as keep does.
-- KEYS[1] emq:{q}:active
-- KEYS[2] emq:{q}:job:<id>  the row
-- ARGV[1] id
-- ARGV[2] token  attempts, as a string; `token:random` also fences by the row's `held`
-- ARGV[3] lease_ms  from now, on the server's clock
-- returns 1 extended | 0 not active | -1 gone | EMQSTALE
-- include: now
-- include: held
-- include: kept
local row = redis.call('HMGET', KEYS[2], 'attempts', 'held')
local lease = tonumber(ARGV[3])
if not row[1] then return -1 end
if is_stale(row[1], row[2], ARGV[2]) then return redis.error_reply('EMQSTALE extend token mismatch') end
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
redis.call('EXISTS', KEYS[2] .. ':lock')
local p = string.sub(KEYS[1], 1, -7)
touch_kept(p)
-- Removes nothing: see keep, leases are kept on a server at its maxmemory too.
redis.call('ZREM', KEYS[1], '')
redis.call('ZADD', KEYS[1], 'XX', 'GT', now_ms() + lease, ARGV[1])
redis.call('SET', KEYS[2] .. ':lock', token_of(ARGV[2]), 'PX', 2 * lease)
if is_first(row) then note_kept(p, 2 * lease) end
return 1
