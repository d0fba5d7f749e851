-- Firing of due repeats, by a period or a calendar: an occurrence becomes a job, and its name is due next at another moment.
-- include: lane

-- Whether ids have a row, by id, and the score of each name; touches what `fire` writes. Names and ids stand in each `step`
-- arguments from the third on. Or nil and what is wrong.
local function look_at_due(p, step)
  local scores, taken = {}, {}
  for i = 3, #ARGV, step do
    local name, id = ARGV[i], ARGV[i + 1]
    if string.sub(id or '', 1, 3) ~= 'JOB' then return nil, 'EMQKIND job id must be JOB-namespaced' end
    scores[name] = tonumber(redis.call('ZSCORE', KEYS[1], name))
    taken[id] = redis.call('EXISTS', p .. 'job:' .. id) == 1
  end
  redis.call('ZCARD', KEYS[2])
  redis.call('LLEN', p .. 'ready')
  return scores, taken
end

local function fire(p, name, id, payload, next_at)
  redis.call('ZADD', KEYS[1], 'XX', next_at, name)
  redis.call('HSET', p .. 'job:' .. id, 'state', 'pending', 'attempts', '0', 'payload', payload)
  redis.call('ZADD', KEYS[2], 0, id)
end

-- Ends the reply: who parks hears of what was fired, and the lowest next run stands last.
local function conclude(p, answers, fired)
  wake_flat(p, fired)
  answers[#answers + 1] = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2] or ''
  return answers
end
