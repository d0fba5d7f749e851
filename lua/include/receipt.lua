-- Receipts make a claim safe to send again (protocol section 4): the last claim of a consumer, as text
-- `number random id token id token …`.

local function receipt_number(receipt)
  return receipt and tonumber(string.match(receipt, '^%d+'))
end

-- What is still in hand of a receipt whose reply was never read: active, with attempts and `held` as written then. It is
-- extended and handed out again; nothing new is taken. A job that was disowned has no `held` and is left alone.
local function replay(p, active, receipt, deadline)
  local words = {}
  for word in string.gmatch(receipt, '%S+') do words[#words + 1] = word end
  local jobs, leases = {}, {}
  for i = 3, #words, 2 do
    local id, token = words[i], words[i + 1]
    local row = redis.call('HMGET', p .. 'job:' .. id, 'attempts', 'held', 'payload', 'group', 'failures', 'crashes')
    if row[1] == token and row[2] == token .. ':' .. words[2] and redis.call('ZSCORE', active, id) then
      local crashes = tonumber(string.match(row[6] or '', '^(%d+):' .. token .. '$')) or 0
      for _, value in ipairs({id, row[3], token, row[4] or '', row[5] or '0', crashes}) do jobs[#jobs + 1] = value end
      leases[#leases + 1] = deadline
      leases[#leases + 1] = id
    end
  end
  if #leases > 0 then redis.call('ZADD', active, 'XX', 'GT', unpack(leases)) end
  return {tonumber(words[1]), 'replayed', words[2], jobs, {}}
end
