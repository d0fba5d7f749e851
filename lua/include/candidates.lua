-- What claim_many makes of those that are not as most are (`plain`). Reads only.
-- include: waiting

local function read_row(claim, id)
  return redis.call('HMGET', claim.rows .. id, 'attempts', 'payload', 'state', 'group', 'held', 'crashes', 'failures',
    'cancel', 'expires_at', 'parent')
end

-- Claims in a row of ours that never ended, this one included (row field `crashes` = `n:token`). Where the row's attempts
-- is not the token stored with it, someone else had the job meanwhile and the row of crashes is broken.
local function count_crashes(row)
  local count, token = string.match(row[CRASHES] or '', '^(%d+):(%d+)$')
  local before = token == row[ATTEMPTS] and tonumber(count) or 0
  return row[HELD] and before + 1 or before
end

-- Says `take`, `pass` (a suspect that must wait), `bury`, `drop` (the id stands in another set) or `move` (a grouped job in
-- flat pending, where a foreign reprocess leaves it); the crashes; and why a job is buried.
local function judge(claim, lane, id, row, lease)
  if is_plain(lane.name, row, lease) then return 'take', 0 end
  if lease and tonumber(lease) > claim.now then return 'drop', 0 end
  local state = row[STATE]
  if state == 'scheduled' and redis.call('ZSCORE', claim.p .. 'schedule', id) then return 'drop', 0 end
  if state == 'dead' and redis.call('ZSCORE', claim.p .. 'dead', id) then return 'drop', 0 end
  if is_waiting(claim.p, id, state) then return 'drop', 0 end
  if row[GROUP] and not lane.name then return 'move', 0 end
  if row[CANCEL] then return 'bury', 0, 'cancelled: ' .. row[CANCEL] end
  if (tonumber(row[EXPIRES]) or math.huge) <= claim.now then return 'bury', 0, 'expired' end
  if not (row[HELD] or row[CRASHES]) then return 'take', 0 end
  local crashes = count_crashes(row)
  if row[HELD] and crashes >= claim.max_crashes then
    return 'bury', crashes, 'crashed: ' .. crashes .. ' claims in a row never ended'
  end
  if crashes < 2 then return 'take', crashes end
  if claim.suspects < 1 then return 'pass', crashes end
  claim.suspects = claim.suspects - 1
  return 'take', crashes
end

-- Files a job as taken: six values of the reply, from which the writing pass works too.
local function take(claim, s, id, row, crashes, lease)
  local jobs, n, attempts = claim.jobs, claim.count * 6, row[ATTEMPTS]
  if not claim.tokens[attempts] then claim.tokens[attempts] = token_after(attempts) end
  jobs[n + 1], jobs[n + 2], jobs[n + 3] = id, row[PAYLOAD], claim.tokens[attempts]
  jobs[n + 4], jobs[n + 5], jobs[n + 6] = s.name or '', row[FAILURES] or '0', crashes
  claim.count = claim.count + 1
  if s.name then
    s.leave[#s.leave + 1] = id
    -- Somebody put back what is still in active: its slot was never given back.
    if not lease then s.started = s.started + 1 end
    if row[GROUP] ~= s.name then claim.regroup[id] = s.name end
  end
  if row[PARENT] then claim.kin[#claim.kin + 1] = id end
end

-- What this claim has judged an id to be that it met before. Jobs as most are go without an entry: each stands in the set
-- where it belongs, so that only another asks whether it was one of them.
local function judged(claim, id)
  for n = claim.told + 1, claim.count do claim.seen[claim.jobs[6 * n - 5]] = 'take' end
  claim.told = claim.count
  return claim.seen[id]
end

-- Takes the next job that can be taken, going on behind what is passed over; everything else is filed for the writing
-- pass. An id that stands in two sets is judged once and leaves the second; one that was passed over stays in the first.
-- Answers whether there was one.
local function next_job(claim, s)
  while claim.looked < claim.look and has_more(claim, s) do
    s.i = s.i + 1
    claim.looked = claim.looked + 1
    local id, lease = s.ids[s.i], s.ids.scores[s.i]
    local row, what, crashes, reason = claim.row or read_row(claim, id), 'drop', 0, nil
    claim.row = nil
    local before = claim.lanes and judged(claim, id)
    if not before then what, crashes, reason = judge(claim, s, id, row, lease) end
    local stays = before == 'pass' and s.name
    if claim.lanes then claim.seen[id] = before or what end
    if what == 'take' then
      take(claim, s, id, row, crashes, lease)
      return true
    elseif what == 'pass' then
      claim.passed, s.passed = true, true
    else
      if not stays then claim.leave[#claim.leave + 1] = id end
      s.leave[#s.leave + 1] = id
      if what ~= 'drop' then
        table.insert(claim[what], {id = id, group = s.name or row[GROUP], reason = reason, lease = lease})
      end
    end
  end
  return false
end
