"""The random driver over every control: lanes with limits, pauses and weights, an operator, flows in and across queues
with two Pumps, dedup, expiry, cancellation, repeats, rates, readiness tokens, and the foreign worker still beside.

Source: issue "Every control"; protocol sections 4 to 6. A longer run:
`python -m tests.support.driver --controls --steps 500000 --seed 1`.
"""

from __future__ import annotations

import pytest

from tests.support.driver import Failure, driver
from tests.support.driver_kinds import CONTROLS
from tests.support.driver_wire import Mutation, sources

STEPS = 6_000
SEED = 1
# With it each fault below shows early; some do so earlier with another.
FAULT_SEED = 3
EARLIER = {
    "a child counts twice for its parent": 1,
    "a release wakes nobody": 2,
    "a queue that is resumed wakes nobody": 1,
    "tokens are not trimmed": 2,
    "a claim keeps to no rate": 6,
    "a window counts one claim": 6,
    "a window has no end": 6,
    "a batch is the newest": 5,
    "a weighted turn knows no limit": 7,
    "a keeper of many has no fence": 2,
    "a look knows no limit": 7,
    "a lane is no place": 4,
    "a repeat fires for each Pump": 6,
    "a repeat leaves its grid": 6,
    "a repeat takes an id that stands": 6,
    "a cancelled repeat keeps its record": 5,
}

# What is broken, and the kinds of violation that may say so.
FAULTS = {
    "a child counts twice for its parent": (
        Mutation("include/flow", "redis.call('HSETNX', key .. ':processed', child, result) == 0", "false"),
        {"processed", "decrements", "dependencies", "released-early"},
    ),
    "a release wakes nobody": (Mutation("release", "wake_flat(p, flat)", ""), {"asleep"}),
    "what is due or has run out wakes nobody": (Mutation("include/recovery", "wake_flat(p, #flat)", ""), {"asleep"}),
    "a queue that is resumed wakes nobody": (Mutation("queue_resume", "wake_flat(p, waiting)", ""), {"asleep"}),
    "a ceiling that opens wakes nobody": (Mutation("include/completions", "wake_flat(p, freed)", ""), {"asleep"}),
    "a lane that is offered wakes nobody": (
        Mutation("include/lane", "push_tokens(p .. 'wake', count)", ""),
        {"asleep"},
    ),
    "a claim takes the tokens of what it leaves": (
        Mutation("claim_many", "local idle = short and not", "local idle = true or short and not"),
        {"cleared"},
    ),
    "tokens are not trimmed": (
        Mutation("include/waking", "if length > TOKENS then redis.call('LTRIM', key, 0, TOKENS - 1) end", ""),
        {"tokens"},
    ),
    "tokens stay for ever": (Mutation("include/waking", "redis.call('PEXPIRE', ready, READY_MS)", ""), {"tokens"}),
    "a claim keeps to no rate": (Mutation("claim_many", "    room = left\n", ""), {"rate", "why"}),
    "a window counts one claim": (
        Mutation("claim_many", "redis.call('INCRBY', p .. 'limiter', claim.count)", ""),
        {"rate"},
    ),
    "a window has no end": (
        Mutation("claim_many", "claim.count, 'PX', window)", "claim.count)"),
        {"rate"},
    ),
    "a batch is the newest": (
        Mutation(
            "claim_batch", "redis.call('ZRANGE', KEYS[1], 0, size - 1)", "redis.call('ZRANGE', KEYS[1], -size, -1)"
        ),
        {"batch"},
    ),
    "a weighted turn knows no limit": (
        Mutation("lane_claim_weighted", "math.min(weight, depth, room, 1000)", "math.min(weight, depth, 1000)"),
        {"turn"},
    ),
    "a keeper of many has no fence": (
        Mutation("extend_locks", "is_stale(row[1], row[2], token)", "false"),
        {"answer"},
    ),
    "a look knows no limit": (Mutation("look", "  if tonumber(limit) then", "  if false then"), {"look"}),
    "progress is only told": (
        Mutation("update_progress", "redis.call('HSET', KEYS[1], 'progress', ARGV[1])", ""),
        {"control-fields"},
    ),
    "a lane is no place": (
        Mutation("include/standing", "if row[2] then places[2] = {name = 'lane', group = row[2]} end", ""),
        {"where"},
    ),
    "an id is admitted twice in a call": (Mutation("enqueue_many", "seen[id] or (taken", "(taken"), {"enqueue"}),
    "a repeat fires for each Pump": (
        Mutation("include/firing", "redis.call('ZADD', KEYS[1], 'XX', next_at, name)", ""),
        {"answer", "registry"},
    ),
    "a repeat leaves its grid": (Mutation("repeat_fire", "if record[3] then", "if false then"), {"answer", "registry"}),
    "a repeat takes an id that stands": (
        Mutation("repeat_fire", "elseif taken[id] then", "elseif false then"),
        {"answer"},
    ),
    "a cancelled repeat keeps its record": (
        Mutation("repeat_cancel", "redis.call('DEL', KEYS[2])", ""),
        {"registry", "answer"},
    ),
}


@pytest.mark.timeout(300)
def test_every_promise_is_kept() -> None:
    """A parent is released once, when all its children have reported; nobody sleeps while there is work; in the end
    nothing is left or stuck. Every script of the package is among what was called.
    """
    with driver(kind=CONTROLS) as made:
        made.run(STEPS, SEED)
        assert made.unused & {name for name in sources() if ":" not in name} == set()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_script_is_found(fault: str) -> None:
    """A run is red with each of these faults in a script, and says why."""
    mutation, kinds = FAULTS[fault]
    with driver([mutation], kind=CONTROLS) as made, pytest.raises(Failure) as found:
        made.run(30_000, EARLIER.get(fault, FAULT_SEED))
    assert found.value.violation.kind in kinds
