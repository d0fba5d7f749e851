-- remove_job: deletes one job wherever it is. A job in a worker's hands is refused; ours also one with a lease that runs and
-- a child of a flow that has not reported, unless forced: then the child counts as dead by its policy.
-- KEYS[1] emq:{q}:job:<id>  the row
-- KEYS[2] emq:{q}:pending
-- KEYS[3] emq:{q}:active
-- KEYS[4] emq:{q}:schedule
-- KEYS[5] emq:{q}:dead
-- KEYS[6] emq:{q}:de:<key>  released where it holds this id
-- ARGV[1] id
-- ARGV[2] dedup key  '' for none; the one on the row is released in any case
-- ARGV[3...] how  optional: `force`, or `dead`: only a dead job
-- returns 1 removed | -1 gone | EMQLOCK | EMQSTATE
-- include: now
-- include: lane
-- include: flow
-- include: removing
local id, p, forced = ARGV[1], string.sub(KEYS[2], 1, -8), ARGV[3] == 'force'
local row = redis.call('HMGET', KEYS[1], 'state', 'group', 'lock')
local exists = redis.call('EXISTS', KEYS[1]) == 1
local parked = ARGV[2] ~= '' and redis.call('GET', KEYS[6])
if not exists then return -1 end
local child = read_child(p, id)
touch_removal(p, id, row[2], child)
if ARGV[3] == 'dead' and (row[1] ~= 'dead' or not redis.call('ZSCORE', KEYS[5], id)) then
  return redis.error_reply('EMQSTATE not dead')
end
if not forced then
  local lease = tonumber(redis.call('ZSCORE', KEYS[3], id))
  if row[3] or redis.call('EXISTS', KEYS[1] .. ':lock') == 1 or (lease and lease > now_ms()) then
    return redis.error_reply('EMQLOCK job is locked')
  end
  if child.parent and row[1] ~= 'dead' then return redis.error_reply('EMQSTATE job is a child of a flow') end
end
remove_job(p, id, row[2])
if parked == id then redis.call('DEL', KEYS[6]) end
if row[1] == 'dead' then release_dedup(p, child) else died(p, child, 'removed') end
return 1
