-- flow_hold: a parent waits outside every set until its children have reported (protocol section 6).
-- Ours is idempotent, so that a producer that died half-way adds again: a row that stands and names the same parent is left.
-- KEYS[1] emq:{q}:job:<id>  the parent's row
-- KEYS[2] emq:{q}:job:<id>:dependencies
-- ARGV[1] id
-- ARGV[2] payload  opaque bytes
-- ARGV[3] n  children, 1 or more
-- ARGV[4...] field, value  pairs for the row: parent, parent_queue, parent_policy, group
-- returns 1 held | 0 stands already | EMQKIND | EMQSTATE where the row names another parent
if string.sub(ARGV[1], 1, 3) ~= 'JOB' then
  return redis.error_reply('EMQKIND job id must be JOB-namespaced')
end
local parent = false
for i = 4, #ARGV, 2 do
  if ARGV[i] == 'parent' then parent = ARGV[i + 1] end
end
redis.call('GET', KEYS[2])
if redis.call('EXISTS', KEYS[1]) == 1 then
  if redis.call('HGET', KEYS[1], 'parent') ~= parent then
    return redis.error_reply('EMQSTATE flow row names another parent')
  end
  return 0
end
redis.call('HSET', KEYS[1], 'state', 'awaiting_children', 'attempts', '0', 'payload', ARGV[2], unpack(ARGV, 4))
redis.call('SET', KEYS[2], ARGV[3])
return 1
