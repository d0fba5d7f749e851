"""Flows whose workers are killed: every parent runs as often as its children allow, and nothing is stuck.

Source: issue "Every control", Done when; protocol section 6. `TEST_FLOW_KILLS` is the number of kills (default 50),
`TEST_FLOW_SEED` what they and the flows depend on.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.clock import SystemClock
from echomq_worker.connector import connect
from echomq_worker.flows import Flows, Node
from echomq_worker.identity import Mint, group_for
from echomq_worker.keyspace import Keys
from tests.support.flowing import Nursery, nursery, read_notes
from tests.support.keyspace import is_passing, keyspace_of
from tests.support.waiting import passes, wait_until

KILLS = int(os.environ.get("TEST_FLOW_KILLS", "50"))
SEED = int(os.environ.get("TEST_FLOW_SEED", "11"))
QUEUES = ("low", "mid", "top")


@dataclass
class Expected:
    """What must become of each job of all flows: `runs` says whether its handler may be called at all."""

    done: dict[str, set[str]] = field(default_factory=lambda: {queue: set() for queue in QUEUES})
    dead: dict[str, set[str]] = field(default_factory=lambda: {queue: set() for queue in QUEUES})
    runs: set[str] = field(default_factory=set)
    # Of each parent that runs: the children that are done, and those that are dead but ignored.
    heard: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict)

    def plan(self, node: Node) -> bool:
        """File what becomes of a node and of all below it; answers whether it is done."""
        assert node.id is not None
        done, ignored, fails = set(), set(), False
        for child in node.children:
            assert child.id is not None
            if self.plan(child):
                done.add(child.id)
            elif child.policy == "id":
                ignored.add(child.id)
            else:
                fails = True
        payload: Any = node.payload
        if not fails:
            self.runs.add(node.id)
            if node.children:
                self.heard[node.id] = (done, ignored)
        ends_well = not fails and not payload.get("reject")
        (self.done if ends_well else self.dead)[node.queue].add(node.id)
        return ends_well


def a_flow(draw: random.Random, mint: Mint) -> Node:
    """Three levels over three queues; one leaf in eight is rejected, half of all deaths are ignored."""

    def node(queue: str, children: list[Node]) -> Node:
        payload = {"sleep_ms": draw.randrange(30), "reject": queue == "low" and draw.random() < 1 / 8}
        group = group_for(f"lane {draw.randrange(3)}") if draw.random() < 1 / 3 else None
        policy: Any = draw.choice(["fp", "id"])
        return Node(queue, payload, children, id=mint.next(), group=group, policy=policy)

    mids = range(draw.randrange(1, 4))
    return node("top", [node("mid", [node("low", []) for _ in range(draw.randrange(1, 4))]) for _ in mids])


async def _over(raw: Redis) -> bool:
    """Whether nothing waits, runs, is due or is on its way."""
    names = [name async for name in raw.scan_iter("emq:*", count=5_000)]
    busy = (b":pending", b":active", b":schedule", b":flow:outbox")
    return not any(name.endswith(busy) for name in names)


async def _kill_again_and_again(nest: Nursery, draw: random.Random) -> None:
    """Two workers; again and again one of them is killed while the other goes on, and is started anew."""
    workers = [nest.start(), nest.start()]
    for _ in range(KILLS):
        # A worker is up and claims after some 50 ms.
        await passes(draw.uniform(20, 450), "a worker is killed at any moment")
        victim = draw.randrange(2)
        nest.kill(workers[victim])
        workers[victim] = nest.start()


@pytest.mark.timeout(400)
async def test_a_worker_is_killed_fifty_times(url: str, raw: Redis, tmp_path: Path) -> None:
    """Three-level flows over three queues, two workers with their Pumps, one killed at random points 50 times: every
    parent runs exactly as often as its children allow, nothing is stuck, no report is left.

    A handler may be started again after a kill (at least once); it counts once, and never before its children.
    """
    draw, mint, expected = random.Random(SEED), Mint(SystemClock(), 9), Expected()
    notes, log = tmp_path / "notes", tmp_path / "log"
    async with connect(url) as connector:
        with nursery(url, notes, log) as nest:
            killing = asyncio.create_task(_kill_again_and_again(nest, draw))
            while not killing.done():
                trees = [a_flow(draw, mint) for _ in range(3)]
                await Flows(connector).add_bulk(trees)
                for tree in trees:
                    expected.plan(tree)
                await asyncio.wait({killing}, timeout=0.15)
            await killing
            await wait_until(lambda: _over(raw), "everything has ended", 200)
    assert [line for line in log.read_text().splitlines() if not line.startswith("job dead ")] == []

    check_runs(expected, read_notes(notes), nest)
    await check_keys(expected, raw)
    assert len(nest.killed) == KILLS
    assert min(len(expected.dead["top"]), len(expected.done["top"])) > 5, "both kinds of end were there"


def check_runs(expected: Expected, notes: list[dict[str, Any]], nest: Nursery) -> None:
    """Handlers: who ran, who did not, in which order, and what parents were told."""
    by_id: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for note in notes:
        by_id[note["id"]].append(note)
    assert set(by_id) == expected.runs
    over: dict[str, float] = {}
    for id, mine in by_id.items():
        starts = [note for note in mine if note["what"] == "start"]
        for start in starts[:-1]:
            assert nest.killed.get(start["pid"], 0) >= start["at"], f"{id} ran again though nobody was killed in it"
        ends = [note for note in mine if note["what"] in {"end", "reject"}]
        assert ends, f"{id} never ended"
        over[id] = ends[0]["at"]
        if id in expected.heard:
            done, ignored = expected.heard[id]
            for end in ends:
                assert (set(end["values"]), set(end["ignored"])) == (done, ignored), id
    for id, (done, ignored) in expected.heard.items():
        before = max((over[child] for child in (done | ignored) & expected.runs), default=0)
        assert by_id[id][0]["at"] >= before, f"{id} ran before its children had ended"


async def check_keys(expected: Expected, raw: Redis) -> None:
    """The whole keyspace: the dead with what they were told, the counts, and nothing else."""
    found = await keyspace_of(raw)
    for queue in QUEUES:
        keys = Keys(queue)
        assert found.pop(keys.dead, {}) == dict.fromkeys(expected.dead[queue], 0)
        assert found.pop(keys.completed) == {"count": str(len(expected.done[queue]))}
        assert found.pop(keys.failed, {"count": "0"}) == {"count": str(len(expected.dead[queue]))}
        for id in expected.dead[queue]:
            row: Any = found.pop(keys.job(id))
            assert row["state"] == "dead"
            assert row["last_error"] == "as asked" or row["last_error"].startswith("child JOB")
    left = [name for name in found if not _expected_to_be_left(name, expected)]
    assert left == []


def _expected_to_be_left(name: str, expected: Expected) -> bool:
    """A dead parent keeps what its children have told it."""
    if name.endswith((":version", ":meta")) or is_passing(name):
        return True
    return any(f":job:{id}:" in name for id in _dead_parents(expected))


def _dead_parents(expected: Expected) -> Iterator[str]:
    yield from expected.dead["mid"]
    yield from expected.dead["top"]
