"""Leases: their extension, the counting sweep, and the lock marker of a lease keeper.

Source: protocol section 4 (extend_lock, extend_locks, stalled check, remove_job), issue "Every control" (checkpoints).
"""

from __future__ import annotations

from echomq_worker.conformance.bench import LEASE_MS, Bench, Desk, row
from echomq_worker.conformance.checks import NotApplicable, holds, refused, same, until
from echomq_worker.conformance.hands import Hands, done
from echomq_worker.errors import Locked, ServerError, Stale
from echomq_worker.stalled import Stalled

_LONG_MS = 600_000


async def lock_extend(bench: Bench) -> None:
    """An extension makes a lease last from now on, marks the job as held, never shortens and never revives."""
    q = bench.queue()
    extend = q.jobs.extend_lock
    id = await q.add()
    await q.jobs.claim(q.name, LEASE_MS)
    before = await q.now_ms()
    same(await extend(q.name, id, 1, _LONG_MS), "extended", "of a job in hand")
    longer = await q.lease_since(before, _LONG_MS)
    expected = {f"job:{id}": row("active", 1), f"job:{id}:lock": "1", "active": {id: longer}}
    same(await q.state(), expected, "the queue: another deadline, and the marker")
    ttl_ms = await q.wire.call("PTTL", q.keys.lock(id))
    holds(_LONG_MS < ttl_ms <= 2 * _LONG_MS, f"the marker goes by itself at twice the lease: in {ttl_ms} ms")
    same(await extend(q.name, id, 1, LEASE_MS), "extended", "to a shorter lease")
    same(await q.read("active"), {id: longer}, "the deadline, not shortened")
    await refused(Stale, extend(q.name, id, 2, _LONG_MS), "another's token", text="EMQSTALE extend token mismatch")
    await q.lose_lease(id)
    await q.jobs.reap(q.name)
    same(await extend(q.name, id, 1, _LONG_MS), "not_active", "of a job that was reaped")
    same(await q.read("active"), None, "the leases: nothing was revived")
    same(await extend(q.name, q.id(), 1, _LONG_MS), "gone", "of a job that there is not")


async def extend_locks_batch(bench: Bench) -> None:
    """Many leases are extended in one call; the lost ones are told, the others marked as held."""
    q = bench.queue()
    ids = [await q.add() for _ in range(4)]
    before = await q.now_ms()
    await q.jobs.claim_batch(q.name, LEASE_MS, 4)
    old = await q.lease_since(before)
    held, second, stale, reaped = ids
    await q.lose_lease(reaped)
    await q.jobs.reap(q.name)
    gone = q.id()
    before = await q.now_ms()
    holds_of = [(held, 1), (stale, 7), (reaped, 1), (gone, 1), (second, 1)]
    same(await q.jobs.extend_locks(q.name, _LONG_MS, holds_of), [stale, reaped, gone], "the ids that were lost")
    longer = await q.lease_since(before, _LONG_MS)
    same(await q.read("active"), {held: longer, second: longer, stale: old}, "the deadlines")
    marked = [id for id in (*ids, gone) if await q.read(f"job:{id}:lock")]
    same(marked, [held, second], "the jobs with a marker")
    hands = Hands(q)
    await q.add()
    job, fresh = (await hands.claim()).jobs
    before = await q.now_ms()
    same(await hands.keep(job, fresh, lease_ms=_LONG_MS), {}, "the worker's own way, of jobs in hand")
    deadline = (await q.read("active"))[job.id]
    same(deadline, await q.lease_since(before, _LONG_MS), "its deadline")
    for each in (job, fresh):
        same(await hands.settle(done(each)), ["done"], "its verdict")
        same(await q.read(f"job:{each.id}:lock"), None, "its marker")
    same(await hands.keep(job), {job.id: "gone"}, "the worker's own way, of a job that is over")


async def stalled(bench: Bench) -> None:
    """The counting sweep returns a job whose lease ran out until it has done so max_stalled times, then buries it."""
    q = bench.queue()
    check = Stalled(q.wire).check
    id, fresh = await q.add(), await q.add()
    await q.jobs.claim_batch(q.name, LEASE_MS, 2)
    same(await check(q.name, max_stalled=2), ([], []), "a sweep while every lease runs")
    await q.lose_lease(id)
    same(await check(q.name, max_stalled=2), ([id], []), "the first time")
    state = await q.state()
    same(state.get(f"job:{id}"), row("pending", 1, stalled=1), "its row")
    same((state.get("pending"), set(state.get("active", {}))), ({id: 0.0}, {fresh}), "pending, active")
    await q.jobs.claim(q.name, LEASE_MS)
    await q.lose_lease(id, fresh)
    same(await check(q.name, max_stalled=2, limit=1), ([], [id]), "the second time, one lease at most")
    state = await q.state()
    same(state.get(f"job:{id}"), row("dead", 2, stalled=2, last_error="stalled"), "its row")
    same((state.get("dead"), state.get("metrics:failed")), ({id: 0.0}, {"count": "1"}), "the dead set, the count")
    same(set(state.get("active", {})), {fresh}, "the lease that was beyond the limit")


async def native_lock_field(bench: Bench) -> None:
    """A lock that is a field of the row expires by itself; claims leave it alone, and it goes with the row."""
    q = bench.queue()
    id = await q.add()
    await _lock_field(q, id, 60_000)
    await q.jobs.claim(q.name, LEASE_MS)
    await q.jobs.update_progress(q.name, id, "half")
    same(await q.read(f"job:{id}"), row("active", 1, lock="1", progress="half"), "the row of a job in hand")
    (left_ms,) = await q.wire.call("HPTTL", q.keys.job(id), "FIELDS", 1, "lock")
    holds(0 < left_ms <= 60_000, f"the field still expires: in {left_ms} ms")
    await _end_lock_field(q, id)
    same(await q.read(f"job:{id}"), row("active", 1, progress="half"), "the row once the field has expired")
    await _lock_field(q, id, 60_000)
    same(await q.jobs.complete(q.name, id, 1), True, "a completion under the lock")
    same(await q.state(), {"metrics:completed": {"count": "1"}}, "the queue behind it")


async def native_lock_refuses(bench: Bench) -> None:
    """remove_job refuses a job with a lock field on its row, and takes it once the field has expired."""
    q = bench.queue()
    id = await q.add()
    await _lock_field(q, id, 60_000)
    before = await q.state()
    await refused(Locked, q.jobs.remove_job(q.name, id), "remove_job", text="EMQLOCK job is locked")
    same(await q.state(), before, "the queue after the refusal")
    await _end_lock_field(q, id)
    same(await q.jobs.remove_job(q.name, id), True, "remove_job then")
    same(await q.state(), {}, "the keys that are left")


async def _lock_field(q: Desk, id: str, ttl_ms: int) -> None:
    """Lock a row as a node with hash-field expiry does; NotApplicable where the server has none."""
    key = q.keys.job(id)
    await q.wire.call("HSET", key, "lock", "1")
    try:
        await q.wire.call("HPEXPIRE", key, ttl_ms, "FIELDS", 1, "lock")
    except ServerError as error:
        if "unknown command" in str(error):
            raise NotApplicable("the server has no HPEXPIRE: hash fields expire on Valkey 9 and Redis 7.4") from None
        raise


async def _end_lock_field(q: Desk, id: str) -> None:
    await q.wire.call("HPEXPIRE", q.keys.job(id), 1, "FIELDS", 1, "lock")

    async def expired() -> bool:
        return (await q.wire.call("HGET", q.keys.job(id), "lock")) is None

    await until(expired, "the end of the field")


SCENARIOS = (lock_extend, extend_locks_batch, stalled, native_lock_field, native_lock_refuses)
