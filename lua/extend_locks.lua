-- extend_locks: a lease keeper's extension of all that it holds. Never shortens a lease, never revives one that was reaped.
-- Marks each job as held by a keeper (`lock`, twice the lease), so that nobody removes it, and the queue (`kept`) as keep does.
-- KEYS[1] emq:{q}:active
-- ARGV[1] emq:{q}:
-- ARGV[2] lease_ms  from now, on the server's clock
-- ARGV[3...] id, token  pairs; a token may be `token:random`, which also fences by the row's `held`
-- returns list of the ids that could not be extended: stale, gone, or not active
-- include: now
-- include: chunks
-- include: held
-- include: kept
local p, lease = ARGV[1], tonumber(ARGV[2])
local deadline = now_ms() + lease
local lost, leases, marks, first = {}, {}, {}, false
touch_kept(p)
for i = 3, #ARGV, 2 do
  local id, token = ARGV[i], ARGV[i + 1]
  local row = redis.call('HMGET', p .. 'job:' .. id, 'attempts', 'held')
  redis.call('EXISTS', p .. 'job:' .. id .. ':lock')
  if not row[1] or is_stale(row[1], row[2], token) or not redis.call('ZSCORE', KEYS[1], id) then
    lost[#lost + 1] = id
  else
    leases[#leases + 1], leases[#leases + 2] = deadline, id
    marks[#marks + 1] = {p .. 'job:' .. id .. ':lock', token_of(token)}
    first = first or is_first(row)
  end
end
-- Removes nothing: see keep, leases are kept on a server at its maxmemory too.
redis.call('ZREM', KEYS[1], '')
in_chunks(leases, function(...) redis.call('ZADD', KEYS[1], 'XX', 'GT', ...) end)
for _, mark in ipairs(marks) do redis.call('SET', mark[1], mark[2], 'PX', 2 * lease) end
if first then note_kept(p, 2 * lease) end
return lost
