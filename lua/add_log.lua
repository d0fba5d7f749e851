-- add_log: appends a line to a job's log, oldest first; a row that is gone gets no log.
-- KEYS[1] emq:{q}:job:<id>  the row
-- KEYS[2] emq:{q}:job:<id>:logs
-- ARGV[1] line
-- ARGV[2] keep  the newest lines that stay, '' for all
-- returns the number of lines | -1 gone
local keep = tonumber(ARGV[2])
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local count = redis.call('RPUSH', KEYS[2], ARGV[1])
if keep and keep >= 1 and count > keep then
  redis.call('LTRIM', KEYS[2], -keep, -1)
  count = keep
end
return count
