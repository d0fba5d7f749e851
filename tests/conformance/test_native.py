"""The scenarios on a server with the module: over commands alone those that have one for each verb, on auto all."""

from __future__ import annotations

import pytest

from echomq_worker.conformance import Outcome, Target, run, scenarios
from tests.support.native import native_server
from tests.support.valkey import OwnServer, ValkeyServer

# What commands alone can show: the others need a verb that is a script, or serve lanes.
NATIVE = {
    *(
        "fence",
        "mint",
        "duplicate",
        "order",
        "claim",
        "retry",
        "dead",
        "reap",
        "rotate",
        "lane_depth",
        "starvation_drill",
    ),
    *("schedule", "backoff", "metrics", "dedup", "rate", "rate_consult", "pool_enqueue", "pool_order"),
    *(
        "reprocess_job",
        "lock_extend",
        "stalled",
        "ghost_claim",
        "settle_batch_partial",
        "settle_twice",
        "claim_receipt",
    ),
    *(
        "batch_claim",
        "batch_claim_short",
        "batch_partial_failure",
        "batch_partition",
        "batch_delay",
        "batch_delay_stale",
    ),
    *("events", "telemetry"),
}


async def outcomes(server: ValkeyServer, wire: str) -> dict[str, Outcome]:
    """Every scenario's, with nothing of theirs left on the server."""
    assert wire in {"6", "auto"}
    target = Target(server.url, wire="6" if wire == "6" else "auto")
    found = {one.name: one async for one in run(target, list(scenarios().values()))}
    assert server.admin.keys() == [b"{emq}:version"]
    assert {name: one.said for name, one in found.items() if one.result == "FAILED"} == {}
    return found


@pytest.mark.timeout(300)
async def test_every_scenario_by_commands_and_on_auto(own_server: OwnServer) -> None:
    """On auto each is ok; by commands alone those are ok whose verbs all have one, and every other names the verb that
    has none, or lanes. No script is run then.
    """
    server = native_server(own_server)
    auto = await outcomes(server, "auto")
    assert {one.result for one in auto.values()} == {"ok"}
    server.admin.config_resetstat()

    commands = await outcomes(server, "6")

    assert {name for name, one in commands.items() if one.result == "ok"} == NATIVE
    said = {one.said for one in commands.values() if one.result == "not applicable"}
    assert {
        one for one in said if not one.startswith(("wire 6: no command for ", "EMQSTATE promote lane not native"))
    } == set()
    calls = {name: stats["calls"] for name, stats in server.admin.info("commandstats").items()}
    assert not {"cmdstat_eval", "cmdstat_evalsha", "cmdstat_script|load"} & set(calls)
    assert len([name for name in calls if name.startswith("cmdstat_EMQ.")]) > 15


async def test_on_a_server_without_the_module_auto_is_scripts(server: ValkeyServer, url: str) -> None:
    """Some scenarios, a worker among them, on a server that has no command."""
    some = [scenarios()[name] for name in ("claim", "schedule", "settle_twice", "events")]

    found = [one async for one in run(Target(url, wire="auto"), some)]

    assert [(one.result, one.said) for one in found] == [("ok", "")] * len(some)
