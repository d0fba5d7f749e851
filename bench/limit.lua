-- limit: claim and complete of many jobs, as plain as the protocol has them; what `python -m bench.limit` drives.
-- Fixed: it is the measure that the worker's own scripts are compared with. No fence of a claim, no lanes, no crash
-- count, no pause, no ceiling, no events.
-- KEYS[1] pending
-- KEYS[2] active
-- KEYS[3] metrics:completed
-- ARGV[1] emq:{q}:job:
-- ARGV[2] lease in ms
-- ARGV[3] how many to claim
-- ARGV[4...] id, token  of the jobs that have ended
-- returns id, token, payload of each job that was claimed
local rows = ARGV[1]
local keys, ids = {}, {}
for i = 4, #ARGV, 2 do
  if redis.call('HGET', rows .. ARGV[i], 'attempts') == ARGV[i + 1] then
    ids[#ids + 1] = ARGV[i]
    keys[#keys + 1] = rows .. ARGV[i]
  end
end
if #ids > 0 then
  redis.call('ZREM', KEYS[2], unpack(ids))
  redis.call('UNLINK', unpack(keys))
  redis.call('HINCRBY', KEYS[3], 'count', #ids)
end
local taken = redis.call('ZRANGE', KEYS[1], 0, ARGV[3] - 1)
if #taken == 0 then
  return {}
end
local time = redis.call('TIME')
local deadline = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]
local claims, scored = {}, {}
for i, id in ipairs(taken) do
  local row = redis.call('HMGET', rows .. id, 'attempts', 'payload')
  local token = string.format('%d', (tonumber(row[1]) or 0) + 1)
  claims[3 * i - 2], claims[3 * i - 1], claims[3 * i] = id, token, row[2]
  scored[2 * i - 1], scored[2 * i] = deadline, id
end
for i = 1, #claims, 3 do
  redis.call('HSET', rows .. claims[i], 'attempts', claims[i + 1], 'state', 'active')
end
redis.call('ZREM', KEYS[1], unpack(taken))
redis.call('ZADD', KEYS[2], unpack(scored))
return claims
