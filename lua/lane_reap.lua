-- lane_reap: expired leases of one lane only, back to it; those of other lanes stay (reap_group in the protocol).
-- KEYS[1] emq:{q}:active
-- KEYS[2] emq:{q}:
-- ARGV[1] group
-- ARGV[2] limit  at most so many jobs
-- returns the count
-- include: now
-- include: chunks
-- include: lanes
-- include: waiting
-- include: recovery
local p, group, limit = KEYS[2], ARGV[1], tonumber(ARGV[2])
-- The leases of other lanes are looked past, in bounded pages.
local LOOK = 5000
local now, found, at = now_ms(), {}, 0
while #found < limit and at < LOOK do
  local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', at, 500)
  if #ids == 0 then break end
  at = at + #ids
  for _, id in ipairs(ids) do
    if #found < limit and redis.call('HGET', p .. 'job:' .. id, 'group') == group then found[#found + 1] = id end
  end
end
local members, back = recoverable(p, found)

drop_leases(p, members)
remove(p .. 'schedule', back)
put_back(p, back)
offer_lanes(p, members)
return #found
