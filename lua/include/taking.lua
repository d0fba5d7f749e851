-- What claim_many takes, in the writing pass.

-- Rows and active; answers the words of the receipt.
local function hand_out(claim, random, deadline)
  local jobs, leases, words, rows, held = claim.jobs, {}, {}, claim.rows, {}
  for _, token in pairs(claim.tokens) do held[token] = token .. ':' .. random end
  for i = 1, claim.count do
    local n = 6 * i - 5
    local id, token, crashes = jobs[n], jobs[n + 2], jobs[n + 5]
    if crashes > 0 then
      redis.call('HSET', rows .. id, 'state', 'active', 'attempts', token, 'held', held[token],
        'crashes', crashes .. ':' .. token)
    else
      redis.call('HSET', rows .. id, 'state', 'active', 'attempts', token, 'held', held[token])
    end
    leases[2 * i - 1], leases[2 * i] = deadline, id
    words[2 * i - 1], words[2 * i] = id, token
  end
  redis.call('ZADD', claim.active, unpack(leases))
  return table.concat(words, ' ')
end
