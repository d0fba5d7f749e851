-- promote: releases the due jobs of the schedule, a flat one to pending, a grouped one to its lane.
-- A scheduled id without a row gets a skeleton row, as in the seeds. An id that somebody holds under a live lease, or whose
-- row is dead or waits for children, is only dropped from the schedule; one whose lease ran out leaves active too.
-- KEYS[1] emq:{q}:schedule
-- KEYS[2] emq:{q}:pending
-- ARGV[1] emq:{q}:
-- ARGV[2] batch  at most so many
-- returns the count of due ids that were selected
-- include: now
local p, now = ARGV[1], now_ms()
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, tonumber(ARGV[2]))
if #due == 0 then return 0 end

-- include: chunks
-- include: lanes
-- include: waiting
-- include: recovery
local members = read_members(p, due)
local leases = ask_chunked('ZMSCORE', p .. 'active', due)
local released, expired = {}, {}
for i, member in ipairs(members) do
  local lease = tonumber(leases[i])
  if not (lease and lease > now) and member.state ~= 'dead' and not is_waiting(p, member.id, member.state) then
    released[#released + 1] = member
    if lease then expired[#expired + 1] = member end
  end
end

remove(KEYS[1], members)
drop_leases(p, expired)
put_back(p, released)
offer_lanes(p, released)
return #due
