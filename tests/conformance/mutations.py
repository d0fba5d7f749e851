"""One wrong line for each script, and the scenarios that it turns red; where no script does it, for the Python.

`old` may stand in an include: it is replaced in the script's own text, with the includes in place.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """A script whose `old` text becomes `new`, and scenarios of which each must fail then."""

    script: str
    old: str
    new: str
    reds: str


NOW = "return t[1] * 1000 + math.floor(t[2] / 1000)"
PARTS = "for _, part in ipairs(PARTS) do names[#names + 1] = key .. ':' .. part end"
RELEASE_DEDUP = "if key and redis.call('GET', key) == child.id then redis.call('DEL', key) end"
TO_LANE = "redis.call('ZADD', lane_key(p, member.group), 0, member.id)"
TO_FLAT = "redis.call('ZADD', p .. 'pending', 0, member.id)"
WEIGHT = "lane.weight = math.max(1, tonumber(weights[i]) or 1)"

MUTATIONS = (
    # ------------------------------------------------------------------------------------------------ admission
    Mutation("enqueue", "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end", "", "duplicate"),
    Mutation("enqueue_many", "elseif seen[id] or", "elseif", "duplicate"),
    Mutation(
        "schedule", "redis.call('ZADD', KEYS[2], score, ARGV[1])", "redis.call('ZADD', KEYS[2], 0, ARGV[1])", "schedule"
    ),
    Mutation("schedule", "if mode == 'in' then return now_ms() + ms end", "", "schedule"),
    Mutation("admit_many", "job.verdict = first", "job.verdict = 0", "dedup"),
    Mutation(
        "admit_many",
        "redis.call('RPUSH', p .. 'ring', unpack(new))",
        "local _ = 1",
        "weighted_proportion starvation_drill",
    ),
    Mutation("admit_many", "job.verdict = -1 end", "job.verdict = 0 end", "kind"),
    Mutation("lane_enqueue", "if string.sub(ARGV[1], 1, 3) ~= 'JOB' then", "if false then", "kind"),
    Mutation("lane_enqueue", "offer(p, ARGV[3])", "", "rotate lane_depth obliterate_grouped"),
    # --------------------------------------------------------------------------------------------------- claims
    Mutation(
        "claim_many",
        "if state ~= 'awaiting_children' then return false end",
        "if state ~= 'awaiting_children' then return true end",
        "suspect_one_at_a_time",
    ),
    Mutation(
        "claim", "redis.call('ZRANGE', KEYS[1], 0, 0)[1]", "redis.call('ZRANGE', KEYS[1], -1, -1)[1]", "order claim"
    ),
    Mutation(
        "claim_batch",
        "redis.call('ZRANGE', KEYS[1], 0, size - 1)",
        "redis.call('ZRANGE', KEYS[1], 0, size)",
        "batch_claim",
    ),
    Mutation("claim_batch", "local deadline", "if #ids < size then return {} end local deadline", "batch_claim_short"),
    Mutation("claim_batch", NOW, "return t[1] + 0", "batch_claim"),
    Mutation(
        "lane_claim", "redis.call('LMOVE', KEYS[1], KEYS[1], 'LEFT', 'RIGHT')", "redis.call('LLEN', KEYS[1])", "rotate"
    ),
    Mutation(
        "lane_claim", "if redis.call('SISMEMBER', p .. 'paused', group) == 1 then return nil end", "", "hollow_lane"
    ),
    Mutation(
        "lane_claim_weighted",
        "math.min(weight, depth, room, 1000)",
        "math.min(1, depth, room, 1000)",
        "weighted_proportion",
    ),
    Mutation("claim_many", "if number > read then", "if false then", "claim_receipt"),
    Mutation("claim_many", "row[2] == token .. ':' .. random", "true", "claim_receipt"),
    Mutation("claim_many", "if meta[1] then", "if false then", "queue_pause"),
    Mutation("claim_many", "if tonumber(meta[2]) then", "if false then", "rate_consult"),
    Mutation("claim_many", "if left < room then", "if false then", "rate"),
    Mutation(
        "claim_many",
        "if crashes < 2 then return 'take', crashes end",
        "do return 'take', crashes end",
        "suspect_one_at_a_time",
    ),
    Mutation("claim_many", "= row[ATTEMPTS], row[PAYLOAD],", "= row[ATTEMPTS], row[PAYLOAD] or '',", "ghost_claim"),
    Mutation("claim_many", "leases[m + 1] = deadline", "leases[m + 1] = 0", "settle_batch_partial"),
    Mutation("claim_many", "= deadline, id", "= 0, id", "claim_receipt"),
    Mutation(
        "claim_many", "'state', 'dead', 'last_error', one.reason", "'last_error', one.reason", "suspect_one_at_a_time"
    ),
    Mutation("claim_many", "redis.call('HMGET', key, unpack(names)) or {}", "{} or {}", "limit weighted_proportion"),
    Mutation("claim_many", WEIGHT, "lane.weight = 1", "weighted_proportion"),
    Mutation("claim_many", "i, count + 1, head + 1", "i, count + 1, head", "starvation_drill"),
    Mutation("claim_many", "return #rot.later + (", "return 0 * (", "suspect_one_at_a_time"),
    Mutation("claim_many", "count_started(claim.p, started)", "local _ = 1", "limit"),
    Mutation("claim_many", "return redis.call('EXISTS', p .. 'ready', p .. 'wake') > 0", "return false", "pool_order"),
    Mutation("look", "if tonumber(meta[2]) then", "if false then", "rate_consult"),
    # ------------------------------------------------------------------------------------------------- verdicts
    Mutation("complete", "redis.call('HINCRBY', p .. 'metrics:completed', 'count', 1)", "", "complete metrics"),
    Mutation("complete", "redis.call('UNLINK', unpack(erased))", "redis.call('UNLINK', KEYS[2])", "complete job_logs"),
    Mutation("complete", "if is_stale(attempts, row[2], ARGV[2])", "if (false)", "stale"),
    Mutation("complete", "return row_held and held ~= token and row_held ~= held", "return false", "stale"),
    Mutation("complete", "free_slot(p, group, 1)", "", "limit"),
    Mutation("complete", "if key and redis.call('GET', key) == child.id then", "if key then", "dedup_release"),
    Mutation(
        "complete", "redis.call('UNLINK', unpack(erased))", "redis.call('HDEL', KEYS[2], 'state')", "native_lock_field"
    ),
    Mutation(
        "retry", "(tonumber(row[6]) or 0) + 1", "(tonumber(row[6]) or 0)", "retry dead counts batch_partial_failure"
    ),
    Mutation("retry", "if answer == 'scheduled' or answer == 'dead' then return answer end", "", "dead settle_twice"),
    Mutation("retry", "if mode == 'in' then return now_ms() + ms end", "", "retry backoff"),
    Mutation(
        "delay",
        "redis.call('HDEL', KEYS[1], 'held', 'crashes')",
        "redis.call('HINCRBY', KEYS[1], 'attempts', -1)",
        "batch_delay",
    ),
    Mutation("delay", "if answer then return 1 end", "", "batch_delay_stale"),
    Mutation(
        "settle", "if before then return before == 'delayed' and 'stale' or before, false end", "", "settle_twice"
    ),
    Mutation("settle", "done.completed = done.completed + 1", "", "metrics settle_batch_partial"),
    Mutation("settle", "'count', done.completed)", "'count', 1)", "metrics settle_batch_partial"),
    Mutation("settle", "freed[lane] = (freed[lane] or 0) + 1", "", "settle_batch_partial"),
    Mutation("settle", "if limit and busy >= limit then", "if false then", "limit"),
    Mutation("settle", "(tonumber(row[FAILURES]) or 0) + 1", "tonumber(row[ATTEMPTS])", "failures_not_claims"),
    Mutation("settle", RELEASE_DEDUP, "", "dedup_release"),
    Mutation("settle", "row[CANCEL] or (tonumber", "(tonumber", "cancel"),
    Mutation("release", "free_slot(p, group, count)", "", "release_lane"),
    Mutation("release", "redis.call('HDEL', key, 'held')", "", "release_lane failures_not_claims"),
    Mutation("release", "(not lease and 'not_active')", "nil", "release_lane"),
    Mutation("disown", "redis.call('HDEL', ARGV[1] .. 'job:' .. one.id, 'held')", "", "claim_receipt"),
    Mutation("retry", "elseif quiet then", "elseif false then", "limit"),
    Mutation(
        "settle",
        "for i = 1, #list, CHUNK do\n    sum = sum",
        "for i = 2, #list, CHUNK do\n    sum = sum",
        "flow_fanin",
    ),
    # ------------------------------------------------------------------------------------------ leases, recovery
    Mutation("extend_lock", "'XX', 'GT',", "", "lock_extend"),
    Mutation("extend_locks", "lost[#lost + 1] = id", "", "extend_locks_batch stale"),
    Mutation("keep", "'XX', 'GT',", "'XX', 'LT',", "extend_locks_batch"),
    Mutation("keep", "one.reason = 'stale'", "one.reason = nil", "stale"),
    Mutation(
        "reap",
        "redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms(),",
        "redis.call('ZRANGE', KEYS[1], '-inf', 'inf', 'BYSCORE',",
        "reap",
    ),
    Mutation("reap", "free_slot(p, member.group, 1)", "", "reap"),
    Mutation(
        "promote",
        "redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now,",
        "redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf',",
        "schedule",
    ),
    Mutation("promote", TO_LANE, TO_FLAT, "schedule"),
    Mutation("stalled_check", "member.stalled >= max_stalled", "member.stalled > max_stalled", "stalled stalled_group"),
    Mutation("stalled_check", "if member.group then free_slot(p, member.group, 1) end", "", "stalled_group"),
    Mutation("recount", "if stored[group] ~= right then", "if false then", "hollow_lane"),
    # ---------------------------------------------------------------------------------------------------- lanes
    Mutation("lane_pause", "redis.call('LREM', KEYS[2], 0, ARGV[1])", "", "pause"),
    Mutation("lane_resume", "offer(ARGV[1], ARGV[2])", "", "pause"),
    Mutation("lane_limit", "redis.call('LREM', KEYS[3], 0, group)", "redis.call('LLEN', KEYS[3])", "limit"),
    Mutation(
        "lane_weight",
        "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])",
        "redis.call('HSET', KEYS[1], ARGV[1], 1)",
        "weighted_proportion",
    ),
    Mutation("lane_reassign", "leave_lane(p, old, id)", "", "reassign"),
    Mutation("lane_drain", "remove_all(p, found, 'drained', {KEYS[2]})", "redis.call('DEL', KEYS[2])", "lane_drain"),
    Mutation("lane_drain", PARTS, "", "lane_drain"),
    Mutation("lane_reap", "redis.call('HGET', p .. 'job:' .. id, 'group') == group", "true", "reap_group"),
    # ------------------------------------------------------------------------------------------------- operator
    Mutation("queue_pause", "'paused', '1'", "'stopped', '1'", "queue_pause"),
    Mutation("queue_resume", "wake_flat(p, waiting)", "", "queue_pause"),
    Mutation("queue_resume", "redis.call('LPUSH', key, unpack(tokens))", "1", "queue_pause"),
    Mutation("drain", "if job.elsewhere then", "if false then", "drain"),
    Mutation("drain", PARTS, "", "drain"),
    Mutation("obliterate", "if redis.call('HEXISTS', KEYS[1], 'paused') == 0 then", "if false then", "obliterate"),
    Mutation(
        "obliterate",
        "in_chunks(names, function(...) redis.call('UNLINK', ...) end)",
        "",
        "obliterate obliterate_grouped",
    ),
    Mutation("keep", "redis.call('SET', p .. 'kept', '1', 'NX', 'PX', lasts)", "", "extend_locks_batch"),
    Mutation("update_data", "if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end", "", "update_data"),
    Mutation(
        "update_progress", "',\"progress\":' .. cjson.encode(ARGV[1])", "',\"progress\":' .. ARGV[1]", "update_progress"
    ),
    Mutation(
        "add_log", "redis.call('LTRIM', KEYS[2], -keep, -1)", "redis.call('LTRIM', KEYS[2], 0, keep - 1)", "job_logs"
    ),
    Mutation("remove_job", "redis.call('EXISTS', KEYS[1] .. ':lock') == 1", "false", "remove_job"),
    Mutation("remove_job", "if row[3] or", "if", "native_lock_refuses"),
    Mutation("reprocess", "'last_error', 'failures',", "'last_error',", "reprocess_job"),
    Mutation("cancel", "redis.pcall('PUBLISH', p .. 'cancel',", "redis.pcall('PUBLISH', p .. 'cancelled',", "cancel"),
    Mutation("where", "one.sets[1] and one.sets[1].name or ''", "one.state", "state unknown_state"),
    Mutation("where", "if one.state ~= 'awaiting_children' then return 'row_in_no_set' end", "", "unknown_state"),
    Mutation("mend", "file(one.state == 'dead' and 'dead' or 'pending')", "", "unknown_state"),
    # ------------------------------------------------------------------------------------------------ recurrence
    Mutation("repeat_register", "if exists and (same or not update) then return 0 end", "", "repeat"),
    Mutation("repeat_cancel", "redis.call('DEL', KEYS[2])", "", "repeat"),
    Mutation("repeat_advance", "redis.call('ZADD', KEYS[1], next_at, ARGV[1])", "", "repeat"),
    Mutation("repeat_fire", "elseif not score or score > now then", "elseif not score then", "repeat_once_per_fleet"),
    Mutation("repeat_fire", "redis.call('ZADD', KEYS[1], 'XX', next_at, name)", "", "repeat_once_per_fleet"),
    Mutation(
        "cron_register", "if exists and (same or ARGV[6] ~= 'update') then return 0 end", "", "repeat_by_calendar"
    ),
    Mutation("cron_fire", "elseif score ~= due or due > now then", "elseif due > now then", "repeat_by_calendar"),
    Mutation("repeat_advance", "or redis.call('HEXISTS', KEYS[2], 'cron') == 1 then", "then", "repeat_by_calendar"),
    # ---------------------------------------------------------------------------------------------------- flows
    Mutation("flow_add", "redis.call('SET', KEYS[2], ARGV[3])", "redis.call('SET', KEYS[2], 1)", "flow_add_bulk"),
    Mutation(
        "flow_hold",
        "redis.call('SET', KEYS[2], ARGV[3])",
        "redis.call('SET', KEYS[2], 1)",
        "flow_add flow_fanin flow_add_bulk",
    ),
    Mutation(
        "flow_child",
        "if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'parent_queue', ARGV[4]) end",
        "",
        "flow_cross_queue flow_grandchild",
    ),
    Mutation(
        "flow_deliver",
        "if redis.call('HSETNX', key .. ':processed', child, result) == 0 then return end",
        "redis.call('HSETNX', key .. ':processed', child, result)",
        "flow_cross_queue",
    ),
    Mutation("flow_deliver_death", "if policy == 'id' then", "if false then", "flow_ignore_dep outbox_two_pumps"),
    Mutation("flow_set_aside", "redis.call('RPUSH', KEYS[2], entry)", "", "outbox_two_pumps"),
    Mutation("settle", "    child_done(p, child.parent, child.id, result)", "", "flow_fanin flow_children_values"),
    Mutation("settle", "result = result or child.id", "result = child.id", "flow_children_values"),
    Mutation(
        "settle",
        "redis.call('RPUSH', p .. 'flow:outbox', table.concat(entry, NUL))",
        "",
        "flow_fail_parent flow_ignore_dep flow_grandchild_fail",
    ),
    Mutation("settle", "died(p, read_child(p, parent), said)", "", "flow_grandchild_fail"),
)
