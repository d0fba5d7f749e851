"""The read plane: how many jobs stand where, where one stands, what the queue has counted.

Source: issue "Every control" (the read plane), protocol section 1 (states, metrics).
"""

from __future__ import annotations

from echomq_worker.conformance.bench import GROUP, LEASE_MS, OTHER_GROUP, Bench
from echomq_worker.conformance.checks import holds, same
from echomq_worker.conformance.hands import Hands, done, failed
from echomq_worker.metrics import Metrics
from echomq_worker.repeat import Repeat
from echomq_worker.script import evaluate


async def counts(bench: Bench) -> None:
    """The counts of a queue are those of its sets, each job in one of them, and what is late is told."""
    q, metrics = bench.queue(), Metrics(bench.wire)
    empty = await metrics.stats(q.name)
    same((empty.counts.ready, empty.oldest_pending_age_ms, empty.next_due_ms), (0, None, None), "an empty queue")
    for _ in range(4):
        await q.add()
    await q.add_to_lane(GROUP)
    await q.add_to_lane(OTHER_GROUP)
    await q.jobs.enqueue_at(q.name, b"x", 4_000_000_000_000)
    await q.jobs.claim(q.name, LEASE_MS)
    taken = await q.jobs.claim(q.name, LEASE_MS)
    await q.jobs.retry(q.name, taken.id if taken else "", 1, max_attempts=1)
    q.owns("repeat:daily")
    await Repeat(q.wire).register(q.name, "daily", 1_000, b"x", first_in_ms=60_000)
    found = (await metrics.stats(q.name)).counts
    same(
        (found.pending, found.active, found.scheduled, found.dead, found.repeats, found.paused, found.lanes),
        (2, 1, 1, 1, 1, False, {GROUP: 1, OTHER_GROUP: 1}),
        "pending, active, scheduled, dead, repeats, paused, lanes",
    )
    same(found.ready, 4, "what could be claimed now")
    stats = await metrics.stats(q.name)
    age_ms = stats.oldest_pending_age_ms
    holds(age_ms is not None and 0 <= age_ms < 600_000, f"the age of the oldest pending job, from its id: {age_ms} ms")
    same((stats.next_due_ms, stats.expired_leases), (4_000_000_000_000, 0), "the next run-at, leases that ran out")
    await q.lose_lease(*(await q.read("active")))
    same(await metrics.expired_leases(q.name), 1, "leases that ran out, once one has")


async def state(bench: Bench) -> None:
    """The state of a job is told by the set that holds it, whatever its row says."""
    q, metrics = bench.queue(), Metrics(bench.wire)

    async def where(id: str) -> str:
        return await metrics.get_job_state(q.name, id)

    held, dead = await q.add(), await q.add()
    await q.jobs.claim_batch(q.name, LEASE_MS, 2)
    await q.jobs.retry(q.name, dead, 1, max_attempts=1)
    flat, grouped = await q.add(), await q.add_to_lane()
    scheduled = (await q.jobs.enqueue_in(q.name, b"x", 60_000)).id
    ids = (flat, grouped, held, scheduled, dead)
    expected = ["pending", "pending", "active", "scheduled", "dead"]
    same([await where(id) for id in ids], expected, "flat, of a lane, in hand, scheduled, dead")
    for id in ids:
        await q.put(f"job:{id}", "HSET", "state", "nonsense")
    same([await where(id) for id in ids], expected, "the same when the rows say something else")
    view = await metrics.get_job(q.name, held)
    same(view and (view.attempts, view.payload, view.state), (1, b"x", "nonsense"), "a row as it is shown")
    same([one.id for one in await metrics.browse(q.name, "dead")], [dead], "the dead set, browsed")
    await q.jobs.complete(q.name, held, 1)
    same(await where(held), "absent", "a completed job")


async def unknown_state(bench: Bench) -> None:
    """An id without a row and in no set is absent; a row in no set is unknown; a parent that waits says so."""
    q, metrics = bench.queue(), Metrics(bench.wire)
    never, lost, parent = q.id(), q.id(), q.id()
    same(await metrics.get_job_state(q.name, never), "absent", "an id that never was")
    same(await metrics.get_job(q.name, never), None, "its row")
    await q.put(f"job:{lost}", "HSET", "state", "pending", "attempts", 0, "payload", "x")
    same(await metrics.get_job_state(q.name, lost), "unknown", "a row that no set holds")
    await q.put(f"job:{parent}", "HSET", "state", "awaiting_children", "attempts", 0, "payload", "x")
    await q.put(f"job:{parent}:dependencies", "SET", 1)
    same(await metrics.get_job_state(q.name, parent), "awaiting_children", "a parent")
    for id, complaint in ((lost, b"row_in_no_set"), (parent, b""), (never, b"")):
        said = await evaluate(q.wire, "mend", (q.keys.job(id),), (q.keys.base, id, "", ""))
        same(said, complaint, "what a repair finds to mend")
    same(await metrics.get_job_state(q.name, lost), "pending", "the row behind it")
    same(await q.read("pending"), {lost: 0.0}, "the set that holds it")


async def metrics(bench: Bench) -> None:
    """Completions and deaths are counted once each, by whichever verb; a retry counts as neither."""
    q = bench.queue()
    totals = Metrics(q.wire).metrics
    same((await totals(q.name)).completed, 0, "a queue that has completed nothing")
    for _ in range(7):
        await q.add()
    await q.jobs.claim(q.name, LEASE_MS)
    first = (await q.jobs.browse(q.name, "active"))[0].id
    await q.jobs.complete(q.name, first, 1)
    same(await q.jobs.complete(q.name, first, 1), False, "the completion again")
    hands = Hands(q)
    jobs = (await hands.claim()).jobs
    verdicts = (done(jobs[0]), done(jobs[1]), failed(jobs[2], max_attempts=1), failed(jobs[3]))
    same(await hands.settle(*verdicts), ["done", "done", "dead", "scheduled"], "four verdicts at once")
    same(await hands.settle(*verdicts), ["gone", "gone", "dead", "scheduled"], "the same again")
    await q.jobs.retry(q.name, jobs[4].id, 1, max_attempts=1)
    found = await totals(q.name)
    same((found.completed, found.failed), (3, 2), "completed, failed")
    keys = {"metrics:completed": {"count": "3"}, "metrics:failed": {"count": "2"}}
    same({name: await q.read(name) for name in keys}, keys, "the keys that other runtimes read")


SCENARIOS = (counts, state, metrics, unknown_state)
