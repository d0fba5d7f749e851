"""Every script against a slot that is half moved: what it cannot reach stops it, and nothing is written.

Source: protocol section 4 ("Touch every key before the first write"). The cases are those of tests/scripts/test_touch,
where the server refuses a key by ACL; here the key is with another node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from echomq_worker.connector import connect
from echomq_worker.errors import Unavailable
from echomq_worker.keyspace import Keys, slot
from tests.scripts.test_touch import CASES
from tests.support.cluster import ValkeyCluster, valkey_cluster
from tests.support.flows import FlowVerbs
from tests.support.plain import QUEUE, Queue, State
from tests.support.valkey import ValkeyServer, raw_client

_KEYS_A_CASE = 3
SLOT = slot(Keys(QUEUE).pending)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    """Two primaries."""
    with valkey_cluster(primaries=2, replicas=0) as made:
        yield made


class Slot:
    """The slot of the queue between two nodes."""

    def __init__(self, cluster: ValkeyCluster) -> None:
        self.source = cluster.owner(QUEUE)
        self.target = cluster.other_than(self.source)
        self._ids = [self._do(server, "CLUSTER MYID").decode() for server in (self.source, self.target)]

    def begin(self, sent: str | None) -> None:
        """It is on its way, and one key has arrived."""
        self._do(self.target, "CLUSTER SETSLOT", SLOT, "IMPORTING", self._ids[0])
        self._do(self.source, "CLUSTER SETSLOT", SLOT, "MIGRATING", self._ids[1])
        if sent is not None:
            self._do(self.source, "MIGRATE", "127.0.0.1", self.target.port, sent, 0, 5_000)

    def stay(self) -> None:
        """It is where it was, empty."""
        for server in (self.source, self.target):
            self._do(server, "FLUSHALL")
            self._do(server, "CLUSTER SETSLOT", SLOT, "STABLE")

    def arrived(self) -> int:
        """How many keys of the slot the new node has."""
        return int(self._do(self.target, "CLUSTER COUNTKEYSINSLOT", SLOT))

    @staticmethod
    def _do(server: ValkeyServer, *words: str | int) -> Any:
        send: Any = server.admin.execute_command
        return send(*words)


@pytest.mark.timeout(300)
async def test_what_a_half_moved_slot_stops_has_written_nothing(cluster: ValkeyCluster) -> None:
    """Every case with one of its keys gone ahead, three in turn, and with none: what is left is untouched. Report 102
    (dramatiq#754).

    Where nothing that a verb reads is missing it works as ever.
    """
    half, stopped = Slot(cluster), dict.fromkeys(CASES, 0)
    async with raw_client(half.source.url) as raw, connect(cluster.url) as wire:
        queue, verbs = Queue(raw), FlowVerbs(wire)
        for case, (state, verb) in CASES.items():
            whole: State = {}
            for sent in (None, *list(state)[:: len(state) // _KEYS_A_CASE + 1]):
                half.stay()
                await queue.put(state)
                whole = whole or await queue.state()
                before = {name: value for name, value in whole.items() if name != sent}
                half.begin(None if sent is None else queue.keys.base + sent)
                try:
                    await verb(verbs)
                except Unavailable:
                    stopped[case] += 1
                    assert await queue.state() == before, f"{case}: written although {sent} is with another node"
                assert half.arrived() == (sent is not None), f"{case}: written at the new node, {sent} had arrived"
    half.stay()

    assert [case for case, count in stopped.items() if not count] == [], "these were never stopped, the test is blind"
