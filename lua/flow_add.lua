-- flow_add: a parent and its flat children in one queue, all at once (protocol section 6); the policy is fp.
-- KEYS[1] emq:{q}:job:<id>  the parent's row
-- KEYS[2] emq:{q}:job:<id>:dependencies
-- KEYS[3] emq:{q}:pending
-- KEYS[4...] emq:{q}:job:<id>  the children's rows, in the order of the arguments
-- ARGV[1] parent id
-- ARGV[2] payload  opaque bytes
-- ARGV[3] n  children, 1 or more
-- ARGV[4...] child id, payload  pairs
-- returns n admitted | 0 where a row of the flow stands already (nothing is written) | EMQKIND
-- include: lane
local n, p = tonumber(ARGV[3]), string.sub(KEYS[3], 1, -8)
if not (n and n >= 1) or #ARGV ~= 3 + 2 * n or #KEYS ~= 3 + n then
  return redis.error_reply('ERR flow n must be the number of children, 1 or more, with a key and two arguments each')
end
local standing = redis.call('EXISTS', KEYS[1])
for i = 0, n do
  local id = i == 0 and ARGV[1] or ARGV[2 + 2 * i]
  if string.sub(id, 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
  if i > 0 then standing = standing + redis.call('EXISTS', KEYS[3 + i]) end
end
redis.call('GET', KEYS[2])
redis.call('ZCARD', KEYS[3])
redis.call('LLEN', p .. 'ready')
local told = {}
for i, name in ipairs({'processed', 'failed', 'unsuccessful'}) do
  told[i] = KEYS[1] .. ':' .. name
  redis.call('HLEN', told[i])
end
if standing > 0 then return 0 end

-- What children told a row of this id that is gone is not told to this one.
redis.call('UNLINK', unpack(told))
redis.call('HSET', KEYS[1], 'state', 'awaiting_children', 'attempts', '0', 'payload', ARGV[2])
redis.call('SET', KEYS[2], ARGV[3])
for i = 1, n do
  redis.call('HSET', KEYS[3 + i], 'state', 'pending', 'attempts', '0', 'payload', ARGV[3 + 2 * i], 'parent', ARGV[1],
    'parent_policy', 'fp')
  redis.call('ZADD', KEYS[3], 0, ARGV[2 + 2 * i])
end
wake_flat(p, n)
return n
