-- What claim_many makes of the members of pending and of lanes, where they are as most are. Reads only: nothing is written before all is decided.
-- A row is the reply of its HMGET.
local ATTEMPTS, PAYLOAD, STATE, GROUP, HELD, CRASHES, FAILURES = 1, 2, 3, 4, 5, 6, 7
local CANCEL, EXPIRES, PARENT = 8, 9, 10

-- A source of jobs: flat pending, or a lane with its `name`. It is a cursor over a sorted set that is only read: `i` is the
-- place in `ids` up to which they are used, `size` the last that is its own, `at` what was read of the set, with `ended` all of
-- it.
local PAGE = 17
local function source(key, name)
  return {key = key, name = name, i = 0, size = 0, at = 0, leave = {}, started = 0}
end

-- The next page of it, of which as many were `asked` for. Whether there is one.
local function turn_page(claim, s, ids, asked)
  if #ids < asked then s.ended = true end
  if #ids == 0 then return false end
  ids.scores = redis.call('ZMSCORE', claim.active, unpack(ids))
  s.ids, s.i, s.size, s.at = ids, 0, #ids, s.at + #ids
  return true
end

-- Whether there is a member behind the cursor; reads the next page where the last one is used up.
local function has_more(claim, s)
  if s.i < s.size then return true end
  if s.ended then return false end
  local page = s.page or PAGE
  return turn_page(claim, s, redis.call('ZRANGE', s.key, s.at, s.at + page - 1), page)
end

-- The row of what HGETALL says, which costs less for a row that has little else.
local places
local function row_of(said)
  local row = {false, false, false, false, false, false, false, false, false, false}
  places = places or {attempts = ATTEMPTS, payload = PAYLOAD, state = STATE, group = GROUP, held = HELD, crashes = CRASHES,
    failures = FAILURES, cancel = CANCEL, expires_at = EXPIRES, parent = PARENT}
  for i = 1, #said, 2 do
    local place = places[said[i]]
    if place then row[place] = said[i + 1] end
  end
  return row
end

-- A job as most are: it stands where it belongs, in the lane `name` or without one, was not claimed before, and nobody has
-- asked for anything.
local function is_plain(name, row, lease)
  return not (lease or row[HELD] or row[CRASHES] or row[CANCEL] or row[EXPIRES]) and row[STATE] == 'pending'
    and (row[GROUP] or nil) == name
end

-- `attempts` of a row counted up; a row that has none was never claimed.
local function token_after(attempts)
  return string.format('%.0f', (tonumber(attempts) or 0) + 1)
end

-- Takes a run of jobs as most are, from where the cursor of flat pending stands. Ends at the first that is another, whose row it
-- leaves in the claim; answers whether it took any. What it does with a row stands in serve_plain too: to call a function
-- for each job would cost what this way saves.
local function take_plain(claim, s)
  local jobs, tokens, rows, count, room, call = claim.jobs, claim.tokens, claim.rows, claim.count, claim.room, redis.call
  local before, n = count, 6 * count
  while count < room and not claim.row and has_more(claim, s) do
    local ids, scores, first = s.ids, s.ids.scores, s.i + 1
    for i = first, math.min(s.size, s.i + room - count) do
      local id = ids[i]
      local said, payload, attempts, failures = call('HGETALL', rows .. id), nil, nil, '0'
      -- A row as a producer leaves it, in the order of its fields too.
      if said[1] == 'state' and said[2] == 'pending' and said[3] == 'attempts' and said[5] == 'payload' and #said == 6
        and not scores[i] then
        attempts, payload = said[4], said[6]
      else
        local row = row_of(said)
        if not is_plain(nil, row, scores[i]) then
          claim.row = row
          break
        end
        if row[PARENT] then claim.kin[#claim.kin + 1] = id end
        attempts, payload, failures = row[ATTEMPTS], row[PAYLOAD], row[FAILURES] or '0'
      end
      local token = tokens[attempts]
      if not token then
        token = token_after(attempts)
        tokens[attempts] = token
      end
      jobs[n + 1] = id
      jobs[n + 2] = payload
      jobs[n + 3] = token
      jobs[n + 4] = ''
      jobs[n + 5] = failures
      n = n + 6
      jobs[n] = 0
      s.i = i
    end
    count = count + s.i - first + 1
  end
  claim.count, claim.looked = count, claim.looked + count - before
  return count > before
end
