-- What claim_many makes of one member of pending or of a lane. Reads only: nothing is written before all is decided.

-- Claims in a row of ours that never ended, this one included (row field `crashes` = `n:token`). Where the row's attempts is
-- not the token stored with it, someone else had the job meanwhile and the row of crashes is broken.
local function count_crashes(row)
  local count, token = string.match(row.crashes or '', '^(%d+):(%d+)$')
  local before = (token ~= nil and token == row.attempts) and tonumber(count) or 0
  if row.held then return before + 1 end
  return before
end

-- Says `take`, `pass` (a suspect that must wait), `bury`, `drop` (the id stands in another set) or `move` (a grouped job in
-- flat pending, where a foreign reprocess leaves it).
local function judge(claim, id, lane, score)
  local f = redis.call('HMGET', claim.p .. 'job:' .. id, 'state', 'attempts', 'payload', 'group', 'held', 'crashes',
    'failures')
  local row = {id = id, lane = lane, state = f[1], attempts = f[2], payload = f[3], group = f[4], held = f[5],
    crashes = f[6], failures = f[7], expired = score}
  if score and tonumber(score) > claim.now then return 'drop', row end
  if row.state == 'scheduled' and redis.call('ZSCORE', claim.p .. 'schedule', id) then return 'drop', row end
  if row.state == 'dead' and redis.call('ZSCORE', claim.p .. 'dead', id) then return 'drop', row end
  if not lane and row.group then return 'move', row end
  row.count = count_crashes(row)
  if row.held and row.count >= claim.max_crashes then return 'bury', row end
  if row.count >= 2 then
    if claim.suspects == 0 then return 'pass', row end
    claim.suspects = claim.suspects - 1
  end
  return 'take', row
end

-- A cursor over a sorted set that is only read: `more` ids at a time, each with its score in active.
local function cursor(key, active, first, more)
  return {key = key, active = active, at = 0, i = 0, ids = {}, scores = {}, first = first, more = more}
end

local function next_member(c)
  if c.i == #c.ids then
    local size = c.at == 0 and c.first or c.more
    c.ids = redis.call('ZRANGE', c.key, c.at, c.at + size - 1)
    if #c.ids == 0 then return nil end
    c.at, c.i = c.at + #c.ids, 0
    c.scores = redis.call('ZMSCORE', c.active, unpack(c.ids))
  end
  c.i = c.i + 1
  return c.ids[c.i], c.scores[c.i]
end

-- Goes on behind what is passed over until a job can be taken; everything else is filed for the writing pass.
local function next_job(claim, c, lane)
  while claim.looked < claim.look do
    local id, score = next_member(c)
    if not id then return nil end
    claim.looked = claim.looked + 1
    local what, row = judge(claim, id, lane, score)
    if what == 'pass' then
      claim.passed = true
    else
      c.gone = (c.gone or 0) + 1
      claim[what][#claim[what] + 1] = row
      if what == 'take' then return row end
    end
  end
  return nil
end
