-- What claim_many takes, in the writing pass.

local function taken_ids(claim)
  local ids = claim.ids
  if ids then return ids end
  ids = {}
  for i = 1, claim.count do ids[i] = claim.jobs[6 * i - 5] end
  claim.ids = ids
  return ids
end

-- What a receipt says of them: id and token of each.
local function words_of(claim, ids)
  local _, token = next(claim.tokens)
  if next(claim.tokens, (next(claim.tokens))) == nil then return table.concat(ids, ' ' .. token .. ' ') .. ' ' .. token end
  local words = {}
  for i = 1, claim.count do words[2 * i - 1], words[2 * i] = ids[i], claim.jobs[6 * i - 3] end
  return table.concat(words, ' ')
end

-- Rows and active; answers the words of the receipt.
local function hand_out(claim, random, deadline)
  local jobs, leases, rows, held, ids, call, m = claim.jobs, {}, claim.rows, {}, taken_ids(claim), redis.call, 0
  for _, token in pairs(claim.tokens) do held[token] = token .. ':' .. random end
  for i = 1, claim.count do
    local n, id = 6 * i, ids[i]
    local token, crashes = jobs[n - 3], jobs[n]
    if crashes > 0 then
      call('HSET', rows .. id, 'state', 'active', 'attempts', token, 'held', held[token], 'crashes', crashes .. ':' .. token)
    else
      call('HSET', rows .. id, 'state', 'active', 'attempts', token, 'held', held[token])
    end
    leases[m + 1] = deadline
    m = m + 2
    leases[m] = id
  end
  redis.call('ZADD', claim.active, unpack(leases))
  return words_of(claim, ids)
end
