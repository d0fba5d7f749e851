"""The operator plane: the verbs over a whole queue, and those over one job's row.

Source: the seed "Lifecycle controls", protocol section 4 (queue pause, drain, obliterate, update_data, update_progress,
add_log, remove_job, reprocess).
"""

from __future__ import annotations

from echomq_worker.admin import Admin
from echomq_worker.conformance.bench import GROUP, LEASE_MS, OTHER_GROUP, Bench, row, without
from echomq_worker.conformance.checks import refused, same
from echomq_worker.conformance.hands import Hands, done
from echomq_worker.conformance.hearing import hearing
from echomq_worker.errors import Locked, StateRefused
from echomq_worker.jobs import New
from echomq_worker.repeat import Repeat


async def queue_pause(bench: Bench) -> None:
    """A paused queue is claimed from by none of our workers, flat or lane; admission and what is in hand go on."""
    q, admin = bench.queue(), Admin(bench.wire)
    hands = Hands(q)
    await q.add()
    (held,) = (await hands.claim()).jobs
    await admin.pause(q.name)
    same(await q.read("meta"), {"paused": "1"}, "meta")
    flat, grouped = await q.add(), await q.add_to_lane()
    before = await q.state(tokens=True)
    claim = await hands.claim()
    same((claim.why, claim.ids), ("paused", []), "a claim")
    same(await q.state(tokens=True), before, "the queue, unchanged by it")
    same(await hands.settle(done(held)), ["done"], "a verdict of what was in hand")
    await q.put("ready", "DEL")
    await admin.resume(q.name)
    same((await q.state(tokens=True)).get("ready"), ["1", "1"], "tokens for what waits, when it is resumed")
    same(await q.read("meta"), None, "meta")
    same(set((await hands.claim()).ids), {flat, grouped}, "a claim then")


async def drain(bench: Bench) -> None:
    """Draining deletes what waits, flat and of lanes, the schedule on request; all else survives."""
    q, admin = bench.queue(), Admin(bench.wire)
    held = await q.add()
    await q.jobs.claim(q.name, LEASE_MS)
    dead = await q.add()
    await q.jobs.claim(q.name, LEASE_MS)
    await q.jobs.retry(q.name, dead, 1, max_attempts=1)
    scheduled = (await q.jobs.enqueue_in(q.name, b"x", 60_000)).id
    q.owns("repeat:daily")
    await Repeat(q.wire).register(q.name, "daily", 1_000, b"x", first_in_ms=60_000)
    before = await q.state()
    for _ in range(3):
        await q.jobs.add_log(q.name, await q.add(), "a line")
        await q.add_to_lane(GROUP)
    await q.add_to_lane(OTHER_GROUP)
    await q.put("pending", "ZADD", 0, held)
    same(
        await admin.drain(q.name),
        8,
        "how many were taken out, what a foreign client put back while it is held among them",
    )
    same(await q.state(), before, "the queue: what is in hand, dead, scheduled, and the registry")
    same(await admin.drain(q.name, schedule=True), 1, "with the schedule")
    same(await q.state(), without(before, "schedule", f"job:{scheduled}"), "the queue without it")
    same(await q.read(f"job:{held}"), row("active", 1), "the row in hand")


async def obliterate(bench: Bench) -> None:
    """Only a paused queue is obliterated, and with jobs in hand only when forced; then no key of it is left."""
    q, admin = bench.queue(), Admin(bench.wire)
    q.owns("repeat:daily", "de:once")
    await q.jobs.enqueue_many(q.name, [New(b"x", dedup="once"), *[b"x"] * 5, New(b"x", in_ms=60_000)])
    hands = Hands(q)
    held = (await hands.claim(2)).jobs
    await hands.keep(*held)
    await q.jobs.retry(q.name, held[0].id, held[0].held, max_attempts=1)
    await q.jobs.add_log(q.name, held[1].id, "a line")
    await Repeat(q.wire).register(q.name, "daily", 1_000, b"x")
    await admin.set_concurrency(q.name, 5)
    before = await q.state(tokens=True)
    await refused(StateRefused, admin.obliterate(q.name), "obliterate", text="EMQSTATE not paused")
    same(await q.state(tokens=True), before, "the queue, unchanged")
    await admin.pause(q.name)
    before = await q.state(tokens=True)
    await refused(StateRefused, admin.obliterate(q.name), "obliterate", text="EMQSTATE active jobs present")
    same(await q.state(tokens=True), before, "the paused queue, unchanged")
    await admin.obliterate(q.name, force=True)
    same(await q.state(tokens=True), {}, "the keys that are left")


async def obliterate_grouped(bench: Bench) -> None:
    """Obliterating takes lanes too, whether the ring, a pause, a limit or a weight names them, with rows and logs."""
    q, admin = bench.queue(), Admin(bench.wire)
    groups = [q.group(text) for text in ("on the ring", "paused", "at its limit", "weighted", "unnamed")]
    for group in groups:
        for _ in range(3):
            await q.add_to_lane(group)
    await q.lanes.pause(q.name, groups[1])
    await q.lanes.limit(q.name, groups[2], 0)
    await q.lanes.weight(q.name, groups[3], 5)
    await q.put("ring", "LREM", 0, groups[4])
    held = (await Hands(q).claim(2)).jobs
    await q.jobs.add_log(q.name, held[0].id, "a line")
    await admin.pause(q.name)
    same(len([name for name in await q.state() if name.startswith("job:")]), 16, "rows and a log before")
    await admin.obliterate(q.name, force=True)
    same(await q.state(tokens=True), {}, "the keys that are left")


async def update_data(bench: Bench) -> None:
    """A job gets another payload wherever it stands; nothing else of it changes, and a row that is gone is not made."""
    q = bench.queue()
    id = await q.add(b"old")
    before = await q.state()
    same(await q.jobs.update_data(q.name, id, b"new"), True, "of a pending job")
    same(await q.state(), before | {f"job:{id}": row(payload="new")}, "the queue: another payload, nothing else")
    taken = await q.jobs.claim(q.name, LEASE_MS)
    same(taken and taken.payload, b"new", "the payload that a claim hands out")
    same(await q.jobs.update_data(q.name, id, b"newer"), True, "of a job in hand")
    same(await q.read(f"job:{id}"), row("active", 1, "newer"), "its row")
    before = await q.state()
    same(await q.jobs.update_data(q.name, q.id(), b"x"), False, "of a job that there is not")
    same(await q.state(), before, "the queue, unchanged")


async def update_progress(bench: Bench) -> None:
    """Progress is written on the row as text and published as a JSON string; of a row that is gone neither."""
    q = bench.queue()
    id = await q.add()
    async with hearing(bench, q.keys.events) as heard:
        same(await q.jobs.update_progress(q.name, id, 50), True, "a number")
        same(await heard.next(), {"event": "progress", "job": id, "progress": "50"}, "the event")
        same(await q.read(f"job:{id}"), row(progress="50"), "the row")
        same(await q.jobs.update_progress(q.name, q.id(), 1), False, "of a job that there is not")
        same(await q.jobs.update_progress(q.name, id, {"step": 'a "b"'}), True, "a value")
        event = {"event": "progress", "job": id, "progress": '{"step":"a \\"b\\""}'}
        same(await heard.next(), event, "the next event: nothing was published for the one that is gone")
    same(await q.state(), {f"job:{id}": row(progress='{"step":"a \\"b\\""}'), "pending": {id: 0.0}}, "the queue")


async def job_logs(bench: Bench) -> None:
    """Log lines of a job are kept in order, the newest only where a number is given, and go with the job."""
    q = bench.queue()
    id = await q.add()
    jobs = q.jobs
    same([await jobs.add_log(q.name, id, line) for line in ("a", "b", "c")], [1, 2, 3], "the counts")
    same(await q.read(f"job:{id}:logs"), ["a", "b", "c"], "the list")
    same(await jobs.add_log(q.name, id, "d", keep=2), 2, "the count where two are kept")
    same(await jobs.get_job_logs(q.name, id), ["c", "d"], "the lines")
    same(await jobs.get_job_logs(q.name, id, limit=1, offset=1), ["d"], "a page of them")
    absent = q.id()
    same(await jobs.add_log(q.name, absent, "x"), None, "of a job that there is not")
    same(await q.read(f"job:{absent}:logs"), None, "its list")
    await jobs.claim(q.name, LEASE_MS)
    await jobs.complete(q.name, id, 1)
    same(await jobs.get_job_logs(q.name, id), [], "the lines of a completed job")


async def remove_job(bench: Bench) -> None:
    """A job is removed from wherever it stands with all that hangs on it; one in hand is refused, EMQLOCK."""
    q, jobs = bench.queue(), bench.queue().jobs
    q.owns("de:once")
    (flat, scheduled) = await jobs.enqueue_many(q.name, [New(b"x", dedup="once"), New(b"x", in_ms=60_000)])
    grouped = await q.add_to_lane()
    await jobs.add_log(q.name, flat.id, "a line")
    for id in (flat.id, scheduled.id, grouped):
        same(await jobs.remove_job(q.name, id), True, "a job that waits")
    same(await q.state(), {}, "the keys that are left: no row, log, set, lane, ring entry, dedup key")
    same(await jobs.remove_job(q.name, flat.id), False, "a job that there is not")
    held = await q.add_to_lane()
    await q.lanes.claim(q.name, LEASE_MS)
    before = await q.state()
    await refused(Locked, jobs.remove_job(q.name, held), "a job in hand", text="EMQLOCK job is locked")
    await q.lose_lease(held)
    await q.put(f"job:{held}:lock", "SET", "1", "PX", 60_000)
    await refused(Locked, jobs.remove_job(q.name, held), "a job in hand", text="EMQLOCK job is locked")
    same(without(await q.state(), "active", f"job:{held}:lock"), without(before, "active"), "the queue, unchanged")
    await q.put(f"job:{held}:lock", "DEL")
    same(await jobs.remove_job(q.name, held), True, "the job once nobody holds it")
    same(await q.state(), {}, "the keys that are left: its slot is free")
    again = await q.add_to_lane()
    await q.lanes.claim(q.name, LEASE_MS)
    same(await jobs.remove_job(q.name, again, force=True), True, "a job in hand, forced")
    same(await q.state(), {}, "the keys that are left")


async def reprocess_job(bench: Bench) -> None:
    """A dead job gets a new life with nothing held against it, in its lane or flat; one that is not dead is refused."""
    q, jobs = bench.queue(), bench.queue().jobs
    flat, grouped = await q.add(), await q.add_to_lane()
    taken = (await Hands(q).claim()).jobs
    before = await q.state()
    for id in (flat, grouped):
        await refused(StateRefused, jobs.reprocess(q.name, id), "a job in hand", text="EMQSTATE not dead")
    same(await q.state(), before, "the queue after two refusals")
    for job in taken:
        await jobs.retry(q.name, job.id, job.held, max_attempts=1, error="boom")
    await q.put("wake", "DEL")
    for id in (flat, grouped):
        same(await jobs.reprocess(q.name, id), True, "a dead job")
    expected = {
        f"job:{flat}": row("pending", 1, settled="1:dead"),
        f"job:{grouped}": row("pending", 1, group=GROUP, settled="1:dead"),
        "pending": {flat: 0.0},
        f"g:{GROUP}:pending": {grouped: 0.0},
        "ring": [GROUP],
        "metrics:failed": {"count": "2"},
    }
    same(without(await q.state(), "meta"), expected, "the queue: `settled` stays, failures and last_error are gone")
    same(await q.read("wake"), ["1"], "the token of the lane")
    same(await jobs.retry(q.name, flat, 1, max_attempts=1), "dead", "its last verdict, sent again")
    same(without(await q.state(), "meta"), expected, "the queue, unchanged by that")
    same(await jobs.reprocess(q.name, q.id()), False, "a job that there is not")


SCENARIOS = (
    queue_pause,
    drain,
    obliterate,
    obliterate_grouped,
    update_data,
    update_progress,
    job_logs,
    remove_job,
    reprocess_job,
)
