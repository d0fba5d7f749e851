-- Receipts make a claim safe to send again (protocol section 4): the last claim of a consumer, as text
-- `number random id token id token …`.

-- What is still in hand of a receipt whose reply was never read: active, with attempts and `held` as written then. It is
-- extended and handed out again, nothing new is taken; the receipt lives on with the leases, since this reply may be lost
-- too. A job that was disowned has no `held` and is left alone.
local function replay(p, active, claimed, receipt, now, lease)
  local words = {}
  for word in string.gmatch(receipt, '%S+') do words[#words + 1] = word end
  local number, random = tonumber(words[1]), words[2]
  local jobs, leases, kin, deadline = {}, {}, {}, string.format('%.0f', now + lease)
  for i = 3, #words, 2 do
    local id, token = words[i], words[i + 1]
    local row = redis.call('HMGET', p .. 'job:' .. id, 'attempts', 'held', 'payload', 'group', 'failures', 'crashes',
      'parent')
    if row[1] == token and row[2] == token .. ':' .. random and redis.call('ZSCORE', active, id) then
      local count, counted = string.match(row[6] or '', '^(%d+):(%d+)$')
      local n = #jobs
      jobs[n + 1], jobs[n + 2], jobs[n + 3] = id, row[3], token
      jobs[n + 4], jobs[n + 5], jobs[n + 6] = row[4] or '', row[5] or '0', counted == token and tonumber(count) or 0
      leases[#leases + 1], leases[#leases + 2] = deadline, id
      if row[7] then kin[#kin + 1] = id end
    end
  end
  -- In this order: a server at its maxmemory refuses what may grow, until a script has written something that cannot.
  redis.call('PEXPIRE', claimed, lease, 'GT')
  if #leases > 0 then redis.call('ZADD', active, 'XX', 'GT', unpack(leases)) end
  return {number, 'replayed', random, jobs, {}, kin}
end
