"""Lanes: the ring's turns, what keeps a lane off it, the verbs over one lane, and what fairness promises.

Source: protocol section 5, section 4 (lanes, a freed slot, release, stalled check), issue "Every control" (lanes).
"""

from __future__ import annotations

from collections import Counter

from echomq_worker.conformance.bench import GROUP, LEASE_MS, OTHER_GROUP, Bench, Desk, row, without
from echomq_worker.conformance.checks import holds, same
from echomq_worker.conformance.hands import Hands, done
from echomq_worker.jobs import New
from echomq_worker.metrics import Metrics
from echomq_worker.rows import Claimed
from echomq_worker.script import evaluate
from echomq_worker.stalled import Stalled

_LANE = f"g:{GROUP}:pending"
_OTHER_LANE = f"g:{OTHER_GROUP}:pending"


async def rotate(bench: Bench) -> None:
    """Claims rotate the ring one step: lanes are served in turn, each oldest first, and an emptied lane leaves it."""
    q = bench.queue()
    first = [await q.add_to_lane(GROUP) for _ in range(3)]
    second = [await q.add_to_lane(OTHER_GROUP) for _ in range(2)]
    before = await q.state(tokens=True)
    same(before.get("ring"), [GROUP, OTHER_GROUP], "the ring, each lane once")
    same(before.get("wake"), ["1"] * 5, "a token for each job of a lane")
    same(before.get(_LANE), dict.fromkeys(first, 0.0), "a lane, all at score 0")
    same(before.get(f"job:{first[0]}"), row(group=GROUP), "a row")
    claimed = [await _claimed(q) for _ in range(4)]
    same([one.id for one in claimed], [first[0], second[0], first[1], second[1]], "the order of the claims")
    same([one.group for one in claimed], [GROUP, OTHER_GROUP] * 2, "the groups that the claims tell")
    state = await q.state()
    same(state.get("ring"), [GROUP], "the ring when one lane is empty")
    same(state.get("gactive"), {GROUP: "2", OTHER_GROUP: "2"}, "the jobs in flight")
    same((await _claimed(q)).id, first[2], "the last job")
    same(await q.lanes.claim(q.name, LEASE_MS), None, "a claim of empty lanes")
    same(await q.read("ring"), None, "the ring at the end")


async def pause(bench: Bench) -> None:
    """A paused lane keeps its jobs and is served by nobody until it is resumed; admission goes on, the others too."""
    q = bench.queue()
    waiting, served = await q.add_to_lane(GROUP), await q.add_to_lane(OTHER_GROUP)
    await q.lanes.pause(q.name, GROUP)
    late = await q.add_to_lane(GROUP)
    state = await q.state()
    same((state.get("ring"), state.get("paused")), ([OTHER_GROUP], {GROUP}), "ring and paused lanes")
    same(state.get(_LANE), dict.fromkeys((waiting, late), 0.0), "the paused lane")
    same((await Hands(q).claim()).ids, [served], "what a claim takes meanwhile")
    same(await q.lanes.claim(q.name, LEASE_MS), None, "what a plain claim takes then")
    await q.put("wake", "DEL")
    await q.lanes.resume(q.name, GROUP)
    state = await q.state(tokens=True)
    same((state.get("ring"), state.get("paused"), state.get("wake")), ([GROUP], None, ["1"]), "ring, pause, token")
    same((await Hands(q, "other").claim()).ids, [waiting, late], "what a claim takes after it")


async def limit(bench: Bench) -> None:
    """A lane at its limit leaves the ring and is not served; a freed slot puts it back, with one token."""
    q = bench.queue()
    ids = [await q.add_to_lane() for _ in range(4)]
    await q.lanes.limit(q.name, GROUP, 2)
    hands = Hands(q)
    taken = await hands.claim()
    same(taken.ids, ids[:2], "a claim with many free slots")
    state = await q.state()
    same((state.get("ring"), state.get("glimit"), state.get("gactive")), (None, {GROUP: "2"}, {GROUP: "2"}), "full")
    same((await hands.claim()).ids, [], "a claim at the limit")
    same(await q.lanes.claim(q.name, LEASE_MS), None, "a plain claim at the limit")
    await q.put("wake", "DEL")
    same(await hands.settle(done(taken.jobs[0])), ["done"], "a verdict")
    state = await q.state(tokens=True)
    same((state.get("ring"), state.get("gactive"), state.get("wake")), ([GROUP], {GROUP: "1"}, ["1"]), "a slot freed")
    same((await _claimed(q)).id, ids[2], "the next job")
    await q.put("wake", "DEL")
    await q.jobs.complete(q.name, taken.ids[1], taken.jobs[1].held)
    state = await q.state(tokens=True)
    same((state.get("ring"), state.get("gactive"), state.get("wake")), ([GROUP], {GROUP: "1"}, ["1"]), "another one")
    await q.put("wake", "DEL")
    await q.jobs.retry(q.name, ids[2], 1)
    state = await q.state(tokens=True)
    same((state.get("gactive"), state.get("wake")), (None, None), "no token where the lane is on the ring already")
    await q.lanes.limit(q.name, GROUP, 0)
    same(await q.read("ring"), None, "the ring when the limit falls to what is in flight")
    await q.lanes.limit(q.name, GROUP, 1)
    same(await q.read("ring"), [GROUP], "the ring when it rises")
    await q.lanes.limit(q.name, GROUP, None)
    same((await q.read("glimit"), await q.read("ring")), (None, [GROUP]), "limits and ring without one")


async def lane_depth(bench: Bench) -> None:
    """A lane's depth is the number of jobs that wait in it: not those in hand, not those of another lane."""
    q = bench.queue()
    for _ in range(3):
        await q.add_to_lane(GROUP)
    await q.add_to_lane(OTHER_GROUP)
    await q.add()
    same(await q.lanes.depths(q.name, [GROUP, OTHER_GROUP]), {GROUP: 3, OTHER_GROUP: 1}, "the depths")
    await _claimed(q)
    same(await q.lanes.depth(q.name, GROUP), 2, "the depth after a claim")
    same(await q.lanes.depth(q.name, q.group("nobody")), 0, "the depth of a lane that there is not")
    counts = await Metrics(q.wire).counts(q.name)
    same((counts.lanes, counts.pending, counts.active), ({GROUP: 2, OTHER_GROUP: 1}, 1, 1), "the queue's counts")


async def reassign(bench: Bench) -> None:
    """A pending job moves to another lane at its place in mint order; one that is not pending stays where it is."""
    q = bench.queue()
    moved = await q.add_to_lane(GROUP)
    there = await q.add_to_lane(OTHER_GROUP)
    move = q.lanes.reassign
    same(await move(q.name, moved, GROUP), "noop", "to the lane where it is")
    same(await move(q.name, moved, OTHER_GROUP), "reassigned", "to another lane")
    expected = {
        f"job:{moved}": row(group=OTHER_GROUP),
        f"job:{there}": row(group=OTHER_GROUP),
        _OTHER_LANE: dict.fromkeys((moved, there), 0.0),
        "ring": [OTHER_GROUP],
    }
    same(await q.state(), expected, "the queue after the move")
    same((await _claimed(q)).id, moved, "the oldest of the lane now")
    same(await move(q.name, moved, GROUP), "not_pending", "a job in hand")
    same(await move(q.name, q.id(), GROUP), "not_found", "a job that there is not")
    same(await q.read(f"job:{moved}"), row("active", 1, group=OTHER_GROUP), "the row of the job in hand")


async def lane_drain(bench: Bench) -> None:
    """Draining a lane deletes its waiting jobs, rows and logs, and its ring entry; nothing else of the queue."""
    q = bench.queue()
    held = await q.add_to_lane(GROUP)
    await _claimed(q)
    gone = [await q.add_to_lane(GROUP) for _ in range(3)]
    await q.jobs.add_log(q.name, gone[0], "a line")
    kept, flat = await q.add_to_lane(OTHER_GROUP), await q.add()
    before = await q.state()
    same(await q.lanes.drain(q.name, GROUP), 3, "how many were deleted")
    expected = without(before, _LANE, *(f"job:{id}" for id in gone), f"job:{gone[0]}:logs") | {"ring": [OTHER_GROUP]}
    same(await q.state(), expected, "the queue after the drain")
    holds({f"job:{held}", f"job:{kept}", f"job:{flat}"} < set(expected), "what is in hand and elsewhere has its rows")
    same(await q.lanes.drain(q.name, GROUP), 0, "a second drain")


async def reap_group(bench: Bench) -> None:
    """Expired leases of one lane go back to it and free its slots; those of other lanes and flat ones wait on."""
    q = bench.queue()
    ids = {group: await q.add_to_lane(group) for group in (GROUP, OTHER_GROUP)}
    flat = await q.add()
    for _ in ids:
        await _claimed(q)
    await q.jobs.claim(q.name, LEASE_MS)
    await q.lose_lease(*ids.values(), flat)
    await q.put("wake", "DEL")
    same(await q.lanes.reap_group(q.name, GROUP), 1, "how many came back")
    state = await q.state(tokens=True)
    same(state.get("active"), dict.fromkeys((ids[OTHER_GROUP], flat), 1.0), "the leases that are left")
    same((state.get(_LANE), state.get("ring")), ({ids[GROUP]: 0.0}, [GROUP]), "the lane, on the ring again")
    same((state.get("gactive"), state.get("wake")), ({OTHER_GROUP: "1"}, ["1"]), "its slot is free, with a token")
    same(state.get(f"job:{ids[GROUP]}"), row("pending", 1, group=GROUP), "its row")
    same(await q.lanes.reap_group(q.name, GROUP), 0, "a second pass")


async def stalled_group(bench: Bench) -> None:
    """The counting sweep returns a grouped job to its lane, or buries it, and frees its slot in both cases."""
    q = bench.queue()
    id = await q.add_to_lane()
    await q.lanes.limit(q.name, GROUP, 1)
    await _claimed(q)
    await q.lose_lease(id)
    swept = await Stalled(q.wire).check(q.name, max_stalled=2)
    same((swept.recovered, swept.dead), ([id], []), "the first sweep")
    expected = {
        f"job:{id}": row("pending", 1, group=GROUP, stalled=1),
        _LANE: {id: 0.0},
        "ring": [GROUP],
        "glimit": {GROUP: "1"},
    }
    same(await q.state(), expected, "the queue: back in its lane")
    await _claimed(q)
    await q.lose_lease(id)
    swept = await Stalled(q.wire).check(q.name, max_stalled=2)
    same((swept.recovered, swept.dead), ([], [id]), "the second sweep")
    expected = {
        f"job:{id}": row("dead", 2, group=GROUP, stalled=2, last_error="stalled"),
        "dead": {id: 0.0},
        "glimit": {GROUP: "1"},
        "metrics:failed": {"count": "1"},
    }
    same(await q.state(), expected, "the queue after its death")


async def weighted_proportion(bench: Bench) -> None:
    """Lanes of weights 3 and 1 that are both full are served 3 to 1, by the weighted claim and by the worker's own."""
    q = bench.queue()
    await q.jobs.enqueue_many(q.name, [New(b"x", group=group) for group in (GROUP, OTHER_GROUP) for _ in range(40)])
    await q.lanes.weight(q.name, GROUP, 3)
    same(await q.read("gweight"), {GROUP: "3"}, "the weights")
    turns = [await q.lanes.claim_weighted(q.name, LEASE_MS) for _ in range(8)]
    same([len(turn) for turn in turns], [3, 1] * 4, "jobs per turn of the ring")
    holds(all(one.group == turn[0].group for turn in turns for one in turn), "a turn is one lane's")
    hands, served = Hands(q), Counter[str]()
    for size in (1, 2, 3, 5, 7, 4, 2):
        served.update(job.group for job in (await hands.claim(size)).jobs)
    same(dict(served), {GROUP: 18, OTHER_GROUP: 6}, "24 jobs of claims of any size")
    await q.lanes.weight(q.name, GROUP, 1)
    same(await q.read("gweight"), None, "a weight of 1 is none")


async def starvation_drill(bench: Bench) -> None:
    """A tenant with a huge backlog does not hold up small ones: while they finish it has had no more than its turns."""
    q = bench.queue()
    big, small, each, slots = q.group("big"), [q.group(f"small {n}") for n in range(12)], 5, 4
    backlog = [New(b"x", group=big)] * 300
    await q.jobs.enqueue_many(q.name, backlog + [New(b"x", group=group) for group in small for _ in range(each)])
    hands, served = Hands(q), Counter[str]()
    waiting = each * len(small)
    while waiting > 0:
        taken = await hands.claim(slots)
        holds(taken.jobs, "a claim with free slots brings jobs")
        served.update(job.group for job in taken.jobs)
        waiting -= sum(job.group != big for job in taken.jobs)
        await hands.settle(*(done(job) for job in taken.jobs))
    same({served[group] for group in small}, {each}, "every small tenant has had its jobs")
    holds(served[big] <= each + slots, f"the big one has had {served[big]}, at most {each} turns and the slots")
    holds(served[big] >= each - 1, f"nor was it held up: it has had {served[big]} meanwhile")


async def hollow_lane(bench: Bench) -> None:
    """A ring entry of an empty, paused or full lane does not end a claim: it falls off, and the next lane is served."""
    q = bench.queue()
    hollow, full, paused = q.group("hollow"), q.group("full"), q.group("paused")
    for group in (full, paused):
        await q.add_to_lane(group)
    await q.put("glimit", "HSET", full, 1)
    await q.put("gactive", "HSET", full, 1)
    await q.put("paused", "SADD", paused)
    ids = [await q.add_to_lane() for _ in range(3)]
    await q.put("ring", "LPUSH", hollow)
    same(await q.read("ring"), [hollow, full, paused, GROUP], "the ring, with three entries that cannot be served")
    same((await _claimed(q)).id, ids[0], "a plain claim")
    same(await q.read("ring"), [GROUP], "the ring behind it")
    for group in (hollow, full, paused):
        await q.put("ring", "LPUSH", group)
    same((await Hands(q).claim(1)).ids, [ids[1]], "the worker's claim")
    same(await q.read("ring"), [GROUP], "the ring behind that")
    await q.put("ring", "LPUSH", hollow)
    same([one.id for one in await q.lanes.claim_weighted(q.name, LEASE_MS)], [ids[2]], "a weighted claim")
    same(await q.read("ring"), None, "the ring behind it")
    await q.put("ring", "LPUSH", hollow)
    await q.put("gactive", "HSET", GROUP, 9)
    recount = await evaluate(q.wire, "recount", (q.keys.active,), (q.keys.base, 1_000))
    same(recount, 4, "what the recount corrects: an entry, two counters, a lane that could be served")
    state = await q.state()
    same((state.get("ring"), state.get("gactive")), ([full], {GROUP: "3"}), "ring and counters then")


async def release_lane(bench: Bench) -> None:
    """A job that was never started goes back to its lane at once, slot and token with it; nothing is counted."""
    q = bench.queue()
    id, other = await q.add_to_lane(), await q.add_to_lane()
    await q.lanes.limit(q.name, GROUP, 1)
    hands = Hands(q)
    (job,) = (await hands.claim()).jobs
    await q.put("wake", "DEL")
    same(await hands.release(job), ["ok"], "the release")
    expected = {
        f"job:{id}": row("pending", 1, group=GROUP),
        f"job:{other}": row(group=GROUP),
        _LANE: dict.fromkeys((id, other), 0.0),
        "ring": [GROUP],
        "wake": ["1"],
        "glimit": {GROUP: "1"},
    }
    state = await q.state(tokens=True)
    same(without(state, "claimed:hands"), expected, "the queue after the release")
    same(await hands.release(job), ["not_active"], "a second release")
    again = (await hands.claim()).jobs
    same([(one.id, one.token, one.crashes) for one in again], [(id, 2, 0)], "the next claim: no crash was counted")
    same(await hands.release(job), ["stale"], "a release under the old claim")


async def _claimed(q: Desk) -> Claimed:
    claimed = await q.lanes.claim(q.name, LEASE_MS)
    holds(claimed is not None, "a lane that can be served is claimed from")
    return claimed or Claimed("", None, 0)


SCENARIOS = (
    rotate,
    pause,
    limit,
    lane_depth,
    reassign,
    lane_drain,
    reap_group,
    stalled_group,
    weighted_proportion,
    starvation_drill,
    hollow_lane,
    release_lane,
)
