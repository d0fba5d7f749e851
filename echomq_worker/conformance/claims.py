"""What our own claim and settle promise beyond the plain verbs: nothing is lost, counted twice or blamed on innocents.

Source: protocol section 4 (crashes, suspects, `held`, receipts, sent twice, a claim without a payload).
"""

from __future__ import annotations

from echomq_worker.conformance.bench import GROUP, LEASE_MS, Bench, Desk, row, without
from echomq_worker.conformance.checks import Between, holds, same
from echomq_worker.conformance.hands import Hands, Taken, delayed, done, failed
from echomq_worker.jobs import New


async def failures_not_claims(bench: Bench) -> None:
    """Claims that were released or delayed are no failures: a job is dead after max_attempts failures, not claims."""
    q = bench.queue()
    hands = Hands(q)
    id = await q.add()
    for _ in range(3):
        job = await _only(hands)
        same((job.failures, job.crashes), (0, 0), "failures and crashes behind a release")
        same(await hands.release(job), ["ok"], "a claim that is released")
    same(await hands.settle(delayed(await _only(hands), 0)), ["delayed"], "a claim that is delayed")
    await q.jobs.promote(q.name)
    same(await q.read(f"job:{id}"), row("pending", 4, settled="4:delayed"), "the row after four claims")
    for attempts, answer in ((5, "scheduled"), (6, "dead")):
        job = await _only(hands)
        same((job.token, job.failures), (attempts, attempts - 5), "token and failures of a claim")
        same(await hands.settle(failed(job, delay_ms=0, max_attempts=2)), [answer], "a failure of two")
        await q.jobs.promote(q.name)
    expected = row("dead", 6, failures=2, last_error="boom", settled="6:dead")
    same(await q.read(f"job:{id}"), expected, "the row at the end")


async def ghost_claim(bench: Bench) -> None:
    """An id without a row is claimed without a payload and retired, as is the skeleton that promote makes of one."""
    q = bench.queue()
    ghost, scheduled = q.id(), q.id()
    await q.put("pending", "ZADD", 0, ghost)
    await q.put("schedule", "ZADD", 1, scheduled)
    same(await q.jobs.promote(q.name), 1, "promote of an id without a row")
    # The command takes it from the schedule and makes nothing of it: a difference that the seed names.
    native = bench.spoken.is_command("promote")
    same(await q.read(f"job:{scheduled}"), None if native else {"state": "pending"}, "the skeleton row")
    hands, ghosts = Hands(q), [ghost] if native else [ghost, scheduled]
    taken = (await hands.claim()).jobs
    same([(job.id, job.payload, job.token) for job in taken], [(id, None, 1) for id in ghosts], "the claim")
    same(await hands.settle(*(done(job) for job in taken)), ["done"] * len(ghosts), "their retirement")
    same(without(await q.state(), "metrics:completed"), {}, "the keys that are left")
    await q.put("pending", "ZADD", 0, ghost)
    claimed = await q.jobs.claim(q.name, LEASE_MS)
    same(claimed and (claimed.id, claimed.payload), (ghost, None), "the plain claim of one")
    same(await q.jobs.complete(q.name, ghost, 1), True, "its retirement")
    same(without(await q.state(), "metrics:completed"), {}, "the keys that are left")


async def settle_batch_partial(bench: Bench) -> None:
    """Of many verdicts in one call each has an answer of its own; one that is stale or gone takes no other with it."""
    q = bench.queue()
    hands = Hands(q)
    for _ in range(5):
        await q.add()
    grouped = await q.add_to_lane()
    jobs = {job.id: job for job in (await hands.claim()).jobs}
    good, late, gone, bad, slow = (job for job in jobs.values() if not job.group)
    await q.jobs.complete(q.name, gone.id, 1)
    await q.lose_lease(late.id)
    await q.jobs.reap(q.name)
    again = await q.jobs.claim(q.name, LEASE_MS)
    before = await q.now_ms()
    verdicts = (done(good), done(late), done(gone), failed(bad), delayed(slow, 5_000), done(jobs[grouped]))
    answers = await hands.settle(*verdicts)
    high = await q.now_ms()
    same(answers, ["done", "stale", "gone", "scheduled", "delayed", "done"], "the answers, in order")
    same(again and again.id, late.id, "who had the stale one meanwhile")
    state = await q.state()
    same(set(state.get("active", {})), {late.id}, "active: the one that somebody else has")
    due = {bad.id: Between(before + 1_000, high + 1_000), slow.id: Between(before + 5_000, high + 5_000)}
    same(state.get("schedule"), due, "the schedule")
    same(state.get("metrics:completed"), {"count": "3"}, "completions")
    same(state.get("gactive"), None, "the slot of the lane")
    rows = {name for name in state if name.startswith("job:")}
    same(rows, {f"job:{job.id}" for job in (late, bad, slow)}, "the rows that are left")


async def settle_twice(bench: Bench) -> None:
    """A verdict that is sent again gets the first answer and writes nothing, nor does another one of the same claim."""
    q = bench.queue()
    hands = Hands(q)
    for _ in range(4):
        await q.add()
    first, second, third, fourth = (await hands.claim()).jobs
    verdicts = (done(first), failed(second), failed(third, max_attempts=1), delayed(fourth))
    answers = await hands.settle(*verdicts)
    same(answers, ["done", "scheduled", "dead", "delayed"], "the answers")
    before = await q.state()
    same(await hands.settle(*verdicts), ["gone", *answers[1:]], "the answers to the same again")
    same(await q.state(), before, "the queue, unchanged")
    others = (delayed(second), delayed(third), failed(fourth), done(second))
    same(await hands.settle(*others), ["stale"] * 4, "other verdicts of the same claims")
    same(await q.state(), before, "the queue, unchanged by these too")
    same(before.get(f"job:{second.id}", {}).get("failures"), "1", "failures of one failure told twice")
    same(await q.jobs.retry(q.name, second.id, 1), "scheduled", "the plain verb, sent again")
    same(await q.state(), before, "the queue, unchanged by that")
    twin = await q.add()
    (job,) = (await hands.claim()).jobs
    same(await hands.settle(failed(job), failed(job)), ["scheduled", "scheduled"], "the same twice in one call")
    same((await q.read(f"job:{twin}"))["failures"], "1", "its failures")


async def claim_receipt(bench: Bench) -> None:
    """A claim whose reply was lost is found again: the next one brings the same jobs, extended, and takes no others."""
    q = bench.queue()
    hands = Hands(q)
    ids = [await q.add() for _ in range(2)] + [await q.add_to_lane()]
    lost = await hands.claim(3, reply_lost=True)
    same(set(lost.ids), set(ids), "the claim whose reply nobody reads")
    later = await q.add()
    ttl_ms = await q.wire.call("PTTL", q.keys.receipt(hands.name))
    same(ttl_ms, Between(1, LEASE_MS), "what its receipt lives: the lease")
    await q.jobs.complete(q.name, ids[0], 1)
    await hands.disown(next(job for job in lost.jobs if job.id == ids[1]))
    before = await q.now_ms()
    again = await hands.claim(5, lease_ms=600_000)
    same(again.why, "replayed", "why the next claim ends")
    same([(job.id, job.held) for job in again.jobs], [(ids[2], _held(lost.jobs, ids[2]))], "what it brings")
    deadline = (await q.read("active"))[ids[2]]
    same(deadline, await q.lease_since(before, 600_000), "its lease, extended")
    same(await q.read("pending"), {later: 0.0}, "what it did not take")
    same((await hands.claim(5)).ids, [later], "the claim behind it")
    same((await Hands(q, "other").claim(5)).ids, [], "another consumer's claim: a receipt is its consumer's own")


async def suspect_one_at_a_time(bench: Bench) -> None:
    """Jobs whose claims never ended are handed out one at a time, five times at most; the healthy go on."""
    q = bench.queue()
    hands = Hands(q)
    bad = [await q.add() for _ in range(2)]
    for _ in range(2):
        await _crash(q, hands)
    healthy = [await q.add() for _ in range(2)]
    claim = await hands.claim()
    same([(job.id, job.crashes) for job in claim.jobs], [(bad[0], 2), (healthy[0], 0), (healthy[1], 0)], "a claim")
    same(claim.why, "suspects", "why it ends")
    same(await q.read("pending"), {bad[1]: 0.0}, "the suspect that was passed over")
    same((await hands.claim(suspects=0)).ids, [], "a claim of a process that has one in hand")
    await hands.settle(*(done(job) for job in claim.jobs))
    buried = {}
    for _ in range(4):
        buried = dict((await hands.claim()).buried)
        await _expire_all(q)
    same(buried, {bad[1]: "crashed: 5 claims in a row never ended"}, "what the last claim has buried")
    state = await q.state()
    expected = row("dead", 5, last_error="crashed: 5 claims in a row never ended")
    same(state.get(f"job:{bad[1]}"), expected, "its row: `held` and `crashes` are cleared")
    same((state.get("dead"), state.get("metrics:failed")), ({bad[1]: 0.0}, {"count": "1"}), "the dead set, the count")
    await q.jobs.enqueue_many(q.name, [New(b"x", group=GROUP)])
    await _crash(q, hands)
    (job,) = (await hands.claim()).jobs
    same(job.crashes, 1, "crashes that a claim tells")
    await hands.settle(failed(job, delay_ms=0))
    await q.jobs.promote(q.name)
    same((await _only(hands)).crashes, 0, "crashes after a verdict: only claims in a row count")
    await _expire_all(q)
    await _crash(q, hands)
    same((await hands.claim(suspects=0)).ids, [], "a claim of a process that has a suspect in hand, of a lane with one")
    holds(await q.read("wake"), "a token is left for a process that has none")


async def _only(hands: Hands) -> Taken:
    jobs = (await hands.claim()).jobs
    same(len(jobs), 1, "jobs of a claim")
    return jobs[0]


async def _crash(q: Desk, hands: Hands) -> None:
    """A process takes what there is and is never heard of again."""
    await hands.claim(suspects=1)
    await _expire_all(q)


async def _expire_all(q: Desk) -> None:
    await q.lose_lease(*(await q.read("active") or {"": 0}))
    await q.jobs.reap(q.name)


def _held(jobs: list[Taken], id: str) -> str:
    return next(job.held for job in jobs if job.id == id)


SCENARIOS = (
    failures_not_claims,
    ghost_claim,
    settle_batch_partial,
    settle_twice,
    claim_receipt,
    suspect_one_at_a_time,
)
