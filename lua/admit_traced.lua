-- admit_traced: as admit_many, and each row says in `trace` which span of a producer admitted it (ours). Without tracing nobody
-- calls it.
-- KEYS[1] emq:{q}:pending
-- KEYS[2] emq:{q}:schedule
-- ARGV[1] emq:{q}:
-- ARGV[2] trace  JSON, as the producer's propagator writes it
-- ARGV[3...] id, payload, group, mode, value, dedup key, dedup_ttl_ms, expires  for each job, as in admit_many
-- returns a verdict per job, in order: 1 admitted | 0 duplicate | -1 the id is not JOB-namespaced | the id that has the dedup key
-- include: admission
local jobs, wrong = read_jobs(ARGV[1], 3)
if not jobs then return redis.error_reply(wrong) end
return admit(ARGV[1], jobs, ARGV[2])
