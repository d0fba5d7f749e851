"""Flows: trees over queues, added as often as it takes, refused before anything is sent, read by parents and others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.connector import Connector, connect
from echomq_worker.errors import InvalidArgument, InvalidId, InvalidQueueName, KindRefused, StateRefused
from echomq_worker.flows import LEVELS, Added, Flows, Node
from tests.support.flows import LEAF, LEFT, RIGHT, ROOT, FlowVerbs, completion, death, pump, tree
from tests.support.own import complete
from tests.support.plain import GROUP, OTHER_GROUP, QUEUE, Queue, job, row
from tests.support.proxy import Proxy
from tests.support.valkey import ValkeyServer


async def test_progress_is_told_as_trees_go_out(wire: Connector, queue: Queue) -> None:
    """How many nodes of how many, up to all of them; what stands already is done without being sent."""
    roots = [Node(QUEUE, "x", [Node(QUEUE, "x")] * 3) for _ in range(300)]
    told: list[tuple[int, int]] = []
    await Flows(wire).add(tree())

    await Flows(wire).add_bulk([tree(), *roots], progress=lambda done, total: told.append((done, total)))

    assert len(told) > 2
    assert told == sorted(told)
    assert told[-1] == (1_204, 1_204)


async def test_a_tree_over_three_queues(wire: Connector, queue: Queue) -> None:
    """Parents wait, leaves are pending in their lane or flat, each names its parent; ids come back in order."""
    added = await Flows(wire).add(tree())

    assert added == Added(
        QUEUE, ROOT, True, (Added("mid", LEFT, True, (Added("low", LEAF, True),)), Added(QUEUE, RIGHT, True))
    )
    state = await queue.state()
    assert state == {
        f"job:{ROOT}": row("awaiting_children", payload='{"n":1}', children=f'{{"mid":["{LEFT}"],"q":["{RIGHT}"]}}'),
        f"job:{ROOT}:dependencies": "2",
        f"job:{RIGHT}": row(payload="three", parent=ROOT, parent_policy="fp"),
        "pending": {RIGHT: 0},
        "ready": ["1"],
        f"emq:{{mid}}:job:{LEFT}": row(
            "awaiting_children",
            payload='{"n":2}',
            parent=ROOT,
            parent_queue=QUEUE,
            parent_policy="fp",
            group=GROUP,
            children=f'{{"low":["{LEAF}"]}}',
        ),
        f"emq:{{mid}}:job:{LEFT}:dependencies": "1",
        f"emq:{{low}}:job:{LEAF}": row(
            payload='{"n":4}', parent=LEFT, parent_queue="mid", parent_policy="id", group=OTHER_GROUP
        ),
        f"emq:{{low}}:g:{OTHER_GROUP}:pending": {LEAF: 0},
        "emq:{low}:ring": [OTHER_GROUP],
        "emq:{low}:wake": ["1"],
    }


async def test_ids_are_minted_where_none_are_given(wire: Connector, queue: Queue) -> None:
    """Parents before their children, so that a parent that is released is served before what came later."""
    bulk = [Node(QUEUE, n, [Node(QUEUE, c) for c in range(3)]) for n in range(2)]

    one, two = await Flows(wire).add_bulk(bulk)

    ids = [one.id, *(child.id for child in one.children), two.id, *(child.id for child in two.children)]
    assert ids == sorted(set(ids))
    assert set((await queue.state())["pending"]) == {child.id for root in (one, two) for child in root.children}
    assert await Flows(wire).add_bulk([]) == []


def chain(levels: int, **fields: Any) -> Node:
    """A tree of one child each."""
    node = Node(QUEUE, "x", **fields)
    for _ in range(levels - 1):
        node = Node(QUEUE, "x", [node])
    return node


async def test_eight_levels_and_no_more(wire: Connector, queue: Queue) -> None:
    """The eighth is admitted, a ninth is refused before anything is sent."""
    with pytest.raises(InvalidArgument, match="deeper than 8 levels"):
        await Flows(wire).add(chain(LEVELS + 1))
    assert await queue.state() == {}

    await Flows(wire).add(chain(LEVELS))
    assert len([name for name in await queue.state() if name.startswith("job:")]) == 2 * LEVELS - 1


@pytest.mark.parametrize(
    ("node", "error"),
    [
        (Node(QUEUE, "x"), InvalidArgument),
        (Node(QUEUE, "x", [Node(QUEUE, "x", id=LEAF), Node(QUEUE, "x", id=LEAF)]), InvalidArgument),
        (Node(QUEUE, "x", [Node("other", "x", id=LEAF), Node(QUEUE, "x", id=LEAF)]), InvalidArgument),
        (Node(QUEUE, "x", [Node(QUEUE, "x", id=LEAF)], id=LEAF), InvalidArgument),
        (Node(QUEUE, "x", [Node(QUEUE, "x", policy="no")]), InvalidArgument),  # type: ignore[arg-type]  # what is refused
        (Node(QUEUE, "x", [Node(QUEUE, object())]), InvalidArgument),
        (Node(QUEUE, float("nan"), [Node(QUEUE, "x")]), InvalidArgument),
        (Node(QUEUE, "x", [Node(QUEUE, "x", id="JOB1")]), InvalidId),
        (Node(QUEUE, "x", [Node(QUEUE, "x", group="lane")]), InvalidId),
        (Node(QUEUE, "x", [Node("bad queue", "x")]), InvalidQueueName),
        (Node("emq", "x", [Node(QUEUE, "x")]), InvalidQueueName),
        (Node(QUEUE, "x", [Node(QUEUE, "x", id="USR00000000001")]), KindRefused),
        (Node(QUEUE, "x", [Node(QUEUE, "x")], id="USR00000000001"), KindRefused),
    ],
)
async def test_what_is_refused_is_refused_before_anything_is_sent(
    wire: Connector, queue: Queue, node: Node, error: type[Exception]
) -> None:
    """One line, whichever tree of the call it is in, and not a key is written."""
    with pytest.raises(error) as caught:
        await Flows(wire).add_bulk([tree(), node])

    assert "\n" not in str(caught.value)
    assert await queue.state() == {}


async def test_added_again_nothing_changes(wire: Connector, queue: Queue) -> None:
    """Each row stands; the answer has the same ids and says so."""
    first = await Flows(wire).add(tree())
    before = await queue.state()

    again = await Flows(wire).add(tree())

    assert await queue.state() == before
    assert ids_of(again) == ids_of(first)
    assert not any(admitted_of(again))


def ids_of(added: Added) -> list[str]:
    """Of a whole tree."""
    return [added.id, *(id for child in added.children for id in ids_of(child))]


def admitted_of(added: Added) -> list[bool]:
    """Of a whole tree."""
    return [added.admitted, *(one for child in added.children for one in admitted_of(child))]


@pytest.mark.parametrize("then", ["reset", "answer"])
@pytest.mark.parametrize("nth", range(1, 5))
async def test_a_producer_that_dies_half_way_adds_again(
    url: str, server: ValkeyServer, queue: Queue, nth: int, then: str
) -> None:
    """Whichever call was its last, arrived or not: the second add leaves what one add leaves."""
    async with connect(url) as whole:
        await Flows(whole).add(tree())
    expected = await queue.state()
    await queue.raw.flushdb()

    async with Proxy(server.port) as proxy, connect(proxy.url) as broken:
        if then == "reset":
            proxy.swallow_reply(b"EVALSHA", nth)
        else:
            proxy.answer("OOM not now", b"EVALSHA", nth)
        with pytest.raises(Exception, match=r"."):
            await Flows(broken).add(tree())
    async with connect(url) as whole:
        await Flows(whole).add(tree())

    assert await queue.state() == expected


async def test_a_child_that_has_reported_is_not_run_again(wire: Connector, queue: Queue) -> None:
    """Done, dead or ignored, told already or still on its way: the parent waits for the others only."""
    kids = [Node("low", n, id=job(10 + n), policy="id" if n == 2 else "fp") for n in range(5)]
    root = Node(QUEUE, "root", kids, id=ROOT)
    await Flows(wire).add(root)
    low, here = FlowVerbs(wire, "low"), FlowVerbs(wire)
    await low.claim_batch(5)
    # The first is told, the second on its way, the third dead and told, the fourth dead and on its way; the fifth was
    # never added.
    await low.complete(job(10), 1)
    await here.deliver(ROOT, job(10))
    await low.complete(job(11), 1)
    await low.retry(job(12), 1, max_attempts=1)
    await here.deliver_death(ROOT, job(12), "id")
    await low.remove_job(job(12), "dead")
    await low.retry(job(13), 1, max_attempts=1)
    await low.remove_job(job(13), "dead")
    pipe = queue.raw.pipeline()
    pipe.lrem("emq:{low}:flow:outbox", 1, completion(job(10), ROOT, job(10), queue=QUEUE))
    pipe.lrem("emq:{low}:flow:outbox", 1, death(job(12), ROOT, "boom", policy="id", queue=QUEUE))
    pipe.delete(f"emq:{{low}}:job:{job(14)}", "emq:{low}:pending", "emq:{low}:active")
    await pipe.execute()
    assert await queue.raw.llen("emq:{low}:flow:outbox") == 2

    again = await Flows(wire).add(root)

    assert admitted_of(again) == [False, False, False, False, False, True]
    assert await queue.raw.zrange("emq:{low}:pending", 0, -1) == [job(14).encode()]


async def test_below_a_node_that_has_reported_nothing_is_run_again(wire: Connector, queue: Queue) -> None:
    """Its own children's reports went with it."""
    await Flows(wire).add(tree())
    low, mid = FlowVerbs(wire, "low"), FlowVerbs(wire, "mid")
    await low.lane_claim()
    await low.complete(LEAF, 1)
    await pump(wire, "low")
    await mid.lane_claim()
    await mid.complete(LEFT, 1)

    # Its report is on its way, then it is told.
    for _ in range(2):
        assert not any(admitted_of(await Flows(wire).add(tree())))
        assert (await queue.state())[f"job:{ROOT}:dependencies"] == "1"
        await pump(wire, "mid")
    assert (await queue.state())[f"job:{ROOT}:processed"] == {LEFT: LEFT}


@pytest.mark.parametrize("dead", [False, True], ids=["done", "dead"])
@pytest.mark.parametrize("half", [False, True], ids=["at once", "by a second add"])
async def test_a_report_that_a_pump_is_about_to_take_out(wire: Connector, queue: Queue, dead: bool, half: bool) -> None:
    """It was delivered to a parent that is gone: the one that is made anew hears of it from who adds it."""
    root = Node(QUEUE, "root", [Node("low", "leaf", id=LEAF), Node(QUEUE, "x", id=RIGHT)], id=ROOT)
    await Flows(wire).add(root)
    low, verbs = FlowVerbs(wire, "low"), FlowVerbs(wire)
    await low.claim_batch(1)
    await (low.retry(LEAF, 1, max_attempts=1) if dead else low.complete(LEAF, 1))
    await verbs.remove_job(ROOT)
    # The Pump has delivered it, to nobody.
    entries: list[Any] = await queue.raw.lrange("emq:{low}:flow:outbox", 0, -1)
    if half:
        # A producer that died behind its first call.
        await verbs.flow_hold(ROOT, 2, "children", f'{{"low":["{LEAF}"],"{QUEUE}":["{RIGHT}"]}}')

    await Flows(wire).add(root)
    assert await queue.raw.lrem("emq:{low}:flow:outbox", 1, entries[0]) == 1

    heard = await queue.raw.hgetall(f"emq:{{{QUEUE}}}:job:{ROOT}:{'failed' if dead else 'processed'}")
    assert heard == {LEAF.encode(): b"boom" if dead else LEAF.encode()}


async def test_children_without_ids_of_a_node_that_has_reported(wire: Connector, queue: Queue) -> None:
    """They are not admitted either: nobody would wait for them."""
    left = Node(QUEUE, "left", [Node(QUEUE, "leaf")], id=LEFT)
    await Flows(wire).add(Node(QUEUE, "root", [left, Node(QUEUE, "x", id=RIGHT)], id=ROOT))
    await queue.raw.delete(f"{queue.keys.base}job:{LEFT}", f"{queue.keys.base}job:{LEFT}:dependencies")
    await FlowVerbs(wire).deliver(ROOT, LEFT)
    before = await queue.state()

    again = await Flows(wire).add(Node(QUEUE, "root", [left, Node(QUEUE, "x", id=RIGHT)], id=ROOT))

    assert not any(admitted_of(again))
    assert await queue.state() == before


async def test_a_flow_whose_root_was_removed_is_a_new_one(wire: Connector, queue: Queue) -> None:
    """What was told to the old one does not count for it; a child that still runs will report to it."""
    await Flows(wire).add(tree())
    verbs = FlowVerbs(wire)
    await verbs.remove_job(ROOT)
    await verbs.claim_batch(1)
    await verbs.complete(RIGHT, 1)

    again = await Flows(wire).add(tree())

    assert admitted_of(again) == [True, False, False, True]
    state = await queue.state()
    assert state[f"job:{ROOT}:dependencies"] == "2"
    assert state["pending"] == {RIGHT: 0}


async def test_a_removed_root_takes_nothing_along(wire: Connector, queue: Queue) -> None:
    """A node that goes on without it has heard what it has heard: below it nothing is run again."""
    await Flows(wire).add(tree())
    low = FlowVerbs(wire, "low")
    await low.lane_claim()
    await low.complete(LEAF, 1)
    await FlowVerbs(wire).remove_job(ROOT)

    # Its report is on its way.
    assert admitted_of(await Flows(wire).add(tree())) == [True, False, False, False]
    await pump(wire, "low")

    assert (await queue.raw.hgetall(f"emq:{{mid}}:job:{LEFT}"))[b"state"] == b"pending"
    assert await queue.raw.exists(f"emq:{{low}}:job:{LEAF}") == 0


async def test_a_child_that_ends_while_its_parent_is_made_anew(wire: Connector, queue: Queue) -> None:
    """It reports to the new one, so it is not run again."""
    await Flows(wire).add(tree())
    verbs = FlowVerbs(wire)
    await verbs.remove_job(ROOT)
    await verbs.claim_batch(1)

    class Slow:
        async def call(self, *args: Any) -> Any:
            return await wire.call(*args)

        async def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
            replies = await wire.pipeline(commands)
            if await wire.call("EXISTS", queue.keys.job(ROOT)):
                await verbs.complete(RIGHT, 1)
            return replies

    again = await Flows(Slow()).add(tree())

    assert admitted_of(again) == [True, False, False, False]
    state = await queue.state()
    assert state[f"job:{ROOT}:processed"] == {RIGHT: RIGHT}
    assert "pending" not in state


@pytest.mark.parametrize(
    "other",
    [
        replace(tree(), children=[*tree().children, Node(QUEUE, "more", id=job(9))]),
        replace(tree(), children=[tree().children[0], Node("other", "three", id=RIGHT)]),
        replace(tree(), children=[tree().children[0], Node(QUEUE, "three")]),
        Node(QUEUE, "another root", [Node(QUEUE, "three", id=RIGHT)], id=job(9)),
        Node(QUEUE, "a plain job's id", [Node(QUEUE, "x", id=job(8)), Node(QUEUE, "y", id=job(9))], id=job(7)),
    ],
    ids=["more children", "another queue", "children without ids", "another parent", "a plain job"],
)
async def test_a_row_that_is_not_this_flows_is_refused(wire: Connector, queue: Queue, other: Node) -> None:
    """Before anything is written, in the tree at fault and in the others of the call."""
    await Flows(wire).add(tree())
    await FlowVerbs(wire).enqueue(job(8))
    before = await queue.state()

    with pytest.raises(StateRefused, match=r"^EMQSTATE flow row (names another parent|has other children): JOB"):
        await Flows(wire).add_bulk([Node(QUEUE, "fine", [Node(QUEUE, "fine")]), other])

    assert await queue.state() == before


async def test_a_flow_of_another_client_is_completed_by_an_add_with_ids(wire: Connector, queue: Queue) -> None:
    """Its rows do not name the children; ids of our own say which they are."""
    await FlowVerbs(wire).flow_hold(ROOT, 2)

    added = await Flows(wire).add(Node(QUEUE, "p", [Node(QUEUE, n, id=job(10 + n)) for n in range(2)], id=ROOT))

    assert admitted_of(added) == [False, True, True]
    with pytest.raises(StateRefused, match="other children"):
        await Flows(wire).add(Node(QUEUE, "p", [Node(QUEUE, n) for n in range(2)], id=ROOT))


async def test_adding_again_and_again_while_workers_run(wire: Connector, queue: Queue) -> None:
    """A producer that never stops adding the same flow, workers and Pumps in between at random: each job runs once."""
    draw, ran = random.Random(5), list[str]()
    verbs = {name: FlowVerbs(wire, name) for name in (QUEUE, "mid", "low")}
    await Flows(wire).add(tree())
    for number in range(400):
        name = draw.choice([*verbs, "add", "pump"])
        if name == "add":
            await Flows(wire).add(tree())
        elif name == "pump":
            for source in verbs:
                await pump(wire, source)
        else:
            claim = await verbs[name].claim_many(1, consumer=f"c{number}")
            ran += [one for one in claim.ids if one != ROOT]
            # The root stays in hand: once it is over, its ids are new again.
            await verbs[name].settle(*(complete(one.id, one.held, one.group) for one in claim.jobs if one.id != ROOT))
        if ROOT in (await queue.state()).get("active", {}):
            break
    else:
        pytest.fail("the root was never released")

    assert sorted(ran) == [LEFT, RIGHT, LEAF]
    assert not any(admitted_of(await Flows(wire).add(tree())))


async def test_thousands_of_children(wire: Connector, queue: Queue, raw: Redis) -> None:
    """A flow of 3,000 with ids, added twice."""
    root = Node(QUEUE, "root", [Node("low", n, id=job(1_000 + n)) for n in range(3_000)], id=ROOT)

    assert all(admitted_of(await Flows(wire).add(root)))
    assert not any(admitted_of(await Flows(wire).add(root)))

    assert await raw.zcard("emq:{low}:pending") == 3_000
    assert (await queue.state())[f"job:{ROOT}:dependencies"] == "3000"
