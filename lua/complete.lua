-- complete: the job is done; its row is deleted with its logs, lock and a flow parent's subkeys, and counted.
-- The work being done, a dead row takes it too. A row that is gone answers 0, and the sets are cleaned all the same.
-- KEYS[1] emq:{q}:active
-- KEYS[2] emq:{q}:job:<id>  the row
-- KEYS[3...] the parent's dependencies, processed and row, or emq:{q}:flow:outbox  as a foreign caller declares them
-- ARGV[1] id
-- ARGV[2] token  attempts, as a string; `token:random` also fences by the row's `held`
-- ARGV[3] emq:{q}:
-- ARGV[4...] parent id, result, and `xq`, parent queue where it is another  optional: what the row says of its parent comes first
-- returns 1 completed | 0 gone | EMQSTALE
-- include: lane
-- include: held
-- include: ending
-- include: flow
local id, p = ARGV[1], ARGV[3]
local row = redis.call('HMGET', KEYS[2], 'attempts', 'held', 'settled', 'state', 'group')
local attempts, state, group = row[1], row[4], row[5]
if attempts then
  local answer = settled_answer(row[3], token_of(ARGV[2]))
  if is_stale(attempts, row[2], ARGV[2]) or (answer and not (answer == 'dead' and state == 'dead')) then
    return redis.error_reply('EMQSTALE complete token mismatch')
  end
end
local ceiling = touch_ending(p, id, group)
local child = told_by_caller(read_child(p, id), ARGV[4], ARGV[6] == 'xq' and ARGV[7])
touch_ended(p, child)
local erased = {KEYS[2]}
for _, name in ipairs({'logs', 'dependencies', 'processed', 'failed', 'unsuccessful'}) do
  erased[#erased + 1] = KEYS[2] .. ':' .. name
end
redis.call('EXISTS', unpack(erased))
redis.call('HGET', p .. 'metrics:completed', 'count')

end_claim(p, id, group, ceiling)
-- Of a row that is gone there may be the skeleton that promote makes: it goes with its place.
redis.call('UNLINK', unpack(erased))
if not attempts then return 0 end
redis.call('ZREM', p .. 'dead', id)
redis.call('HINCRBY', p .. 'metrics:completed', 'count', 1)
completed(p, child, ARGV[5])
return 1
