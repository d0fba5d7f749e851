-- keep: extends the leases of all that a worker holds, in one call (ours). Never shortens and never revives: what is not in
-- active was reaped. Marks each job as held by a keeper (`lock`, twice the lease), so that nobody removes it, and the queue as
-- long as there may be such a mark of a first claim (`kept`).
-- KEYS[1] emq:{q}:active
-- ARGV[1] emq:{q}:
-- ARGV[2] lease_ms  from now, on the server's clock
-- ARGV[3...] id, held  pairs
-- returns {id, reason, …} of those that could not be extended: gone | stale | not_active; and of those that are extended but
--   asked to end: cancel:<why>
-- include: now
-- include: chunks
-- include: held
-- include: holding
-- include: kept
local p, lease = ARGV[1], tonumber(ARGV[2])
if not lease or lease < 1 then return redis.error_reply('ERR keep lease_ms must be a number of milliseconds above 0') end
local pairs_held, locks = read_pairs(p, KEYS[1], 3, 'cancel'), {}
for i, one in ipairs(pairs_held) do locks[i] = p .. 'job:' .. one.id .. ':lock' end
in_chunks(locks, function(...) redis.call('EXISTS', ...) end)
touch_kept(p)

-- Removes nothing: a server at its maxmemory refuses what may grow, until a script has written something that cannot. Leases
-- are kept there too; those who reap, which is never refused, would start again what healthy workers run.
redis.call('ZREM', KEYS[1], '')
local lost, leases, first = {}, {}, false
local deadline, marked = string.format('%.0f', now_ms() + lease), string.format('%.0f', 2 * lease)
for i, one in ipairs(pairs_held) do
  if one.reason then
    lost[#lost + 1], lost[#lost + 2] = one.id, one.reason
  else
    leases[#leases + 1], leases[#leases + 2] = deadline, one.id
    if one.row[3] then lost[#lost + 1], lost[#lost + 2] = one.id, 'cancel:' .. one.row[3] end
    redis.call('SET', locks[i], token_of(one.held), 'PX', marked)
    first = first or is_first(one.row)
  end
end
in_chunks(leases, function(...) redis.call('ZADD', KEYS[1], 'XX', 'GT', ...) end)
if first then note_kept(p, 2 * lease) end
return lost
