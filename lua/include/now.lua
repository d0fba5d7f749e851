-- now_ms(): the server's clock in milliseconds, the only clock that prices a lease or a delay (TIME).
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
