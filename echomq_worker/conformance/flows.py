"""Flows: a parent runs once, when all its children are accounted for, whatever queue they are in and however they end.

Source: protocol section 6.
"""

from __future__ import annotations

import asyncio

from echomq_worker.conformance.bench import GROUP, Bench, Desk, row, without
from echomq_worker.conformance.checks import refused, same
from echomq_worker.conformance.hands import Hands, Taken, done, failed
from echomq_worker.errors import KindRefused, StateRefused
from echomq_worker.flows import Added, Flows, Node
from echomq_worker.script import evaluate


async def flow_add(bench: Bench) -> None:
    """A flow is added whole and once: children that can be claimed, a parent that waits for them in no set."""
    q, flows = bench.queue(), Flows(bench.wire, mint=bench.mint)
    parent, first, second = q.id(), q.id(), q.id()
    children = (Node(q.name, b"one", id=first), Node(q.name, b"two", id=second, group=GROUP))
    tree = Node(q.name, b"all", id=parent, children=children)
    added = await flows.add(tree)
    same(_admitted(added), {parent: True, first: True, second: True}, "the answer")
    state = await q.state()
    kin = state[f"job:{parent}"].pop("children", None)
    same(kin is not None, True, "the parent's row names its children")
    expected = {
        f"job:{parent}": row("awaiting_children", payload="all"),
        f"job:{parent}:dependencies": "2",
        f"job:{first}": row(payload="one", parent=parent, parent_policy="fp"),
        f"job:{second}": row(payload="two", parent=parent, group=GROUP, parent_policy="fp"),
        "pending": {first: 0.0},
        f"g:{GROUP}:pending": {second: 0.0},
        "ring": [GROUP],
    }
    same(state, expected, "the queue")
    before = await q.state()
    same(set(_admitted(await flows.add(tree)).values()), {False}, "the same flow again")
    same(await q.state(), before, "the queue, unchanged")
    taken = Node(q.name, b"x", children=(Node(q.name, b"x", id=first),))
    await refused(StateRefused, flows.add(taken), "another's child")
    foreign = Node(q.name, b"x", children=(Node(q.name, b"x", id="USR0KHTOWnGLuC"),))
    await refused(KindRefused, flows.add(foreign), "a child of another namespace")
    same(await q.state(), before, "the queue after both refusals")


async def flow_fanin(bench: Bench) -> None:
    """Each child that completes counts once; with the last one the parent is pending, once, with a token."""
    q, hands = bench.queue(), Hands(bench.queue())
    parent, ids = await _flow(bench, q, 3)
    jobs = (await hands.claim()).jobs
    same([job.id for job in jobs], ids, "what can be claimed: the children")
    same(await hands.settle(done(jobs[0])), ["done"], "a child by settle")
    same(await hands.settle(done(jobs[0])), ["gone"], "the same again")
    same(await q.read(f"job:{parent}:dependencies"), "2", "children that are out")
    same(await q.jobs.complete(q.name, ids[1], jobs[1].held), True, "a child by the plain verb")
    same((await q.read(f"job:{parent}"))["state"], "awaiting_children", "the parent while one is out")
    await q.lose_lease(ids[2])
    await q.jobs.reap(q.name)
    await q.put("ready", "DEL")
    same(await q.jobs.complete(q.name, ids[2], 1), True, "the last child, though its lease was lost")
    state = await q.state(tokens=True)
    same((state.get("pending"), state[f"job:{parent}"]["state"]), ({parent: 0.0}, "pending"), "the parent")
    same(state.get("ready"), ["1"], "the token")
    same(await q.jobs.complete(q.name, ids[2], 1), False, "that completion again")
    same(await q.read(f"job:{parent}:dependencies"), "0", "children that are out")
    (job,) = (await hands.claim()).jobs
    same((job.id, await hands.settle(done(job))), (parent, ["done"]), "the parent's own run")
    same(await q.state(), {"metrics:completed": {"count": "4"}}, "the queue at the end: no key of the flow")


async def flow_children_values(bench: Bench) -> None:
    """What children return stands with the parent until it has run; a child that returns nothing leaves its id."""
    q, hands, flows = bench.queue(), Hands(bench.queue()), Flows(bench.wire)
    parent, ids = await _flow(bench, q, 3)
    jobs = (await hands.claim()).jobs
    verdicts = (done(jobs[0], '{"sum": 3}'), done(jobs[1], "[1]"), done(jobs[2]))
    same(await hands.settle(*verdicts), ["done"] * 3, "three children in one call")
    values = {ids[0]: {"sum": 3}, ids[1]: [1], ids[2]: ids[2]}
    same(await flows.children_values(q.name, parent), values, "what the parent reads")
    standing = await flows.dependencies(q.name, parent)
    same((standing.out, set(standing.processed)), (0, set(ids)), "its dependencies")
    await hands.settle(*(done(job) for job in (await hands.claim()).jobs))
    same(await flows.children_values(q.name, parent), {}, "what is left when it has run")


async def flow_cross_queue(bench: Bench) -> None:
    """A child in another queue reports through its queue's outbox; the Pump delivers it there, then removes it."""
    q, other = bench.queue("parents"), bench.queue("children")
    flows, hands = Flows(bench.wire, mint=bench.mint), Hands(other)
    tree = Node(q.name, b"x", children=(Node(q.name, b"x"), Node(other.name, b"x")))
    added = await flows.add(tree)
    near, far = (child.id for child in added.children)
    told = row(parent=added.id, parent_queue=q.name, parent_policy="fp")
    same(await other.state(), {f"job:{far}": told, "pending": {far: 0.0}}, "the child's queue")
    await hands.settle(*(done(job, '"far"') for job in (await hands.claim()).jobs))
    entry = _entry(q.name, added.id, far, '"far"')
    same(without(await other.state(), "metrics:completed"), {"flow:outbox": [entry]}, "its outbox when it is done")
    same(await q.read(f"job:{added.id}:dependencies"), "2", "the parent has heard nothing yet")
    same((await other.pump().beat()).delivered, 1, "the Pump of the child's queue")
    same(await other.read("flow:outbox"), None, "the outbox behind it")
    same(await q.read(f"job:{added.id}:dependencies"), "1", "the parent has heard of one")
    await other.put("flow:outbox", "RPUSH", entry)
    await other.pump().beat()
    same(await q.read(f"job:{added.id}:dependencies"), "1", "the same report, delivered again, counts once")
    taken = (await Hands(q).claim()).jobs
    same([job.id for job in taken], [near], "what can be claimed in the parent's queue")
    await Hands(q).settle(*(done(job) for job in taken))
    same(await q.read("pending"), {added.id: 0.0}, "the parent, when both are done")
    same(await flows.children_values(q.name, added.id), {far: "far", near: near}, "what it reads")
    gone = _entry(q.name, q.id(), far, "x")
    await other.put("flow:outbox", "RPUSH", gone)
    await other.pump().beat()
    left = set(await q.state()) - {f"job:{added.id}{part}" for part in ("", ":dependencies", ":processed")}
    same(left, {"pending", "metrics:completed"}, "a parent whose row is gone is not made anew")


async def flow_fail_parent(bench: Bench) -> None:
    """A child that dies under the default policy takes the waiting parent with it, which then never runs."""
    q, hands = bench.queue(), Hands(bench.queue())
    parent, ids = await _flow(bench, q, 2)
    jobs = {job.id: job for job in (await hands.claim()).jobs}
    same(await hands.settle(failed(jobs[ids[0]], "broke", max_attempts=1)), ["dead"], "the child's last failure")
    state = await q.state()
    died = state[f"job:{parent}"]
    same((died["state"], died["last_error"]), ("dead", f"child {ids[0]} died: broke"), "the parent's row")
    same(state.get("dead"), dict.fromkeys((parent, ids[0]), 0.0), "the dead set")
    same((state.get(f"job:{parent}:failed"), state.get("metrics:failed")), ({ids[0]: "broke"}, {"count": "2"}), "told")
    same(await hands.settle(done(jobs[ids[1]])), ["done"], "the other child, afterwards")
    state = await q.state()
    same((state.get("pending"), state[f"job:{parent}"]["state"]), (None, "dead"), "the parent stays dead")
    other = bench.queue("children")
    far = (await Flows(bench.wire, mint=bench.mint).add(Node(q.name, b"x", children=(Node(other.name, b"x"),)))).id
    await _bury(Hands(other), "far away")
    same((await other.pump().beat()).delivered, 1, "a death in another queue, delivered")
    (child,) = await other.read("dead")
    died = await q.read(f"job:{far}")
    same((died["state"], died["last_error"]), ("dead", f"child {child} died: far away"), "its parent")


async def flow_ignore_dep(bench: Bench) -> None:
    """A child that dies under the policy `id` counts as done: its error is kept, and the parent runs all the same."""
    q, hands, flows = bench.queue(), Hands(bench.queue()), Flows(bench.wire, mint=bench.mint)
    other = bench.queue("children")
    children = (Node(q.name, b"x", policy="id"), Node(q.name, b"x"), Node(other.name, b"x", policy="id"))
    added = await flows.add(Node(q.name, b"x", children=children))
    near, good, far = (child.id for child in added.children)
    jobs = {job.id: job for job in (await hands.claim()).jobs}
    answers = await hands.settle(failed(jobs[near], "near", max_attempts=1), done(jobs[good]))
    same(answers, ["dead", "done"], "one dies, one completes")
    same(await q.read(f"job:{added.id}:dependencies"), "1", "children that are out")
    await _bury(Hands(other), "far")
    await other.pump().beat()
    same(await flows.ignored_failures(q.name, added.id), {near: "near", far: "far"}, "the errors that are ignored")
    state = await q.state()
    same((state.get("pending"), state.get("dead")), ({added.id: 0.0}, {near: 0.0}), "pending, dead")
    standing = await flows.dependencies(q.name, added.id)
    same((standing.out, standing.processed, set(standing.ignored)), (0, [good], {near, far}), "its dependencies")


async def flow_add_bulk(bench: Bench) -> None:
    """Several flows are added at once, each with its own parent; one that cannot be keeps all of them out."""
    q, flows = bench.queue(), Flows(bench.wire, mint=bench.mint)
    trees = [Node(q.name, b"x", children=[Node(q.name, b"x") for _ in range(size)]) for size in (1, 2, 3)]
    added = await flows.add_bulk(trees)
    same([len(one.children) for one in added], [1, 2, 3], "children of each, in the order given")
    state = await q.state()
    dependencies = {one.id: state.get(f"job:{one.id}:dependencies") for one in added}
    same(dependencies, {one.id: str(len(one.children)) for one in added}, "the parents' counts")
    pending = {child.id for one in added for child in one.children}
    same(set(state.get("pending", {})), pending, "pending: the children")
    same({state[f"job:{c.id}"]["parent"] for c in added[2].children}, {added[2].id}, "whom the rows of one flow name")
    child = added[0].children[0].id
    good, taken = Node(q.name, b"x"), Node(q.name, b"x", id=child)
    bad = [Node(q.name, b"x", children=[one]) for one in (good, taken)]
    await refused(StateRefused, flows.add_bulk(bad), "a flow that takes another's child, behind a good one")
    same(await q.state(), state, "the queue, unchanged")
    keys, parent, first, second = q.keys, q.id(), q.id(), q.id()
    names = (keys.job(parent), keys.dependencies(parent), keys.pending, keys.job(first), keys.job(second))
    values = (parent, "x", 2, first, "one", second, "two")
    same(await evaluate(q.wire, "flow_add", names, values), 2, "a foreign producer's verb for a flat flow")
    same((await q.read("pending")).keys() - pending, {first, second}, "its children")
    same(await q.read(f"job:{parent}"), row("awaiting_children"), "its parent")
    same(await q.read(f"job:{parent}:dependencies"), "2", "the parent's count")


async def flow_grandchild(bench: Bench) -> None:
    """A tree nests: a node runs when its children are done and only then counts for its own parent, up to the root."""
    q, middle, low = (bench.queue(name) for name in ("top", "middle", "low"))
    flows = Flows(bench.wire, mint=bench.mint)
    leaf = Node(low.name, b"leaf")
    added = await flows.add(Node(q.name, b"root", children=[Node(middle.name, b"node", children=[leaf, leaf])]))
    (node,) = added.children
    state = await middle.state()
    stands = (state[f"job:{node.id}"]["state"], state.get("pending"))
    same(stands, ("awaiting_children", None), "the node in the middle")
    same(state[f"job:{node.id}"]["parent"], added.id, "it names its own parent from the start")
    same(await _run_all(Hands(low)), {leaf.id for leaf in node.children}, "what runs first: the leaves")
    same((await q.read(f"job:{added.id}"))["state"], "awaiting_children", "the root")
    same((await middle.read("pending")), None, "the node before the delivery")
    await low.pump().beat()
    same(await middle.read("pending"), {node.id: 0.0}, "the node behind it")
    same(await _run_all(Hands(middle)), {node.id}, "what runs next")
    await middle.pump().beat()
    same(await _run_all(Hands(q)), {added.id}, "what runs last: the root")
    for desk, count in ((low, "2"), (middle, "1"), (q, "1")):
        same(await desk.state(), {"metrics:completed": {"count": count}}, f"what is left in {desk.name}")


async def flow_grandchild_fail(bench: Bench) -> None:
    """A death climbs every level at once, over the outbox too, up to a policy that ignores it."""
    q, other = bench.queue("top"), bench.queue("low")
    flows = Flows(bench.wire, mint=bench.mint)
    node = Node(other.name, b"x", children=[Node(other.name, b"x", children=[Node(other.name, b"x")])])
    added = await flows.add(Node(q.name, b"x", children=[node]))
    (upper,) = added.children
    (lower,) = upper.children
    await _bury(Hands(other), "deep")
    state = await other.state()
    dead = {lower.children[0].id, lower.id, upper.id}
    same(set(state.get("dead", {})), dead, "all levels of its queue are dead")
    said = state[f"job:{upper.id}"]["last_error"]
    entry = _entry("", "fail", q.name, added.id, upper.id, "fp", said)
    same(state.get("flow:outbox"), [entry], "the report to the root, written in the same step")
    await other.pump().beat()
    root = await q.read(f"job:{added.id}")
    same((root["state"], root["last_error"]), ("dead", f"child {upper.id} died: {said}"), "the root")
    soft = Node(q.name, b"x", policy="id", children=[Node(q.name, b"x")])
    spared = await flows.add(Node(q.name, b"x", children=[soft]))
    await _bury(Hands(q), "ignored")
    state = await q.state()
    stands = (state.get("pending"), state[f"job:{spared.id}"]["state"])
    same(stands, ({spared.id: 0.0}, "pending"), "a root that ignores the death of its child")


async def outbox_two_pumps(bench: Bench) -> None:
    """Two Pumps that read the same reports at the same moment deliver each of them once, and leave none behind."""
    q, other = bench.queue("parents"), bench.queue("children")
    flows = Flows(bench.wire, mint=bench.mint)
    children = [Node(other.name, b"x", policy="id" if number % 2 else "fp") for number in range(8)]
    added = await flows.add_bulk([Node(q.name, b"x", children=children) for _ in range(4)])
    hands = Hands(other)
    for flow in added:
        jobs = {job.id: job for job in (await hands.claim(len(children))).jobs}
        dying = {child.id for child in flow.children[1::4]}
        ends = (failed(job, max_attempts=1) if id in dying else done(job) for id, job in jobs.items())
        await hands.settle(*ends)
    same(len(await other.read("flow:outbox")), 32, "reports that wait")
    for _ in range(3):
        await asyncio.gather(*(other.pump().beat() for _ in range(2)))
    same(await other.read("flow:outbox"), None, "reports that are left")
    standing = [await flows.dependencies(q.name, flow.id) for flow in added]
    heard = [(len(one.processed), len(one.ignored), one.out) for one in standing]
    same(heard, [(6, 2, 0)] * 4, "what the parents have heard: done, ignored, out")
    same(set(await q.read("pending")), {flow.id for flow in added}, "pending: every parent, once")
    await other.put("flow:outbox", "RPUSH", "no report", _entry(q.name, "no id", "x", "y"))
    await other.pump().beat()
    same(await other.read("flow:outbox"), None, "reports that nobody can deliver hold up no other")
    same(len(await other.read("flow:outbox:malformed")), 2, "they are set aside")


def _entry(*words: str) -> str:
    return "\0".join(words)


async def _flow(bench: Bench, q: Desk, size: int) -> tuple[str, list[str]]:
    """A parent and its children in one queue."""
    tree = Node(q.name, b"x", children=[Node(q.name, b"x") for _ in range(size)])
    added = await Flows(bench.wire, mint=bench.mint).add(tree)
    return added.id, [child.id for child in added.children]


async def _run_all(hands: Hands) -> set[str]:
    jobs: list[Taken] = (await hands.claim()).jobs
    await hands.settle(*(done(job) for job in jobs))
    return {job.id for job in jobs}


async def _bury(hands: Hands, error: str) -> None:
    jobs = (await hands.claim()).jobs
    await hands.settle(*(failed(job, error, max_attempts=1) for job in jobs))


def _admitted(added: Added) -> dict[str, bool]:
    found = {added.id: added.admitted}
    for child in added.children:
        found |= _admitted(child)
    return found


SCENARIOS = (
    flow_add,
    flow_fanin,
    flow_children_values,
    flow_cross_queue,
    flow_fail_parent,
    flow_ignore_dep,
    flow_add_bulk,
    flow_grandchild,
    flow_grandchild_fail,
    outbox_two_pumps,
)
