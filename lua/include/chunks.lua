-- A call takes at most a few thousand arguments (unpack's stack), so long lists go out in chunks.
local CHUNK = 4000

local function in_chunks(list, send)
  for i = 1, #list, CHUNK do send(unpack(list, i, math.min(i + CHUNK - 1, #list))) end
end

-- The reply of `command key list…`, which has one for each of the list, in as many calls as it takes.
local function ask_chunked(command, key, list)
  local all = {}
  for first = 1, #list, CHUNK do
    local some = redis.call(command, key, unpack(list, first, math.min(first + CHUNK - 1, #list)))
    if first == 1 then all = some else for i = 1, #some do all[first + i - 1] = some[i] end end
  end
  return all
end

-- `command key list…` in as many calls as it takes, none for an empty list. Answers the sum of the replies.
local function call_chunked(command, key, list)
  local sum = 0
  for i = 1, #list, CHUNK do
    sum = sum + redis.call(command, key, unpack(list, i, math.min(i + CHUNK - 1, #list)))
  end
  return sum
end
