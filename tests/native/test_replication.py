"""What the commands write reaches replicas and the append-only file as plain writes: neither needs the module.

Source: protocol section 7; issue "The native twins" (effects are replicated and appended as effects).
"""

from __future__ import annotations

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.native.hot_states import HOT_CALLS, hot_queues
from tests.native.states import CALLS
from tests.support.native import load_options
from tests.support.plain import State
from tests.support.twin import Outcome, Twins, Verb, assert_alike, snapshot
from tests.support.valkey import OwnServer
from tests.support.waiting import wait_until_sync

_DATABASE = 1
_calls = st.one_of(*HOT_CALLS.values(), *CALLS.values(), HOT_CALLS["claim_many"], HOT_CALLS["settle"])


def seen_by(client: redis.Redis) -> Outcome:
    """The keyspace behind a client."""
    return Outcome(None, *snapshot(client))


def test_a_replica_ends_with_the_primarys_keyspace(own_server: OwnServer) -> None:
    """Whatever is called on whatever queue; the replica has no module. Then the same of a restart from the file."""
    primary = own_server(args=(*load_options(), "--repl-diskless-sync-delay", "0"), append_only=True)
    replica = own_server(args=("--replicaof", f"127.0.0.1 {primary.port}"))
    twins, copy = Twins(primary), redis.Redis(port=replica.port, db=_DATABASE)
    client = redis.Redis(port=primary.port, db=_DATABASE)
    wait_until_sync(lambda: copy.info("replication")["master_link_status"] == "up", "the replica follows", 30)

    @settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40)
    @given(state=hot_queues(), verbs=st.lists(_calls, min_size=1, max_size=3))
    def example(state: State, verbs: list[Verb]) -> None:
        twins.command(state, verbs[0])
        for verb in verbs[1:]:
            twins.again(verb)
        twins.replicated()
        assert_alike(seen_by(client), seen_by(copy))

    example()
    last = seen_by(client)
    primary.restart()
    assert_alike(last, seen_by(client))
    twins.close()
    client.close()
    copy.close()
