-- Many (id, held) pairs of one worker, as keep, disown and release take them: all are read before the first write.

-- For each pair from ARGV[first] on: {id, held, row, reason}. The row is HMGET's attempts, held and then `fields`; the
-- reason is why the pair is not in hand, in the order gone, stale, not_active, or nil when it is.
local function read_pairs(p, active, first, ...)
  local found, ids = {}, {}
  for i = first, #ARGV, 2 do
    local id, held = ARGV[i], ARGV[i + 1] or ''
    local one = {id = id, held = held, row = redis.call('HMGET', p .. 'job:' .. id, 'attempts', 'held', ...)}
    if not one.row[1] then
      one.reason = 'gone'
    elseif is_stale(one.row[1], one.row[2], held) then
      one.reason = 'stale'
    end
    found[#found + 1], ids[#ids + 1] = one, id
  end
  for i = 1, #ids, CHUNK do
    local leases = redis.call('ZMSCORE', active, unpack(ids, i, math.min(i + CHUNK - 1, #ids)))
    for j, lease in ipairs(leases) do
      local one = found[i + j - 1]
      one.reason = one.reason or (not lease and 'not_active') or nil
    end
  end
  return found
end
