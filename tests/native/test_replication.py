"""What the commands write reaches replicas and the append-only file as plain writes: neither needs the module.

Source: protocol section 7; issue "The native twins" (effects are replicated and appended as effects).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.native.hot_states import HOT_CALLS, hot_queues
from tests.native.states import ALONE, CALLS
from tests.support.native import load_options
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, State, job
from tests.support.twin import BASE, Outcome, Twins, Verb, assert_alike, snapshot
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until_sync

_DATABASE = 1
_others = st.one_of(*HOT_CALLS.values(), *CALLS.values(), *ALONE.values())
_calls = st.one_of(HOT_CALLS["claim_many"], HOT_CALLS["settle"], _others)
_STRIDE = 6


class Pair:
    """A primary with the module and an append-only file, and a replica without it."""

    def __init__(self) -> None:
        options = (*load_options(), "--repl-diskless-sync-delay", "0")
        self.primary = ValkeyServer(args=options, append_only=True).start()
        self.replica = ValkeyServer(args=("--replicaof", f"127.0.0.1 {self.primary.port}")).start()
        self.twins = Twins(self.primary)
        self._clients = [redis.Redis(port=one.port, db=_DATABASE) for one in (self.primary, self.replica)]
        wait_until_sync(lambda: self.state(1).reply == "up", "the replica follows")

    def state(self, which: int) -> Outcome:
        """The keyspace of the primary (0) or the replica (1), and the state of its link."""
        client = self._clients[which]
        return Outcome(client.info("replication").get("master_link_status"), *snapshot(client))

    def assert_same(self) -> None:
        """The replica has what the primary has."""
        self.twins.replicated()
        primary, replica = self.state(0), self.state(1)
        assert_alike(Outcome(None, primary.state, primary.expiring), Outcome(None, replica.state, replica.expiring))

    def close(self) -> None:
        """End both servers."""
        self.twins.close()
        for client in self._clients:
            client.close()
        self.replica.close()
        self.primary.close()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """A primary and its replica for the tests of this file."""
    made = Pair()
    yield made
    made.close()


def verdicts_of(flat: list[Any], random: str, number: int) -> list[Any]:
    """One of each kind in turn, as a worker answers a claim."""
    words: list[Any] = []
    for at in range(0, len(flat), _STRIDE):
        fence = (flat[at], f"{flat[at + 2]}:{random}", flat[at + 3])
        kinds = [("c", *fence), ("r", *fence, 0, 3, "boom"), ("d", *fence, "in", 0), ("v", *fence, "result")]
        words += kinds[(number + at // _STRIDE) % len(kinds)]
    return words


def work(twins: Twins, rounds: int) -> int:
    """Some rounds of a worker's way, flat jobs and lanes; how many were claimed."""
    claimed = 0
    twins.raw({})
    for number in range(rounds):
        twins.again(Verb("enqueue_many", ("pending",), (BASE, job(10 * number + 1), "x", job(10 * number + 2), "y")))
        more = [
            (job(10 * number + 3 + n), "z", group, "", "", "", "", "") for n, group in enumerate((GROUP, OTHER_GROUP))
        ]
        words = [word for one in more for word in one]
        twins.again(Verb("admit_many", ("pending", "schedule"), (BASE, *words)))
        twins.again(Verb("promote", ("schedule", "pending"), (BASE, 100)))
        claim = Verb(
            "claim_many",
            ("pending", "active", "ring", "meta", "claimed:c"),
            (BASE, 60_000, 5, number, f"r{number}", 5, 1),
        )
        _, _, random, flat, _, _ = twins.again(claim)
        claimed += len(flat) // _STRIDE
        if number % 3 < 2:
            settle = (BASE, *verdicts_of(flat, random, number))
            twins.again(Verb("settle", ("active", "pending", "schedule", "dead"), settle))
    return claimed


def test_a_workers_way_reaches_a_replica(pair: Pair) -> None:
    """Admissions, claims and verdicts of every kind, flat and in lanes."""
    assert work(pair.twins, 9) > 20
    assert len(pair.state(0).state) > 10
    pair.assert_same()


def test_what_has_no_script_reaches_a_replica(pair: Pair) -> None:
    """RESCHEDULE, and REQUEUE to flat pending and to a lane."""
    row = {"attempts": "1", "payload": "x"}
    pair.twins.raw(
        {
            f"job:{job(1)}": row | {"state": "scheduled"},
            f"job:{job(2)}": row | {"state": "active"},
            f"job:{job(3)}": row | {"state": "active", "group": GROUP},
            "schedule": {job(1): FAR_MS},
            "active": {job(2): FAR_MS, job(3): FAR_MS},
            "gactive": {GROUP: "1"},
        }
    )
    pair.assert_same()
    before = pair.state(1).state
    moved = Verb("reschedule", (f"job:{job(1)}", "schedule"), (job(1), "at", 7))
    back = [Verb("requeue", (f"job:{job(n)}", "active", "pending"), (job(n), "1")) for n in (2, 3)]
    assert [pair.twins.again(verb) for verb in (moved, *back)] == [1, 1, 1]
    pair.assert_same()
    after = pair.state(1).state
    assert all(before[key] != after.get(key) for key in ("schedule", "active", "gactive"))


def test_whatever_is_called_reaches_a_replica(pair: Pair) -> None:
    """On whatever queue, in the order of the calls."""

    @settings(suppress_health_check=[HealthCheck.too_slow], max_examples=30)
    @given(state=hot_queues(), verbs=st.lists(_calls, min_size=1, max_size=3))
    def example(state: State, verbs: list[Verb]) -> None:
        pair.twins.raw(state)
        for verb in verbs:
            pair.twins.again(verb)
        pair.assert_same()

    example()


def test_a_restart_has_it_from_the_file(pair: Pair) -> None:
    """The append-only file leads to the keyspace that stood."""
    work(pair.twins, 4)
    before = pair.state(0)
    pair.primary.restart()
    assert_alike(before, pair.state(0))
