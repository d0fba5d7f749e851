"""The suites run as users with the published rules: nothing that is needed lacks, nothing more is there.

Source: issue "The five promises", Topologies. Each run is a pytest of its own against a server where the code under
test can log in as the role only (tests/support/roles.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from echomq_worker.acl import commands
from tests.support.roles import RECORD
from tests.support.valkey import ROLE

_PROJECT = Path(__file__).resolve().parents[2]
_LIMIT_S = 300


@dataclass(frozen=True, slots=True)
class Suite:
    """Files to run, what of them (pytest's -k), and which refusals are the tests' own or survived."""

    files: tuple[str, ...]
    but: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


# The look at the eviction policy, in one place and in the other, is not in the rules: a worker without it goes on.
_POLICY = ("command config|get", "command info")
SUITES = {
    "producer": Suite(
        (
            *("edges/test_repeat.py", "edges/test_flows.py", "edges/test_flows_reading.py"),
            *("edges/test_jobs_many.py", "edges/test_schedule.py"),
        ),
        # They have a worker, an operator's eye, or a deployment without a fence.
        but=(
            "hand_count",
            "half_way",
            "reported_nothing",
            "removed_root",
            "while_workers",
            "servers_clock",
            "host_clock_while_parked",
            "seed_admits",
        ),
        # Workers of tests that survive without.
        refused=(
            *_POLICY,
            "command publish",
            "command role",
            "command script|load",
            "command subscribe",
            "command zrangebyscore",
        ),
    ),
    "worker": Suite(
        (
            *("loops/test_station.py", "loops/test_pump_flows.py", "loops/test_consumer.py", "edges/test_job.py"),
            *("edges/test_flow_worker.py", "edges/test_parking.py", "scripts/test_claim_many.py"),
            "scripts/test_claim_many_lanes.py::test_a_lane_that_is_shut_falls_off_the_ring",
        ),
        # It looks at all keys of the server.
        but=("within_a_tick",),
        refused=_POLICY,
    ),
    "operator": Suite(
        (
            *("edges/test_admin.py", "edges/test_dead.py", "edges/test_metrics.py", "edges/test_operate.py"),
            *("edges/test_lanes.py", "edges/test_acl.py", "edges/test_cli_ping.py"),
        ),
        # They claim as a worker or take long; of some files only a part is meant.
        but=(
            *("ceilings", "new_rate", "(test_metrics and test_lanes)", "two_hundred_thousand"),
            *("(test_acl and not check_as)", "(test_cli_ping and not is_a_setting)"),
        ),
        refused=(*_POLICY, "command blpop", "command client|id", "command role", "command script|load"),
    ),
}


def _run(role: str, files: tuple[str, ...], but: tuple[str, ...], record: Path) -> tuple[int, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST_"))}
    env |= {ROLE: role, RECORD: str(record)}
    names = [f"tests/{name}" for name in files]
    deselected = ["-k", " and ".join(f"not {word}" for word in but)] if but else []
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *names, *deselected]
    ended = subprocess.run(
        command, cwd=_PROJECT, env=env, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    return ended.returncode, ended.stdout[-6000:]


@pytest.mark.timeout(_LIMIT_S + 10)
@pytest.mark.parametrize("role", SUITES)
def test_a_suite_as_its_user(role: str, tmp_path: Path) -> None:
    """The suite passes as that user, the server refused it nothing that it needs, and every command that the rules
    permit was sent: without any one of them something here would have been refused.
    """
    suite, record = SUITES[role], tmp_path / "record"
    code, said = _run(role, suite.files, suite.but, record)
    assert code == 0, said
    found = json.loads(record.read_text())
    assert set(found["refused"]) <= set(suite.refused)
    assert set(commands([role])) - set(found["seen"]) == set(), "permitted and never sent"
    assert set(found["seen"]) - set(commands([role])) == set(), "sent by the code under test as somebody else"


@pytest.mark.timeout(_LIMIT_S + 10)
def test_the_conformance_run_as_operator_and_worker(tmp_path: Path) -> None:
    """All scenarios pass as a user with both roles, and the few commands by which the run itself looks and plants."""
    record = tmp_path / "record"
    code, said = _run(
        "operator worker conformance", ("conformance/test_conformance.py",), ("others_have", "resubscribe"), record
    )
    assert code == 0, said
    assert set(json.loads(record.read_text())["refused"]) <= set(_POLICY)
