-- The score of a run-at in ms: `in` adds to the server's clock, any other mode is the literal value (as in the seeds). nil
-- where the value is no number that a sorted set takes, so that a script can refuse it before its first write.
local function due_at(mode, value)
  local ms = tonumber(value)
  if not ms or ms ~= ms then return nil end
  if mode == 'in' then return now_ms() + ms end
  return ms
end
