-- Whether a row is that of a flow's parent with children out. Its id may still stand in a set where a foreign client has left
-- that of an earlier row: nobody runs it, no sweep puts it back.
local function is_waiting(p, id, state)
  if state ~= 'awaiting_children' then return false end
  return (tonumber(redis.call('GET', p .. 'job:' .. id .. ':dependencies')) or 0) > 0
end
