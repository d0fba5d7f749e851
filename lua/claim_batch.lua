-- claim_batch: takes the lowest ids of flat pending under one shared deadline, as the reference does; serves no lane.
-- KEYS[1] emq:{q}:pending
-- KEYS[2] emq:{q}:active
-- ARGV[1] emq:{q}:job:  what a row's key starts with
-- ARGV[2] lease_ms
-- ARGV[3] size  at most so many jobs
-- returns list of {id, payload or nil, attempts}, oldest mint first, short when fewer are pending
-- include: now
-- include: chunks
local size = tonumber(ARGV[3])
if size < 1 then return {} end
local ids = redis.call('ZRANGE', KEYS[1], 0, size - 1)
local deadline = now_ms() + tonumber(ARGV[2])
local jobs, leases = {}, {}
redis.call('ZCARD', KEYS[2])
for i, id in ipairs(ids) do
  local row = redis.call('HMGET', ARGV[1] .. id, 'payload', 'attempts')
  jobs[i] = {id, row[1], (tonumber(row[2]) or 0) + 1}
  leases[2 * i - 1], leases[2 * i] = deadline, id
end
for _, job in ipairs(jobs) do redis.call('HSET', ARGV[1] .. job[1], 'state', 'active', 'attempts', job[3]) end
in_chunks(ids, function(...) redis.call('ZREM', KEYS[1], ...) end)
in_chunks(leases, function(...) redis.call('ZADD', KEYS[2], ...) end)
return jobs
