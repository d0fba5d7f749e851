"""A key of another type is met before the first write by the twins too, with the server's own answer.

Source: protocol section 7 ("reads all that it will touch before its first write"). The cases are those of the scripts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from echomq_worker.connector import connect
from echomq_worker.errors import EchoMQError
from echomq_worker.twins import TWINS
from tests.scripts.test_touch import NAMES, Verb
from tests.scripts.test_touch_types import ALL_CASES, WRONG
from tests.support.flows import FlowVerbs
from tests.support.plain import GROUP, Queue, State
from tests.support.valkey import ValkeyServer, raw_client

# Of a row in a lane they decline.
_LANES = ("delay", "promote")
NATIVE_CASES = [case for case in ALL_CASES if case.split()[0] in TWINS]


@pytest.fixture
async def flow(native: ValkeyServer) -> AsyncIterator[FlowVerbs]:
    """The verbs over wire 6."""
    native.admin.flushall()
    async with connect(native.url, wire=6) as connector:
        yield FlowVerbs(connector)
    native.admin.flushall()


@pytest.fixture
async def queue(native: ValkeyServer) -> AsyncIterator[Queue]:
    """The state of queue `q` on the server with the module."""
    async with raw_client(native.url) as client:
        yield Queue(client)


def ungrouped(case: str, state: State) -> State:
    """The state of a case, without lanes where the command declines them."""
    if case.split(maxsplit=1)[0] not in _LANES:
        return state
    return {
        name: {field: one for field, one in value.items() if field != "group"} if isinstance(value, dict) else value
        for name, value in state.items()
        if not name.startswith(f"g:{GROUP}")
    }


async def _refusal(verb: Verb, flow: FlowVerbs) -> str:
    """The text of the error, nothing where it is taken."""
    try:
        await verb(flow)
    except EchoMQError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("case", NATIVE_CASES)
async def test_a_key_of_another_type_leaves_everything_as_it_was(case: str, flow: FlowVerbs, queue: Queue) -> None:
    """Each key in turn: the verb does not use it and succeeds, or answers WRONGTYPE and the keyspace is unchanged."""
    state, verb = ALL_CASES[case]
    state = ungrouped(case, state)
    refused = set()
    await queue.put(state)
    found = await queue.state()
    for name in NAMES:
        await queue.raw.flushall()
        await queue.put(state | {name: WRONG[name]})
        error = await _refusal(verb, flow)
        if error:
            refused.add(name)
            assert "WRONGTYPE" in error, f"{case}, {name}"
            before = found | {name: WRONG[name]}
            assert await queue.state() == before, f"{case}: written although {name} has another type"
    assert refused, f"{case}: no key was ever refused, the test is blind"
