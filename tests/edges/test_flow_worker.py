"""Flows through a whole worker: what handlers return reaches the parents, in one queue and across queues."""

from __future__ import annotations

import importlib
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker import Done, Flows, Job, Node, Reject, Worker, connect
from echomq_worker.connector import Connector
from tests.support.keyspace import keyspace_of
from tests.support.running import running
from tests.support.waiting import wait_until


async def test_the_example_runs(url: str, raw: Redis, caplog: pytest.LogCaptureFixture) -> None:
    """Added as its program adds it, then a burst: figures, pages, the report; only a figure that died is left."""
    # By name: type checkers would find the file under two of them.
    example: Any = importlib.import_module("examples.flow")
    with caplog.at_level("INFO", logger="flow"):
        async with connect(url) as connector:
            added = await Flows(connector).add(example.a_report())
        async with running(example.worker, url, options={"burst": True}) as run:
            await run.task

    pages = [record.args for record in caplog.records if record.name == "flow"]
    assert sorted(str(one) for one in pages) == [
        "{'title': 'Returns', 'total': 7, 'missing': 1}",
        "{'title': 'Sales', 'total': 15, 'missing': 0}",
    ]
    assert (run.report.completed, run.report.dead) == (6, 1)
    found = {name for name in await keyspace_of(raw) if ":job:" in name or name.endswith(("outbox", "pending"))}
    assert found == {f"emq:{{figures}}:job:{added.children[1].children[1].id}"}


async def test_children_in_a_batch_complete_their_parent(url: str) -> None:
    """With the results that the batch handler gives, or none; the one that died is among the ignored."""
    worker, told = Worker(), list[Any]()

    @worker.batch_handler("kids", min_size=4, timeout_ms=50)
    async def kids(jobs: list[Job]) -> dict[str, Any]:
        answers = {b"1": Done({"n": 1}), b"2": None, b"3": Reject("no"), b"4": Done([4])}
        return {job.id: answers[job.payload] for job in jobs}

    @worker.handler("parents")
    async def parent(job: Job) -> None:
        told.append((await job.children_values(), await job.ignored_failures()))

    async with connect(url) as connector, running(worker, url):
        below = [Node("kids", n, policy="id") for n in (1, 2, 3, 4)]
        added = await Flows(connector).add(Node("parents", b"", below))
        await wait_until(lambda: bool(told), "the parent has run")

    one, two, three, four = (child.id for child in added.children)
    assert told == [({one: {"n": 1}, two: two, four: [4]}, {three: "no"})]


class Told:
    """A worker of two queues; what its parents were told."""

    def __init__(self) -> None:
        self.worker = Worker()
        self.parents: list[tuple[dict[str, object], dict[str, str], Any]] = []

        @self.worker.handler("kids")
        async def kid(payload: Any) -> Any:
            if payload == ["reject"]:
                raise Reject("no")
            return payload

        @self.worker.handler("plain")
        def plain(payload: Any) -> Any:
            return payload

        @self.worker.handler("parents")
        async def parent(job: Job) -> object:
            asked = job.children_values, job.ignored_failures, job.dependencies
            self.parents.append(tuple([await ask() for ask in asked]))  # type: ignore[arg-type]  # three of them
            return object()

        @self.worker.handler("threads")
        def thread(job: Job) -> None:
            ask = job.blocking
            self.parents.append((ask.children_values(), ask.ignored_failures(), ask.dependencies()))


@pytest.mark.parametrize("parent", ["parents", "threads"])
@pytest.mark.parametrize("kids", ["kids", "plain"])
async def test_results_reach_the_parent(url: str, raw: Redis, parent: str, kids: str) -> None:
    """JSON of every kind, from coroutines and from threads, to coroutines and to threads. Of the parent, which has none
    itself, nothing is kept: it may return anything.
    """
    values = [{"a": [1]}, "text", "5", 5, False, None, ["zoë"]]
    told = Told()
    async with connect(url) as connector:
        added = await Flows(connector).add(Node(parent, "x", [Node(kids, [value]) for value in values]))
        async with running(told.worker, url):
            await wait_until(lambda: told.parents, "the parent has run")
            await wait_until(lambda: _over(raw), "it has completed")

    assert told.parents[0][0] == {child.id: [value] for child, value in zip(added.children, values, strict=True)}
    assert len(told.parents) == 1


async def _over(raw: Redis) -> bool:
    return not [name async for name in raw.scan_iter("emq:*:job:*")]


async def test_nothing_returned_and_ignored_failures(url: str, raw: Redis) -> None:
    """The child's id where it returned nothing; why it died where that is ignored."""
    told = Told()
    async with connect(url) as connector:
        kids = [Node("kids", None), Node("kids", ["reject"], policy="id")]
        added = await Flows(connector).add(Node("parents", "x", [Node("kids", b"null"), kids[1]]))
        async with running(told.worker, url):
            await wait_until(lambda: told.parents, "the parent has run")

    done, ignored = (child.id for child in added.children)
    values, why, stand = told.parents[0]
    assert (values, why) == ({done: done}, {ignored: "no"})
    assert (stand.out, stand.processed, stand.ignored, stand.failed) == (0, [done], [ignored], [])


@pytest.mark.parametrize("kids", ["kids", "plain"])
async def test_what_has_no_form_is_a_failure_of_the_child(url: str, raw: Redis, kids: str) -> None:
    """Retried, then dead with the reason; of a job that is nobody's child anything may be returned."""
    worker = Worker()

    @worker.handler("kids", max_attempts=2)
    async def kid() -> object:
        return object()

    @worker.handler("plain", max_attempts=2)
    def plain() -> object:
        return object()

    @worker.handler("parents")
    async def parent() -> None: ...

    async with connect(url) as connector:
        added = await Flows(connector).add(Node("parents", "x", [Node(kids, "x")]))
        async with running(worker, url):
            await wait_until(lambda: _dead(connector, added.id), "the parent is dead")
    reading: Any = raw.hgetall(f"emq:{{{kids}}}:job:{added.children[0].id}")
    row = await reading
    assert row[b"last_error"].startswith(b"InvalidArgument: result of type object: cannot be written")
    assert row[b"failures"] == b"2"


async def _dead(connector: Connector, id: str) -> bool:
    seen = await Flows(connector).tree("parents", id)
    return seen is not None and seen.state == "dead"


async def test_a_report_crosses_queues_well_within_a_tick(url: str) -> None:
    """The Pump looks at once where a child has ended: two levels up in much less than the tick of 10 s."""
    told = Told()
    tree = Node("parents", "x", [Node("plain", ["x"], [Node("kids", [1])])])
    async with connect(url) as connector, running(told.worker, url, tick_ms=10_000):
        began = time.monotonic()
        await Flows(connector).add(tree)
        await wait_until(lambda: told.parents, "the root has run")
        took_s = time.monotonic() - began
        await wait_until(lambda: _gone(connector), "nothing is left")

    assert took_s < 8


async def _gone(connector: Connector) -> bool:
    return not await connector.call("KEYS", "emq:*:job:*")
