"""Many jobs under one deadline: what a batched claim takes, and that each job of it ends on its own.

Source: protocol section 4 (claim_batch, delay, settle), issue "Every control" (batch handlers).
"""

from __future__ import annotations

from echomq_worker.conformance.bench import LEASE_MS, Bench, row, without
from echomq_worker.conformance.checks import Between, holds, refused, same, until
from echomq_worker.conformance.working import taken_by, working
from echomq_worker.errors import Gone, Stale
from echomq_worker.job import Job
from echomq_worker.verdict import Delay, Reject, Retry
from echomq_worker.worker import Worker


async def batch_claim(bench: Bench) -> None:
    """A batched claim takes the oldest jobs, oldest first, under one shared deadline; the rest stays pending."""
    q = bench.queue()
    ids = [await q.add(f"payload {number}") for number in range(5)]
    before = await q.now_ms()
    batch = await q.jobs.claim_batch(q.name, LEASE_MS, 3)
    deadline = await q.lease_since(before)
    same(
        [(one.id, one.payload, one.token) for one in batch],
        [(ids[n], f"payload {n}".encode(), 1) for n in range(3)],
        "the batch",
    )
    expected = {f"job:{id}": row(payload=f"payload {number}") for number, id in enumerate(ids)}
    expected |= {f"job:{id}": row("active", 1, f"payload {number}") for number, id in enumerate(ids[:3])}
    state = await q.state()
    same(without(state, "active", "pending"), expected, "the rows")
    same(state.get("pending"), dict.fromkeys(ids[3:], 0.0), "pending")
    same(state.get("active"), dict.fromkeys(ids[:3], deadline), "active")
    same(len(set(state["active"].values())), 1, "different deadlines among them")


async def batch_claim_short(bench: Bench) -> None:
    """A batched claim comes back short when fewer jobs are pending, and empty when none is; it serves no lane."""
    q = bench.queue()
    same(await q.jobs.claim_batch(q.name, LEASE_MS, 4), [], "the batch of an empty queue")
    same(await q.state(), {}, "the empty queue behind it")
    ids = [await q.add() for _ in range(2)]
    await q.add_to_lane()
    same([one.id for one in await q.jobs.claim_batch(q.name, LEASE_MS, 4)], ids, "the batch where two are pending")
    before = await q.state()
    same(await q.jobs.claim_batch(q.name, LEASE_MS, 4), [], "the next batch")
    same(await q.state(), before, "the queue, unchanged by it")


async def batch_delay(bench: Bench) -> None:
    """One job of a batch goes back to the schedule with attempts and payload as they are; the others stay in hand."""
    q = bench.queue()
    ids = [await q.add() for _ in range(3)]
    await q.jobs.claim_batch(q.name, LEASE_MS, 3)
    before = await q.now_ms()
    await q.jobs.delay(q.name, ids[1], 1, 5_000)
    due = Between(before + 5_000, await q.now_ms() + 5_000)
    state = await q.state()
    same(state.get(f"job:{ids[1]}"), row("scheduled", 1, settled="1:delayed"), "its row: no failure")
    same((state.get("schedule"), set(state.get("active", {}))), ({ids[1]: due}, {ids[0], ids[2]}), "schedule, active")
    await q.jobs.delay(q.name, ids[2], 1, 77, mode="at")
    same((await q.read("schedule"))[ids[2]], 77.0, "an absolute run-at, as it is given")
    same(await q.jobs.promote(q.name), 1, "promote")
    taken = await q.jobs.claim(q.name, LEASE_MS)
    same(taken and (taken.id, taken.token), (ids[2], 2), "the next claim of it: attempts go on")


async def batch_delay_stale(bench: Bench) -> None:
    """A delay under another's token is refused and moves nothing; sent again under the right one it changes nothing."""
    q = bench.queue()
    ids = [await q.add() for _ in range(2)]
    await q.jobs.claim_batch(q.name, LEASE_MS, 2)
    delay, text = q.jobs.delay, "EMQSTALE delay token mismatch"
    before = await q.state()
    await refused(Stale, delay(q.name, ids[0], 2, 5_000), "another's token", text=text)
    await refused(Gone, delay(q.name, q.id(), 1, 5_000), "a job that there is not", text="EMQSTALE job gone")
    same(await q.state(), before, "the queue after the refusals")
    await delay(q.name, ids[0], 1, 5_000)
    before = await q.state()
    await delay(q.name, ids[0], 1, 900_000)
    same(await q.state(), before, "the queue after the same delay again")
    await q.jobs.retry(q.name, ids[1], 1, max_attempts=1)
    before = await q.state()
    await refused(Stale, delay(q.name, ids[1], 1, 5_000), "a job that is dead", text=text)
    same(await q.state(), before, "the queue after that")


async def batch_partial_failure(bench: Bench) -> None:
    """Each job of a batch ends on its own: one is retried, one is dead, the others are not touched by it."""
    q = bench.queue()
    ids = [await q.add() for _ in range(4)]
    batch = await q.jobs.claim_batch(q.name, LEASE_MS, 4)
    same([one.id for one in batch], ids, "the batch")
    before = await q.now_ms()
    first, fails, dies, last = ids
    same(await q.jobs.complete(q.name, first, 1), True, "the first completes")
    same(await q.jobs.retry(q.name, fails, 1, delay_ms=5_000, error="broke"), "scheduled", "the second fails")
    due = Between(before + 5_000, await q.now_ms() + 5_000)
    same(await q.jobs.retry(q.name, dies, 1, max_attempts=1, error="never"), "dead", "the third dies")
    state = await q.state()
    same(set(state.pop("active")), {last}, "what is still in hand")
    expected = {
        f"job:{fails}": row("scheduled", 1, failures=1, last_error="broke", settled="1:scheduled"),
        f"job:{dies}": row("dead", 1, failures=1, last_error="never", settled="1:dead"),
        f"job:{last}": row("active", 1),
        "schedule": {fails: due},
        "dead": {dies: 0.0},
        "metrics:completed": {"count": "1"},
        "metrics:failed": {"count": "1"},
    }
    same(state, expected, "the queue")
    await q.lose_lease(last)
    same(await q.jobs.reap(q.name), 1, "the batch's last job, when its lease runs out: it alone")
    same(await q.read("pending"), {last: 0.0}, "pending")


async def batch_partition(bench: Bench) -> None:
    """A batch handler's answer parts its jobs: done, retried, delayed, dead; what it does not answer for is retried."""
    q, worker = bench.queue(), Worker()
    ids = [await q.add() for _ in range(5)]
    good, again, later, never, silent = ids
    calls: list[list[str]] = []

    @worker.batch_handler(q.name, min_size=5, timeout_ms=5_000)
    async def work(jobs: list[Job]) -> dict[str, object]:
        taken_by(q, jobs[0])
        calls.append([job.id for job in jobs])
        return {good: None, again: Retry(60_000, "not now"), later: Delay(60_000), never: Reject("no use")}

    async with working(bench, worker, retry_delay_ms=60_000):

        async def over() -> bool:
            return bool(calls) and await q.read("active") is None

        await until(over, "the end of the batch")
    same(calls, [ids], "the calls of the handler: one, with all jobs")
    state = await q.state()
    same(state.get(f"job:{good}"), None, "the row of the job that is done")
    same(state[f"job:{again}"]["last_error"], "not now", "of the one that is retried")
    same(state[f"job:{later}"], row("scheduled", 1, settled="1:delayed"), "of the one that is delayed: no failure")
    same((state[f"job:{never}"]["state"], state[f"job:{never}"]["last_error"]), ("dead", "no use"), "of the dead one")
    holds("nothing for this job" in state[f"job:{silent}"]["last_error"], "the one without an answer says so")
    same((set(state["schedule"]), set(state["dead"])), ({again, later, silent}, {never}), "schedule, dead set")
    counts = {name: state.get(f"metrics:{name}") for name in ("completed", "failed")}
    same(counts, {"completed": {"count": "1"}, "failed": {"count": "1"}}, "completed, failed")


SCENARIOS = (batch_claim, batch_claim_short, batch_partial_failure, batch_partition, batch_delay, batch_delay_stale)
