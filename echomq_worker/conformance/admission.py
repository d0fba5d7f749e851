"""What admission and the claim consult: dedup keys, ceilings, and the pool of connections that producers use.

Source: protocol section 4 (dedup, claim: `meta.concurrency` and the rate limit are honoured first), section 1 (`de:`,
`limiter`), section 8 (the pool).
"""

from __future__ import annotations

import asyncio
from typing import Any

from echomq_worker.admin import Admin
from echomq_worker.conformance.bench import GROUP, LEASE_MS, Bench, Desk, row
from echomq_worker.conformance.checks import holds, same, until
from echomq_worker.conformance.hands import Hands, done, failed
from echomq_worker.jobs import Jobs, New
from echomq_worker.lanes import Lanes
from echomq_worker.metrics import Metrics
from echomq_worker.script import evaluate

_KEY = "invoice 7"
_PARKED = f"de:{_KEY}"


async def dedup(bench: Bench) -> None:
    """While a job with a dedup key stands, another one is not admitted and the answer names the first."""
    q = bench.queue()
    q.owns(_PARKED, "de:brief")
    first, second = await q.jobs.enqueue_many(q.name, [New(b"one", dedup=_KEY), New(b"two", dedup=_KEY)])
    same((first.admitted, second.admitted, second.deduplicated), (True, False, True), "the answers")
    same(second.id, first.id, "the id that the second answer names")
    expected = {f"job:{first.id}": row(payload="one", dedup=_KEY), "pending": {first.id: 0.0}, _PARKED: first.id}
    same(await q.state(), expected, "the queue: one job, with its key parked")
    (later,) = await q.jobs.enqueue_many(q.name, [New(b"x", dedup=_KEY, in_ms=5)])
    same((later.id, later.deduplicated), (first.id, True), "a scheduled one")
    same(await q.state(), expected, "the queue, unchanged")
    (brief,) = await q.jobs.enqueue_many(q.name, [New(b"x", dedup="brief", dedup_ttl_ms=60_000)])
    ttl_ms = await q.wire.call("PTTL", f"{q.keys.base}de:brief")
    holds(0 < ttl_ms <= 60_000, f"a key with a time to live has it: {ttl_ms} ms")
    same(await q.read("de:brief"), brief.id, "the id that is parked under it")


async def dedup_release(bench: Bench) -> None:
    """A dedup key is released when its job completes, dies or is removed, and never while it stands for another id."""
    q = bench.queue()
    q.owns(_PARKED)

    async def admit() -> str:
        (receipt,) = await q.jobs.enqueue_many(q.name, [New(b"x", dedup=_KEY)])
        same((receipt.admitted, await q.read(_PARKED)), (True, receipt.id), "admission, with its key parked")
        return receipt.id

    hands = Hands(q)
    await admit()
    await hands.settle(done((await hands.claim()).jobs[0]))
    same(await q.read(_PARKED), None, "the key behind a completion")
    await admit()
    await hands.settle(failed((await hands.claim()).jobs[0]))
    holds(await q.read(_PARKED), "the key stands while its job waits for another run")
    await q.jobs.remove_job(q.name, (await q.jobs.browse(q.name, "scheduled"))[0].id)
    same(await q.read(_PARKED), None, "the key behind a removal")
    id = await admit()
    await q.jobs.claim(q.name, LEASE_MS)
    await q.jobs.retry(q.name, id, 1, max_attempts=1)
    same(await q.read(_PARKED), None, "the key behind a death")
    old = await admit()
    await q.put(_PARKED, "SET", id)
    await q.jobs.claim(q.name, LEASE_MS)
    await q.jobs.complete(q.name, old, 1)
    same(await q.read(_PARKED), id, "a key that stands for another id by then")
    await q.put(f"job:{id}", "DEL")
    same(await admit() != id, True, "an id whose row is gone does not block: the next admission takes the key over")


async def rate(bench: Bench) -> None:
    """A queue with a rate limit hands out at most that many jobs in a window, flat and of lanes; the rest waits."""
    q = bench.queue()
    await Admin(q.wire).set_rate(q.name, 3, 60_000)
    flat = [await q.add() for _ in range(3)]
    lane = [await q.add_to_lane() for _ in range(3)]
    hands = Hands(q)
    first = (await hands.claim(2)).ids
    second = await hands.claim(10)
    same((len(first), len(second.ids)), (2, 1), "two claims in one window")
    third = await hands.claim(10)
    word, _, left_ms = third.why.partition(":")
    same((word, third.ids), ("rate", []), "the third")
    holds(0 < int(left_ms) <= 60_000, f"it says when the window ends: in {left_ms} ms")
    state = await q.state()
    waiting = {*state.get("pending", {}), *state.get(f"g:{GROUP}:pending", {})}
    same(waiting, {*flat, *lane} - {*first, *second.ids}, "the jobs that are left")
    same(state.get("limiter"), "3", "jobs started in this window")
    ttl_ms = await q.wire.call("PTTL", q.keys.limiter)
    holds(0 < ttl_ms <= 60_000, f"the window ends by itself: in {ttl_ms} ms")
    await q.put("limiter", "PEXPIRE", 1)

    async def over() -> bool:
        return await q.read("limiter") is None

    await until(over, "the end of the window")
    same(len((await hands.claim(10)).ids), 3, "a claim in the next window")


async def rate_consult(bench: Bench) -> None:
    """The claim consults the queue's ceiling of jobs in flight: it fills what is free below it, no more."""
    q = bench.queue()
    admin = Admin(q.wire)
    await admin.set_concurrency(q.name, 2)
    ids = [await q.add() for _ in range(3)]
    lane = await q.add_to_lane()
    same((await Metrics(q.wire).stats(q.name)).limits.concurrency, 2, "the ceiling as it is told")
    same(await _claimable(q), 2, "how many jobs a look finds that could be claimed")
    hands = Hands(q)
    taken = await hands.claim(1)
    taken.jobs.extend((await hands.claim(5)).jobs)
    same(len(taken.jobs), 2, "two claims with six free slots")
    before = await q.state(tokens=True)
    same(await _claimable(q), 0, "what a look finds at the ceiling")
    refused = await Hands(q, "other").claim(5)
    same((refused.why, refused.ids), ("ceiling", []), "a claim at the ceiling")
    same(await q.state(tokens=True), before, "the queue, unchanged")
    await q.put("ready", "DEL")
    await hands.settle(done(taken.jobs[0]))
    same(await q.read("ready"), ["1"], "a token for who waits below the ceiling")
    same(len((await hands.claim(5)).ids), 1, "the slot that is free again")
    await admin.set_concurrency(q.name, None)
    same(await _claimable(q), 1, "what a look finds without a ceiling")
    same(len((await hands.claim(5)).ids), 1, "the rest without a ceiling")
    same(await q.read("pending"), None, f"nothing is left of {len(ids)} flat jobs and {lane}")


async def pool_enqueue(bench: Bench) -> None:
    """Producers over a pool of connections, all at once, lose nothing and admit nothing twice."""
    q = bench.queue()
    async with bench.pool(3) as pool:
        jobs, lanes = Jobs(pool, mint=bench.mint), Lanes(pool, mint=bench.mint)
        flat = await asyncio.gather(*(jobs.enqueue(q.name, b"x") for _ in range(30)))
        many = await jobs.enqueue_many(q.name, [b"x"] * 30)
        lane = await asyncio.gather(*(lanes.enqueue(q.name, GROUP, b"x") for _ in range(30)))
        again = await asyncio.gather(*(jobs.enqueue(q.name, b"y", id=receipt.id) for receipt in flat))
    holds(all(receipt.admitted for receipt in (*flat, *many, *lane)), "every job is admitted")
    holds(all(receipt.duplicate for receipt in again), "every id that comes again is a duplicate")
    state = await q.state()
    same(set(state.get("pending", {})), {receipt.id for receipt in (*flat, *many)}, "flat pending")
    same(set(state.get(f"g:{GROUP}:pending", {})), {receipt.id for receipt in lane}, "the lane")
    same({state[f"job:{receipt.id}"]["payload"] for receipt in flat}, {"x"}, "the payloads: those of the first")
    same(state.get("ring"), [GROUP], "the ring, the lane once")


async def pool_order(bench: Bench) -> None:
    """Whatever the connection that each job came over, claims follow the order of the mint."""
    q = bench.queue()
    ids = [q.id() for _ in range(40)]
    async with bench.pool(4) as pool:
        names = {await pool.call("CLIENT", "ID")}
        names.update(await asyncio.gather(*(pool.call("CLIENT", "ID") for _ in range(8))))
        same(len(names), 4, "the connections that calls at the same moment go over")
        jobs = Jobs(pool)
        await asyncio.gather(*(jobs.enqueue(q.name, b"x", id=id) for id in reversed(ids)))
    hands = Hands(q)
    half = (await hands.claim(20)).ids
    rest = [one.id for one in await q.jobs.claim_batch(q.name, LEASE_MS, 30)]
    same(half + rest, ids, "the order of two claims, ours and the plain one")
    holds(await q.read("ready"), "tokens are left, by the plain claim")
    same(((await hands.claim()).ids, await q.read("ready")), ([], None), "ours takes them where nothing is left")


async def _claimable(q: Desk) -> Any:
    names = (q.keys.pending, q.keys.active, q.keys.ring, q.keys.meta)
    return await evaluate(q.wire, "look", names, (q.keys.base, 10))


SCENARIOS = (dedup, dedup_release, rate, rate_consult, pool_enqueue, pool_order)
