-- update_progress: writes a job's progress on its row and tells the listeners; a row that is gone is not made anew.
-- KEYS[1] emq:{q}:job:<id>  the row
-- ARGV[1] progress  text
-- ARGV[2] id
-- ARGV[3] emq:{q}:
-- returns 1 written | -1 gone
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
redis.call('HSET', KEYS[1], 'progress', ARGV[1])
-- The member is a JSON string whatever the progress is: protocol section 4, and listeners of other runtimes rely on it.
redis.call('PUBLISH', ARGV[3] .. 'events', '{"event":"progress","job":' .. cjson.encode(ARGV[2])
  .. ',"progress":' .. cjson.encode(ARGV[1]) .. '}')
return 1
