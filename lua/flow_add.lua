-- flow_add: a parent and its flat children in one queue, all at once (protocol section 6); the policy is fp.
-- KEYS[1] emq:{q}:job:<id>  the parent's row
-- KEYS[2] emq:{q}:job:<id>:dependencies
-- KEYS[3] emq:{q}:pending
-- KEYS[4...] emq:{q}:job:<id>  the children's rows, in the order of the arguments
-- ARGV[1] parent id
-- ARGV[2] payload  opaque bytes
-- ARGV[3] n  children
-- ARGV[4...] child id, payload  pairs
-- returns n admitted | 0 where a row of the flow stands already (nothing is written) | EMQKIND
-- include: lane
local children = {}
for i = 4, #ARGV, 2 do children[#children + 1] = {id = ARGV[i], payload = ARGV[i + 1], row = KEYS[4 + (i - 4) / 2]} end
for _, job in ipairs({{id = ARGV[1]}, unpack(children)}) do
  if string.sub(job.id, 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
end
local p = string.sub(KEYS[3], 1, -8)
redis.call('GET', KEYS[2])
redis.call('ZCARD', KEYS[3])
redis.call('LLEN', p .. 'ready')
local standing = redis.call('EXISTS', KEYS[1])
for _, child in ipairs(children) do standing = standing + redis.call('EXISTS', child.row) end
if standing > 0 then return 0 end

redis.call('HSET', KEYS[1], 'state', 'awaiting_children', 'attempts', '0', 'payload', ARGV[2])
redis.call('SET', KEYS[2], ARGV[3])
for _, child in ipairs(children) do
  redis.call('HSET', child.row, 'state', 'pending', 'attempts', '0', 'payload', child.payload, 'parent', ARGV[1],
    'parent_policy', 'fp')
  redis.call('ZADD', KEYS[3], 0, child.id)
end
wake_flat(p, #children)
return #children
