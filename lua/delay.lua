-- delay: sends a job in hand back to the schedule; not a failure, attempts and payload stay.
-- A holder that is no longer in active schedules its job all the same. Sent again with the same token it answers 1 and
-- writes nothing. A dead row takes no delay.
-- KEYS[1] emq:{q}:job:<id>  the row
-- KEYS[2] emq:{q}:active
-- KEYS[3] emq:{q}:schedule
-- ARGV[1] id
-- ARGV[2] token  attempts, as a string; `token:random` also fences by the row's `held`
-- ARGV[3] mode  `in`: value is a delay, priced on the server's clock; anything else: an absolute run-at
-- ARGV[4] value  ms
-- returns 1 delayed | EMQSTALE | EMQKIND
-- include: now
-- include: due
-- include: lane
-- include: held
-- include: ending
local id, token, p = ARGV[1], token_of(ARGV[2]), string.sub(KEYS[2], 1, -7)
if string.sub(id, 1, 3) ~= 'JOB' then return redis.error_reply('EMQKIND job id must be JOB-namespaced') end
local row = redis.call('HMGET', KEYS[1], 'attempts', 'held', 'settled', 'state', 'group')
local attempts, group = row[1], row[5]
if not attempts then return redis.error_reply('EMQSTALE job gone') end
local answer = settled_answer(row[3], token)
if is_stale(attempts, row[2], ARGV[2]) or row[4] == 'dead' or (answer and answer ~= 'delayed') then
  return redis.error_reply('EMQSTALE delay token mismatch')
end
if answer then return 1 end
local score = due_at(ARGV[3], ARGV[4])
if not score then return redis.error_reply('ERR delay value must be a number of milliseconds') end
local ceiling = touch_ending(p, id, group)

end_claim(p, id, group, ceiling)
redis.call('HDEL', KEYS[1], 'held', 'crashes')
redis.call('HSET', KEYS[1], 'state', 'scheduled', 'settled', token .. ':delayed')
redis.call('ZADD', KEYS[3], score, id)
return 1
