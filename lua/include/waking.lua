-- Readiness tokens (protocol section 4, "wake"). p is the queue base `emq:{q}:`.
local TOKENS = 64
local READY_MS = 60000

local function push_tokens(key, count)
  local tokens = {}
  for i = 1, math.min(count, TOKENS) do tokens[i] = '1' end
  local length = redis.call('LPUSH', key, unpack(tokens))
  if length > TOKENS then redis.call('LTRIM', key, 0, TOKENS - 1) end
  return length
end

-- Flat jobs have tokens of their own: a foreign consumer parks on `wake` and serves only the ring. The first token sets
-- the expiry, so that a queue without a consumer of ours keeps no list. `standing` is what the caller has read of its length:
-- a full one stays as it is.
local function wake_flat(p, count, standing)
  local ready = p .. 'ready'
  if count < 1 or standing == TOKENS then return end
  if push_tokens(ready, count) <= count then redis.call('PEXPIRE', ready, READY_MS) end
end
