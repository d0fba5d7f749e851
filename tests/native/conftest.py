"""Fixtures for tests of the module: one server with it for the session, and both ways of a call on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.native import load_options
from tests.support.twin import Twins
from tests.support.valkey import ValkeyServer


@pytest.fixture(scope="session")
def native() -> Iterator[ValkeyServer]:
    """The session's server with the module. Tests do not stop it and change no setting of it."""
    server = ValkeyServer(args=load_options()).start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def twins(native: ValkeyServer) -> Iterator[Twins]:
    """A script in database 0 beside its twin in database 1."""
    pair = Twins(native)
    yield pair
    pair.close()
