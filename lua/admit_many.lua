-- admit_many: admits many jobs of any kind in one round trip, with a verdict each: flat, to a lane, scheduled; each may have a
-- dedup key and an expiry (ours).
-- The effects are those of enqueue, lane_enqueue and schedule; a scheduled job with a group is promoted to its lane. An
-- id that comes twice in one call is admitted once.
-- KEYS[1] emq:{q}:pending
-- KEYS[2] emq:{q}:schedule
-- ARGV[1] emq:{q}:
-- ARGV[2...] id, payload, group, mode, value, dedup key, dedup_ttl_ms, expires  for each job, '' for what it has not; mode '' =
--   now, `in` or `at` with value in ms; expires `in:ms` or `at:ms`: it is not started after that
-- returns a verdict per job, in order: 1 admitted | 0 duplicate | -1 the id is not JOB-namespaced | the id that has the dedup key
-- include: admission
local jobs, wrong = read_jobs(ARGV[1], 2)
if not jobs then return redis.error_reply(wrong) end
return admit(ARGV[1], jobs)
