"""Tracing a producer: what a traced wire sends does what the verb does, and its rows say which span they come from.

Source: issue "Made for the people who run it" (OpenTelemetry), decision 0040.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from opentelemetry.trace import StatusCode
from redis.asyncio import Redis

from echomq_worker import Flows, Jobs, Lanes, New, Node, sync
from echomq_worker.connector import Connector, Wire
from echomq_worker.errors import ConnectionLost, EchoMQError, KindRefused, Unreachable
from echomq_worker.identity import group_for
from echomq_worker.keyspace import Keys
from echomq_worker.script import evaluate_many, scripts
from echomq_worker.tracing import traced
from tests.support.keyspace import keyspace_of
from tests.support.plain import job as job_id
from tests.support.telemetry import Kept
from tests.support.valkey import ValkeyServer

VERBS: dict[str, Callable[[Wire], Coroutine[Any, Any, Any]]] = {
    "enqueue": lambda wire: Jobs(wire).enqueue("q", b"x", id=job_id(1)),
    "enqueue with a key": lambda wire: Jobs(wire).enqueue("q", b"x", id=job_id(1), dedup="k", expires_at_ms=2**52),
    "enqueue_at": lambda wire: Jobs(wire).enqueue_at("q", b"x", -5, id=job_id(1)),
    "enqueue_many": lambda wire: Jobs(wire).enqueue_many("q", [New(b"a", job_id(1)), New(b"b", job_id(2))]),
    "enqueue_many of all kinds": lambda wire: Jobs(wire).enqueue_many(
        "q", [New(b"a", job_id(1), group_for("t")), New(b"b", "USR00000000001"), New(b"c", job_id(3), at_ms=7)]
    ),
    "lanes": lambda wire: Lanes(wire).enqueue("q", group_for("t"), b"x", id=job_id(1)),
    "foreign": lambda wire: Jobs(wire).enqueue("q", b"x", id="USR00000000001"),
    "foreign at": lambda wire: Jobs(wire).enqueue_at("q", b"x", 5, id="USR00000000001"),
    "flow": lambda wire: Flows(wire).add(Node("q", b"p", [Node("q", b"c", id=job_id(2))], id=job_id(1))),
    "flow with lanes": lambda wire: Flows(wire).add(
        Node("q", b"p", [Node("r", b"c", id=job_id(2), group=group_for("t"), policy="id")], id=job_id(1))
    ),
}


async def said_by(call: Coroutine[Any, Any, Any]) -> Any:
    """What a verb answers, or its refusal."""
    try:
        return await call
    except EchoMQError as error:
        return type(error), str(error)


@pytest.mark.parametrize("verb", VERBS)
async def test_a_traced_verb_does_what_the_verb_does(wire: Connector, raw: Redis, verb: str) -> None:
    """The same answer, the first time and the second, the same refusal, and the same keys, but for the field."""
    plain = [await said_by(VERBS[verb](wire)) for _ in range(2)]
    expected = await keyspace_of(raw)
    await raw.flushall()
    await wire.call("SET", "{emq}:version", "echomq:3.0.0")
    kept = Kept()

    answers = [await said_by(VERBS[verb](traced(wire, **kept.providers))) for _ in range(2)]

    assert answers == plain
    found = await keyspace_of(raw)
    carried = [value.pop("trace") for value in found.values() if isinstance(value, dict) and "trace" in value]
    assert found == expected
    assert len(carried) == sum(":job:" in name and isinstance(value, dict) for name, value in expected.items())
    refused = isinstance(plain[0], tuple) and plain[0][0] is KindRefused
    first = kept.spans()[0]
    assert (first.status.status_code is StatusCode.ERROR) == refused


def test_a_producer_without_an_event_loop_is_traced(url: str, server: ValkeyServer) -> None:
    """The connector itself is what is traced; the rows say so."""
    kept, plain = Kept(), sync.Connector(url)
    with plain, sync.Connector(url) as connector:
        jobs = sync.Jobs(traced(connector, **kept.providers))
        receipts = [jobs.enqueue("q", b"x"), *jobs.enqueue_many("q", [b"y", b"z"])]
        other = sync.Jobs(plain).enqueue("q", b"x")

    rows = [server.admin.hget(f"emq:{{q}}:job:{one.id}", "trace") for one in receipts]
    assert len(kept.spans("enqueue q")) == 2
    assert None not in rows
    assert rows[1] == rows[2] != rows[0]
    assert server.admin.hget(f"emq:{{q}}:job:{other.id}", "trace") is None


async def test_a_server_that_has_forgotten_the_scripts_makes_no_second_span(wire: Connector, raw: Redis) -> None:
    """They are sent again with their text, within the same span."""
    kept = Kept()
    jobs = Jobs(traced(wire, **kept.providers))
    for verb in (lambda: jobs.enqueue("q", b"x"), lambda: jobs.enqueue_many("q", [b"y", b"z"])):
        await raw.script_flush()
        await verb()

    assert len(kept.spans()) == 2
    assert await raw.zcard("emq:{q}:pending") == 3


async def test_what_is_lost_behind_a_forgotten_script_may_have_been_done(wire: Connector, raw: Redis) -> None:
    """Some of a trip were admitted, the others were to be sent again with their text, and that reached nobody: whoever
    asks is not told that nothing was sent.
    """

    class Cut:
        trips = 0

        async def call(self, *args: Any) -> Any:
            return await wire.call(*args)

        async def pipeline(self, commands: Any) -> list[Any]:
            self.trips += 1
            if self.trips == 2:
                raise Unreachable("cut")
            return await wire.pipeline(commands)

    await raw.script_flush()
    await Jobs(wire).enqueue("q", b"x", dedup="loads admit_many")
    await raw.script_load(scripts()["admit_traced"].source)
    some = [("enqueue_many", (Keys("q").pending,), (Keys("q").base, job_id(1), b"x"))]
    other = [("flow_hold", (Keys("q").job(job_id(2)), Keys("q").dependencies(job_id(2))), (job_id(2), b"x", 1))]
    with pytest.raises(ConnectionLost):
        await evaluate_many(traced(Cut(), **Kept().providers), [*some, *other])
    with pytest.raises(Unreachable):
        await evaluate_many(traced(Cut(), **Kept().providers), other)


async def test_a_producer_that_reaches_nobody_has_a_failed_span() -> None:
    """And the error of the verb."""
    kept = Kept()

    with pytest.raises(Unreachable):
        await Jobs(traced(Connector("redis://127.0.0.1:1/0"), **kept.providers)).enqueue("q", b"x")

    (span,) = kept.spans()
    assert (span.attributes or {})["error.type"] == "Unreachable"
    ((attributes, count),) = kept.points("messaging.client.operation.duration")
    assert (attributes["error.type"], count) == ("Unreachable", 1)
    assert kept.points("messaging.client.sent.messages") == []
