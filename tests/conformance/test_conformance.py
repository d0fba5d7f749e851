"""The protocol's scenarios on the session's server, each a test; and the runner around them."""

from __future__ import annotations

import asyncio
import re

import pytest

from echomq_worker.conformance import Outcome, Scenario, Target, chosen, run, scenarios
from echomq_worker.conformance.bench import Bench
from echomq_worker.conformance.checks import NotApplicable, same
from echomq_worker.connector import Wire
from echomq_worker.errors import ConfigError
from tests.support.valkey import ValkeyServer

NAMES = [
    "fence",
    "mint",
    "duplicate",
    "kind",
    "order",
    "claim",
    "stale",
    "complete",
    "retry",
    "dead",
    "reap",
    "rotate",
    "pause",
    "limit",
    "schedule",
    "repeat",
    "backoff",
    "resubscribe",
    "counts",
    "state",
    "metrics",
    "dedup",
    "rate",
    "lane_depth",
    "queue_pause",
    "drain",
    "obliterate",
    "update_data",
    "update_progress",
    "job_logs",
    "remove_job",
    "reprocess_job",
    "lock_extend",
    "stalled",
    "events",
    "telemetry",
    "cancel",
    "unknown_state",
    "rate_consult",
    "dedup_release",
    "extend_locks_batch",
    "stalled_group",
    "obliterate_grouped",
    "reassign",
    "lane_drain",
    "reap_group",
    "flow_add",
    "flow_fanin",
    "flow_children_values",
    "flow_cross_queue",
    "flow_fail_parent",
    "flow_ignore_dep",
    "flow_add_bulk",
    "flow_grandchild",
    "flow_grandchild_fail",
    "native_lock_field",
    "native_lock_refuses",
    "weighted_proportion",
    "starvation_drill",
    "batch_claim",
    "batch_claim_short",
    "batch_partial_failure",
    "batch_partition",
    "batch_delay",
    "batch_delay_stale",
    "pool_enqueue",
    "pool_order",
    "repeat_once_per_fleet",
    "repeat_by_calendar",
    "failures_not_claims",
    "ghost_claim",
    "hollow_lane",
    "settle_batch_partial",
    "settle_twice",
    "claim_receipt",
    "suspect_one_at_a_time",
    "release_lane",
    "outbox_two_pumps",
]


async def outcome_of(url: str, scenario: Scenario) -> Outcome:
    """What becomes of one scenario."""
    (outcome,) = [one async for one in run(Target(url), [scenario])]
    return outcome


@pytest.mark.parametrize("name", scenarios())
async def test_scenario(url: str, server: ValkeyServer, name: str) -> None:
    """The promise that the scenario's contract states; no key is left but the fence."""
    outcome = await outcome_of(url, scenarios()[name])

    assert (outcome.result, outcome.said) == ("ok", "")
    assert server.admin.keys() == [b"{emq}:version"]


def test_every_scenario_has_its_name() -> None:
    """The scenarios are those that the protocol names, no more and no less."""
    assert sorted(scenarios()) == sorted(NAMES)


def test_every_contract_is_one_sentence() -> None:
    """A contract is what its name promises, in one sentence that fits a line."""
    contracts = {name: one.contract for name, one in scenarios().items()}

    assert [name for name, text in contracts.items() if not re.fullmatch(r"[A-Z0-9a-z].{20,116}\.", text)] == []
    assert len(set(contracts.values())) == len(contracts)


def test_names_are_chosen_once_and_wrong_ones_named() -> None:
    """Without names all are chosen; a name twice is one; a name that there is not is told with its nearest."""
    assert [one.name for one in chosen(["flow_add", "fence", "flow_add"])] == ["flow_add", "fence"]
    assert len(chosen([])) == len(scenarios())
    with pytest.raises(ConfigError, match=r"scenario 'flow_ad': there is none of that name; did you mean flow_add\?"):
        chosen(["fence", "flow_ad"])


async def test_what_fails_says_what_was_found_and_is_purged_all_the_same(url: str, server: ValkeyServer) -> None:
    """A check that does not hold makes FAILED with both values; keys of the queue go, also those no verb writes."""

    async def broken(bench: Bench) -> None:
        q = bench.queue()
        await q.add()
        await q.put("nobody's", "SET", "x")
        same(await q.read("pending"), {}, "pending")

    outcome = await outcome_of(url, Scenario("broken", "It fails.", broken))

    assert outcome.result == "FAILED"
    assert re.fullmatch(r"pending: found \{JOB\w{11}: 0\.0\}, expected \{\}", outcome.said)
    assert server.admin.keys() == [b"{emq}:version"]


@pytest.mark.parametrize("error", [KeyError("job:1"), TypeError("no"), AttributeError("no"), ValueError("no")])
async def test_a_value_of_another_shape_is_a_failure(url: str, error: Exception) -> None:
    """What a scenario meets where the server holds something else is FAILED, not the end of the run."""

    async def odd(_bench: Bench) -> None:
        raise error

    outcome = await outcome_of(url, Scenario("odd", "It fails.", odd))

    assert (outcome.result, outcome.said) == ("FAILED", f"{type(error).__name__}: {error}")


async def test_what_the_server_lacks_is_not_applicable(url: str) -> None:
    """A scenario says what the server lacks, and counts as neither."""

    async def lacking(_bench: Bench) -> None:
        raise NotApplicable("the server has no time")

    outcome = await outcome_of(url, Scenario("lacking", "It lacks.", lacking))

    assert (outcome.result, outcome.said) == ("not applicable", "the server has no time")


async def test_what_others_have_on_the_server_stays(url: str, server: ValkeyServer) -> None:
    """A run beside a deployment touches none of its keys."""
    server.admin.set("emq:{theirs}:de:x", "JOB00000000001")
    server.admin.zadd("emq:{theirs}:pending", {"JOB00000000001": 0})
    server.admin.hset("emq:{theirs}:job:JOB00000000001", mapping={"state": "pending", "attempts": "0", "dedup": "x"})
    before = {key: server.admin.dump(key) for key in server.admin.keys("emq:{theirs}*")}

    found = [one async for one in run(Target(url), list(scenarios().values()))]

    assert [one for one in found if one.result != "ok"] == []
    assert {key: server.admin.dump(key) for key in server.admin.keys("emq:{theirs}*")} == before
    assert server.admin.dbsize() == 1 + len(before)


async def test_a_run_that_is_cancelled_purges(url: str, server: ValkeyServer) -> None:
    """Who cancels within a scenario leaves no key behind."""
    begun = asyncio.Event()

    async def endless(bench: Bench) -> None:
        await bench.queue().add()
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(outcome_of(url, Scenario("endless", "It never ends.", endless)))
    await begun.wait()
    assert server.admin.dbsize() > 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert server.admin.keys() == [b"{emq}:version"]


async def test_verbs_go_over_the_wire_that_is_given(url: str) -> None:
    """The scenarios' own verbs go over what the caller makes of the connection."""
    seen: list[Wire] = []

    def wrapped(wire: Wire) -> Wire:
        seen.append(wire)
        return wire

    found = [one async for one in run(Target(url), chosen(["claim", "order"]), wrapped=wrapped)]

    assert ([one.result for one in found], len(seen)) == (["ok", "ok"], 2)
