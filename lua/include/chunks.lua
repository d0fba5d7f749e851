-- A call takes at most a few thousand arguments (unpack's stack), so long lists go out in chunks.
local CHUNK = 4000

local function in_chunks(list, send)
  for i = 1, #list, CHUNK do send(unpack(list, i, math.min(i + CHUNK - 1, #list))) end
end

-- `take(place in ids, score)` for those that stand in the sorted set.
local function each_score(key, ids, take)
  for first = 1, #ids, CHUNK do
    local scores = redis.call('ZMSCORE', key, unpack(ids, first, math.min(first + CHUNK - 1, #ids)))
    for i, score in ipairs(scores) do
      if score then take(first + i - 1, score) end
    end
  end
end

-- `command key list…` in as many calls as it takes, none for an empty list. Answers the sum of the replies.
local function call_chunked(command, key, list)
  local sum = 0
  for i = 1, #list, CHUNK do
    sum = sum + redis.call(command, key, unpack(list, i, math.min(i + CHUNK - 1, #list)))
  end
  return sum
end
