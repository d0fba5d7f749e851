-- keep: extends the leases of all that a worker holds, in one call (ours). Never shortens and never revives: what is not in
-- active was reaped.
-- KEYS[1] emq:{q}:active
-- ARGV[1] emq:{q}:
-- ARGV[2] lease_ms
-- ARGV[3...] id, held  pairs
-- returns {id, reason, …} of those that could not be extended: gone | stale | not_active
-- include: now
-- include: chunks
-- include: held
local p, deadline = ARGV[1], now_ms() + tonumber(ARGV[2])
local lost, leases = {}, {}
for i = 3, #ARGV, 2 do
  local id = ARGV[i]
  local row = redis.call('HMGET', p .. 'job:' .. id, 'attempts', 'held')
  local reason = nil
  if not row[1] then
    reason = 'gone'
  elseif is_stale(row[1], row[2], ARGV[i + 1]) then
    reason = 'stale'
  elseif not redis.call('ZSCORE', KEYS[1], id) then
    reason = 'not_active'
  end
  if reason then
    lost[#lost + 1], lost[#lost + 2] = id, reason
  else
    leases[#leases + 1], leases[#leases + 2] = deadline, id
  end
end
in_chunks(leases, function(...) redis.call('ZADD', KEYS[1], 'XX', 'GT', ...) end)
return lost
