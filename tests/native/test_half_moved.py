"""Every command against a slot that is half moved: a key that has gone ahead stops it, and nothing is written.

Source: protocol section 7 ("reads all that it will touch before its first write"); decision 0027. Rows and lanes are
derived in a command, which no cluster looks at by itself. The cases are those of the scripts.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from echomq_worker.connector import connect
from echomq_worker.errors import EchoMQError, Unavailable
from tests.edges.test_cluster_scripts import Slot
from tests.native.test_touch_types import NATIVE_CASES, ungrouped
from tests.scripts.test_touch_types import ALL_CASES
from tests.support.cluster import ValkeyCluster, valkey_cluster
from tests.support.flows import FlowVerbs
from tests.support.native import load_options
from tests.support.plain import FAR_MS, OTHER_GROUP, Queue, State, job
from tests.support.valkey import raw_client

# What commands declare stands there: else the server itself would stop the most of them.
DECLARED: State = {
    **{name: {job(90): FAR_MS} for name in ("pending", "active", "schedule", "dead")},
    "ring": [OTHER_GROUP],
    "meta": {"x": "y"},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    """Two primaries with the module."""
    with valkey_cluster(primaries=2, replicas=0, args=load_options()) as made:
        yield made


@pytest.mark.timeout(300)
async def test_what_a_half_moved_slot_stops_has_written_nothing(cluster: ValkeyCluster) -> None:
    """Each case with its first key gone ahead, and with its last: what is left is untouched, here and there."""
    half, stopped = Slot(cluster), dict.fromkeys(NATIVE_CASES, 0)
    async with raw_client(half.source.url) as raw, connect(cluster.url, wire=6) as wire:
        queue, verbs = Queue(raw), FlowVerbs(wire)
        for case in NATIVE_CASES:
            state, verb = ALL_CASES[case]
            state = ungrouped(case, state)
            ahead = {next(iter(state), None), next(iter(reversed(state)), None)}
            state = DECLARED | state
            for sent in ahead:
                half.stay()
                await queue.put(state)
                before = await queue.state()
                before.pop(sent or "", None)
                half.begin(None if sent is None else queue.keys.base + sent)
                try:
                    await verb(verbs)
                except Unavailable:
                    stopped[case] += 1
                except EchoMQError as error:
                    pytest.fail(f"{case} without {sent}: {error}")
                else:
                    continue
                assert await queue.state() == before, f"{case}: written although {sent} is with another node"
                assert half.arrived() == (sent is not None), f"{case}: written at the new node, {sent} had arrived"
    half.stay()

    assert [case for case, count in stopped.items() if not count] == [], "these were never stopped, the test is blind"
