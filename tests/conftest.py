"""Fixtures for all tests: a real server, and the guards around each test.

The order of the guards is written down, not left to their names: what is set up first is looked at last, when
everything that the test used is closed.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis.asyncio
from hypothesis import HealthCheck, settings

from tests.support import guards
from tests.support.roles import Recorder, RoleServer, server_of_the_run, write_record
from tests.support.valkey import OwnServer, ValkeyServer, raw_client

# No time limit for one example, nor for making some: the machine is shared. In CI the same examples every time.
settings.register_profile(
    "tests",
    deadline=None,
    derandomize="CI" in os.environ,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")


# What they try is in Lua, or is tried by others too, or in great numbers: measuring the Python under them doubles what
# they take.
_UNMEASURED = (
    *("tests/scripts/", "tests/native/", "tests/faults/", "tests/edges/test_admin.py::test_two_hundred"),
    *("tests/conformance/test_mutations.py", "tests/conformance/test_servers.py", "tests/conformance/test_native.py"),
    *("tests/edges/test_busy_queue.py", "tests/edges/test_cluster_scripts.py", "tests/edges/test_fairness.py"),
    *("tests/edges/test_flows.py::test_thousands", "tests/edges/test_latency.py", "tests/edges/test_lean.py"),
    *("tests/edges/test_many_queues.py", "tests/edges/test_repeat_fleet.py", "tests/edges/test_web_browser.py"),
    *("tests/edges/test_web_scale.py", "tests/loops/test_a_day.py", "tests/loops/test_pump.py::test_a_day"),
    *("tests/unit/test_gates.py", "tests/unit/test_guarantees.py", "tests/unit/test_identity.py::test_a_million"),
)
# The processes that these start are measured, as what is tried there runs in them only. Of all others the tests' own
# process is: measuring one that is started costs it 0.3 s, and there are hundreds.
_PROCESSES_MEASURED = (
    *("tests/edges/test_cli_run.py", "tests/edges/test_cli_processes.py", "tests/edges/test_cli_reload.py"),
    *("tests/edges/test_cli_demo.py", "tests/edges/test_cli_top.py", "tests/edges/test_cli_web.py"),
    *("tests/edges/test_testing.py", "tests/edges/test_probes_fleet.py"),
)
# By it a process that is started knows what to measure.
_MEASURE_PROCESSES = "COVERAGE_PROCESS_CONFIG"


# What takes longest comes first, in as many shares as there are processes; those of one line never run side by side.
_LONGEST = (
    ("tests/faults/test_chaos.py", "tests/faults/test_cluster.py", "tests/faults/test_sentinel.py"),
    ("tests/faults/test_driver.py", "tests/faults/test_poison.py", "tests/edges/test_web_browser.py"),
    ("tests/faults/test_driver_controls.py", "tests/faults/test_upgrade.py", "tests/faults/test_flows.py"),
    ("tests/faults/test_repeats.py", "tests/edges/test_acl_suites.py", "tests/faults/test_memory.py"),
)


def pytest_configure(config: pytest.Config) -> None:
    """Have what xdist starts measured once. pytest-cov begins twice in it, and `patch = subprocess` would be a third;
    the marker `no_cover` ends but one of these.
    """
    # A shell that starts this in its background has Ctrl-C ignored, and children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    measuring = getattr(config.pluginmanager.getplugin("_cov"), "cov_controller", None)
    if measuring is None:
        return
    if hasattr(config, "workerinput"):
        measuring.pause()
    elif config.getoption("numprocesses", None):
        os.environ.pop(_MEASURE_PROCESSES, None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the coverage of some tests unmeasured, and spread those that take longest over the processes."""
    for item in items:
        if item.nodeid.startswith(_UNMEASURED):
            item.add_marker(pytest.mark.no_cover)
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    if processes > 1:
        items[:] = _spread(items, processes)


def _spread(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """As `--dist worksteal` cuts them: equal blocks in order, each with its share of the longest at its head."""
    heads: list[list[pytest.Item]] = [[] for _ in range(processes)]
    for number, names in enumerate(_LONGEST):
        heads[number % processes] += [item for name in names for item in items if item.nodeid.startswith(name)]
    taken = {item for head in heads for item in head}
    rest = [item for item in items if item not in taken]
    spread: list[pytest.Item] = []
    for number, head in enumerate(heads):
        size = (len(items) - len(spread)) // (processes - number)
        fill = max(0, size - len(head))
        spread += head + rest[:fill]
        del rest[:fill]
    return spread + rest


def _is_async(function: Callable[..., object]) -> bool:
    inner = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    return inspect.iscoroutinefunction(inner)


def _exempt(request: pytest.FixtureRequest) -> set[str]:
    return {mark.name for mark in request.node.iter_markers()}


@pytest.fixture(autouse=True)
def _guards(request: pytest.FixtureRequest) -> Iterator[None]:
    """Environment, logging, threads, blocking calls: around every test."""
    exempt = _exempt(request)
    with ExitStack() as stack:
        stack.enter_context(guards.clean_environment())
        stack.enter_context(guards.logging_as_it_was())
        stack.enter_context(guards.signals_as_they_were())
        if not request.node.nodeid.startswith(_PROCESSES_MEASURED):
            os.environ.pop(_MEASURE_PROCESSES, None)
        if "leaves_tasks" not in exempt:
            stack.enter_context(guards.no_threads_left())
        if "blocks" not in exempt:
            stack.enter_context(guards.blocking_refused())
        yield


@pytest.fixture
async def _no_tasks_left(_guards: None) -> AsyncIterator[None]:
    async with guards.no_tasks_left():
        yield
    # Its idle threads are the loop's own, not left by the test.
    await asyncio.get_running_loop().shutdown_default_executor()


@pytest.fixture(autouse=True)
def _task_guard(request: pytest.FixtureRequest, _guards: None) -> None:
    """Tasks: around every test that has an event loop; the others need none for it."""
    if _is_async(request.function) and "leaves_tasks" not in _exempt(request):
        request.getfixturevalue("_no_tasks_left")


@pytest.fixture(scope="session")
def server() -> Iterator[ValkeyServer]:
    """The server of this test process. Tests do not stop it and change no setting of it: see `own_server`."""
    server = server_of_the_run().start()
    recorder = Recorder(server) if isinstance(server, RoleServer) else None
    yield server
    if isinstance(server, RoleServer) and recorder is not None:
        write_record(server, recorder)
    server.close()


@pytest.fixture
def url(server: ValkeyServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """Address of the session's server, emptied; afterwards no connection is left open, and no key out of the table."""
    server.admin.flushall()
    if isinstance(server, RoleServer):
        server.claim_fence()
    exempt = _exempt(request)
    with ExitStack() as stack:
        if "leaves_keys" not in exempt:
            stack.enter_context(guards.only_protocol_keys(server.admin))
        if "leaves_connections" not in exempt:
            stack.enter_context(guards.no_connections_left(server.admin))
        yield server.url


@pytest.fixture
async def raw(url: str, server: ValkeyServer) -> AsyncIterator[redis.asyncio.Redis]:
    """A plain client on the session's server."""
    async with raw_client(server.raw_url) as client:
        yield client


@pytest.fixture
def own_server() -> Iterator[OwnServer]:
    """Makes and starts servers that a test may stop, kill, freeze and configure; the arguments of ValkeyServer."""
    with ExitStack() as stack:

        def make(**options: Any) -> ValkeyServer:
            made = ValkeyServer(**options)
            stack.callback(made.close)
            return made.start()

        yield make
