-- obliterate: deletes a paused queue piece by piece; called again until it answers 0. A child of a flow counts as dead. Jobs are
-- found by the sets, and by the lanes that the ring, a pause, a limit, a counter or a weight names; ids that nothing names are
-- passed on by the host. Reports to parents in other queues stay in the outbox, to be delivered.
-- KEYS[1] emq:{q}:meta
-- KEYS[2] emq:{q}:
-- ARGV[1] force  `force`: jobs in hand too; '' none
-- ARGV[2] budget  at most so many ids and names in this call
-- ARGV[3...] keep, id  optional: `keep` leaves the queue's pause standing; then ids of rows that no set names
-- returns 0 done | 1 more | EMQSTATE
-- include: chunks
-- include: lanes
-- include: flow
-- include: obliterating
local p, left = KEYS[2], tonumber(ARGV[2])
if not left or left < 1 then return redis.error_reply('ERR obliterate budget must be a number above 0') end
if redis.call('HEXISTS', KEYS[1], 'paused') == 0 then return redis.error_reply('EMQSTATE not paused') end
if redis.call('ZCARD', p .. 'active') > 0 and ARGV[1] ~= 'force' then
  return redis.error_reply('EMQSTATE active jobs present')
end

-- Jobs in hand come first: a lane that is reached has none of them any more, so its counter can go with it.
local work = new_work(p, left)
for i = 4, #ARGV do find(work, ARGV[i]) end
for _, name in ipairs({'active', 'pending', 'schedule', 'dead'}) do find_set(work, name) end
find_lanes(work, 'LRANGE', 'ring')
find_lanes(work, 'SRANDMEMBER', 'paused')
for _, name in ipairs({'glimit', 'gactive', 'gweight'}) do find_lanes(work, 'HRANDFIELD', name) end
local repeats, records, named = {}, {}, 0
for _, set in ipairs({'repeat', 'cron'}) do
  repeats[set] = work.left > named and redis.call('ZRANGE', p .. set, 0, work.left - named - 1) or {}
  for _, name in ipairs(repeats[set]) do
    named = named + 1
    records[named] = p .. 'repeat:' .. name
    redis.call('HLEN', records[named])
  end
end
read_found(work)
local rest = {}
for i, name in ipairs({'ring', 'paused', 'glimit', 'gactive', 'gweight', 'repeat', 'cron', 'wake', 'ready', 'limiter', 'kept',
  'metrics:completed', 'metrics:failed', 'flow:outbox:malformed'}) do rest[i] = p .. name end
redis.call('EXISTS', unpack(rest))

delete_lanes(work)
delete_jobs(work)
in_chunks(records, function(...) redis.call('UNLINK', ...) end)
for set, names in pairs(repeats) do call_chunked('ZREM', p .. set, names) end
-- With budget left all that was named is gone, unless a death has just put a parent into a set.
if work.left - named < 1 or work.told then return 1 end
redis.call('UNLINK', unpack(rest))
if ARGV[3] ~= 'keep' then redis.call('UNLINK', KEYS[1]) end
return 0
