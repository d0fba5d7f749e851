"""The module emq for tests: built once for the sources as they are, shared by all test processes.

CI must have a compiler (.ci/run installs one); elsewhere tests of the module are skipped where there is none.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.valkey import OwnServer, ValkeyServer

WIRE = "EMQ_TESTS_WIRE"
"""The variable that has tests/scripts speak that wire, on a server with the module: the suite of the scripts holds for
their twins. `EMQ_TESTS_WIRE=auto pytest tests/scripts`.
"""

SCRIPT_ALONE = pytest.mark.skipif(
    bool(os.environ.get(WIRE)), reason="of the script itself, or a difference that the seeds name"
)

_SOURCES = Path(__file__).resolve().parents[2] / "native"


@cache
def module() -> Path:
    """Path of the built module; skips the test where there is no compiler."""
    make = shutil.which("make")
    if make is None or shutil.which("cc") is None:
        assert "CI" not in os.environ, "no make or no cc, expected both in CI"
        pytest.skip("the module emq needs make and cc")
    digest = hashlib.sha256()
    for path in sorted(_SOURCES.iterdir()):
        if path.suffix in {".c", ".h"} or path.name == "Makefile":
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    built = Path(tempfile.gettempdir()) / f"echomq-native-{os.getuid()}-{digest.hexdigest()[:16]}.so"
    if not built.exists():
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "emq.so"
            subprocess.run([make, "-s", "-C", str(_SOURCES), f"OUT={made}"], check=True, capture_output=True)
            # In one step: another process may do the same now.
            shutil.move(made, f"{built}.{os.getpid()}")
            Path(f"{built}.{os.getpid()}").rename(built)
    return built


def load_options() -> tuple[str, ...]:
    """What a server is started with to have the module."""
    return ("--loadmodule", str(module()), "--enable-module-command", "yes")


def native_server(own_server: OwnServer, **options: object) -> ValkeyServer:
    """A server of the test's own with the module."""
    return own_server(args=load_options(), **options)


@pytest.fixture(scope="module")
def own_native() -> Iterator[ValkeyServer]:
    """A server for one file of tests, whose module may come and go."""
    server = ValkeyServer(args=load_options()).start()
    yield server
    server.close()


@pytest.fixture
def native(own_native: ValkeyServer) -> ValkeyServer:
    """That one with the module, emptied, its counters of calls at zero."""
    own_native.admin.flushall()
    if not loaded(own_native):
        load(own_native)
    own_native.admin.config_resetstat()
    return own_native


def loaded(server: ValkeyServer) -> bool:
    """Whether it has the module now."""
    admin: Any = server.admin
    return any(one[b"name"] == b"emq" for one in admin.module_list())


def load(server: ValkeyServer) -> None:
    """MODULE LOAD."""
    admin: Any = server.admin
    admin.execute_command("MODULE", "LOAD", str(module()))
