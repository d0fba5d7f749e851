-- enqueue_many: admits many flat jobs in one round trip, with a verdict each (ours).
-- An id that comes twice in one call is admitted once.
-- KEYS[1] emq:{q}:pending
-- ARGV[1] emq:{q}:
-- ARGV[2...] id, payload  pairs, a few hundred a call
-- returns a verdict per pair, in order: 1 admitted | 0 duplicate | -1 the id is not JOB-namespaced
-- include: chunks
-- include: waking
local p, prefix = ARGV[1], ARGV[1] .. 'job:'
local keys = {}
for i = 2, #ARGV, 2 do keys[#keys + 1] = prefix .. ARGV[i] end
local taken = 0
in_chunks(keys, function(...) taken = taken + redis.call('EXISTS', ...) end)
redis.call('ZCARD', KEYS[1])
local tokens = redis.call('LLEN', p .. 'ready')
local fresh = {}
if taken > 0 then
  for i, key in ipairs(keys) do fresh[i] = redis.call('EXISTS', key) == 0 end
end

local verdicts, members, seen, admitted = {}, {}, {}, 0
for i, key in ipairs(keys) do
  local id = ARGV[2 * i]
  if string.sub(id, 1, 3) ~= 'JOB' then
    verdicts[i] = -1
  elseif seen[id] or (taken > 0 and not fresh[i]) then
    verdicts[i] = 0
  else
    verdicts[i], seen[id], admitted = 1, true, admitted + 1
    redis.call('HSET', key, 'state', 'pending', 'attempts', '0', 'payload', ARGV[2 * i + 1])
    members[2 * admitted - 1], members[2 * admitted] = 0, id
  end
end
in_chunks(members, function(...) redis.call('ZADD', KEYS[1], ...) end)
wake_flat(p, admitted, tokens)
return verdicts
