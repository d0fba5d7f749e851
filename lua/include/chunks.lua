-- A call takes at most a few thousand arguments (unpack's stack), so long lists go out in chunks.
local CHUNK = 4000

local function in_chunks(list, send)
  for i = 1, #list, CHUNK do send(unpack(list, i, math.min(i + CHUNK - 1, #list))) end
end
