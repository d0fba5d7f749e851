-- flow_set_aside: entries of the outbox that nobody can deliver go to a list of their own, each once (ours).
-- KEYS[1] emq:{q}:flow:outbox
-- KEYS[2] emq:{q}:flow:outbox:malformed
-- ARGV[1...] entry  as it stands in the outbox
-- returns the number of entries that moved; those that are not there any more do not
redis.call('LLEN', KEYS[1])
redis.call('LLEN', KEYS[2])
local moved = 0
for _, entry in ipairs(ARGV) do
  if redis.call('LREM', KEYS[1], 1, entry) == 1 then
    redis.call('RPUSH', KEYS[2], entry)
    moved = moved + 1
  end
end
return moved
