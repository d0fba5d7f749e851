-- flow_hold: a parent waits outside every set until its children have reported (protocol section 6).
-- Ours is idempotent, so that a producer that died half-way adds again: a row that stands is left when it is the same one.
-- One that is dead tells its own parent once more.
-- KEYS[1] emq:{q}:job:<id>  the parent's row
-- KEYS[2] emq:{q}:job:<id>:dependencies
-- ARGV[1] id
-- ARGV[2] payload  opaque bytes
-- ARGV[3] n  children, 1 or more
-- ARGV[4...] field, value  pairs for the row: parent, parent_queue, parent_policy, group, and ours: children, trace
-- returns 1 held | 0 stands already | EMQKIND | EMQSTATE where the row names another parent, or other children
-- include: lane
-- include: flow
if string.sub(ARGV[1], 1, 3) ~= 'JOB' then
  return redis.error_reply('EMQKIND job id must be JOB-namespaced')
end
local n, fields = tonumber(ARGV[3]), {}
if not (n and n >= 1 and n % 1 == 0) then return redis.error_reply('ERR flow n must be a whole number above 0') end
for i = 4, #ARGV, 2 do fields[ARGV[i]] = ARGV[i + 1] end
redis.call('GET', KEYS[2])
local told = {}
for i, name in ipairs({'processed', 'failed', 'unsuccessful'}) do
  told[i] = KEYS[1] .. ':' .. name
  redis.call('HLEN', told[i])
end
local p = string.sub(KEYS[1], 1, -5 - #ARGV[1])
local row = redis.call('HMGET', KEYS[1], 'parent', 'parent_queue', 'children', 'state', 'last_error')
local child = read_child(p, ARGV[1])
touch_ended(p, child)
if redis.call('EXISTS', KEYS[1]) == 1 then
  if row[1] ~= (fields['parent'] or false) or (row[2] or '') ~= (fields['parent_queue'] or '') then
    return redis.error_reply('EMQSTATE flow row names another parent')
  end
  if row[3] and fields['children'] and row[3] ~= fields['children'] then
    return redis.error_reply('EMQSTATE flow row has other children')
  end
  if row[4] == 'dead' then died(p, child, row[5] or '') end
  return 0
end
-- What children told a row of this id that is gone is not told to this one.
redis.call('UNLINK', unpack(told))
redis.call('HSET', KEYS[1], 'state', 'awaiting_children', 'attempts', '0', 'payload', ARGV[2], unpack(ARGV, 4))
redis.call('SET', KEYS[2], ARGV[3])
return 1
