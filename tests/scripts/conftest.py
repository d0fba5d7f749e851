"""Fixtures for tests of scripts: one queue's state, and the verbs over a connector."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from echomq_worker.connector import Connector, connect
from tests.support.control import Control
from tests.support.flows import FlowVerbs
from tests.support.native import WIRE
from tests.support.own import Own
from tests.support.plain import Plain, Queue


@pytest.fixture
async def wire(url: str) -> AsyncIterator[Connector]:
    """A connector on the session's server."""
    async with connect(url, wire=os.environ.get(WIRE, "4")) as connector:
        yield connector


@pytest.fixture
def plain(wire: Connector) -> Plain:
    """The plain verbs on queue `q`."""
    return Plain(wire)


@pytest.fixture
def own(wire: Connector) -> Own:
    """Our own verbs on queue `q`, and the plain ones."""
    return Own(wire)


@pytest.fixture
def queue(raw: Redis) -> Queue:
    """The state of queue `q`."""
    return Queue(raw)


@pytest.fixture
def control(wire: Connector) -> Control:
    """The operator's verbs on queue `q`, and all others."""
    return Control(wire)


@pytest.fixture
def flow(wire: Connector) -> FlowVerbs:
    """The verbs of flows on queue `q`, and all others."""
    return FlowVerbs(wire)
