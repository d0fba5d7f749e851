"""The life of one flat job: admission, claim, the verdicts, and what recovers it.

Source: protocol sections 2, 3 and 4; the seed "Scheduling & recurrence".
"""

from __future__ import annotations

from echomq_worker.conformance.bench import GROUP, LEASE_MS, Bench, SetClock, row
from echomq_worker.conformance.checks import Between, holds, refused, same
from echomq_worker.conformance.hands import Hands, done
from echomq_worker.errors import FenceRefused, Gone, InvalidId, KindRefused, ScriptContract, Stale
from echomq_worker.identity import EPOCH_MS, Mint, decode, encode, minted_at_ms
from echomq_worker.keyspace import FENCE_KEY, slot
from echomq_worker.script import evaluate

_FOREIGN = "USR0KHTOWnGLuC"


async def fence(bench: Bench) -> None:
    """A connection of another wire version is refused, naming both, before it reads or writes anything else."""
    version = bench.target.wire_version
    other = f"{version}-other"
    same(await bench.wire.call("GET", FENCE_KEY), version.encode(), "the fence of the deployment")

    async def enter() -> None:
        async with bench.connector(wire_version=other):
            pass

    await refused(FenceRefused, enter(), "a connection of another version")
    try:
        await enter()
    except FenceRefused as error:
        same((error.expected, error.found), (other, version), "the versions that the refusal names")
    same(await bench.wire.call("GET", FENCE_KEY), version.encode(), "the fence after the refusal")
    async with bench.connector() as again:
        same(await again.call("PING"), b"PONG", "a connection of the same version")


async def mint(_bench: Bench) -> None:
    """Ids are 14 bytes in strictly rising order whatever the clock does, and the vectors of the protocol hold."""
    same(encode("USR", 274_557_032_793_636_864), "USR0KHTOWnGLuC", "the first vector")
    same(decode("USR0NgWEfAEJfs"), ("USR", 320_636_799_581_945_856), "the second vector")
    same(encode("JOB", 2**63 - 1), "JOBAzL8n0Y58m7", "the largest id")
    same(slot("123456789"), 12_739, "the slot of the vector")
    await refused(InvalidId, _decoded("JOBzzzzzzzzzzz"), "an id above 2^63-1")
    backwards = Mint(SetClock(EPOCH_MS + 10_000_000, step_ms=-1_000), 7)
    ids = [backwards.next() for _ in range(5_000)]
    same(ids, sorted(set(ids)), "ids of a clock that steps back, more of them than one ms holds")
    holds(all(len(id.encode()) == 14 for id in ids), "every id is 14 bytes")
    same(minted_at_ms(ids[0]), EPOCH_MS + 9_999_000, "the moment that an id tells")


async def _decoded(id: str) -> tuple[str, int]:
    return decode(id)


async def duplicate(bench: Bench) -> None:
    """An id that has a row is admitted once, by any verb of admission, and the second time writes nothing."""
    q = bench.queue()
    id = await q.add()
    before = await q.state(tokens=True)
    same(before.get(f"job:{id}"), row(), "the row")
    answers = [
        (await q.jobs.enqueue(q.name, b"y", id=id)).duplicate,
        (await q.jobs.enqueue_in(q.name, b"y", 0, id=id)).duplicate,
        (await q.jobs.enqueue_at(q.name, b"y", 1, id=id)).duplicate,
    ]
    same(answers, [True, True, True], "enqueue, enqueue_in, enqueue_at of the id again")
    same(await q.state(tokens=True), before, "the queue after the duplicates")
    keys, new = q.keys, q.id()
    many = await evaluate(q.wire, "enqueue_many", (keys.pending,), (keys.base, id, b"y", new, b"z", new, b"zz"))
    same(many, [0, 1, 0], "enqueue_many of an id that is there, a new one, and the new one again")
    same(await q.read(f"job:{new}"), row(payload="z"), "the row of the new one")
    same(await q.read("pending"), {id: 0.0, new: 0.0}, "pending")


async def kind(bench: Bench) -> None:
    """An id of another namespace is refused by the script, EMQKIND, and a refusal writes nothing."""
    q = bench.queue()
    keys, text = q.keys, "EMQKIND job id must be JOB-namespaced"
    q.owns(f"job:{_FOREIGN}", f"job:{_FOREIGN}:dependencies")
    lane = (keys.ring, keys.paused, keys.glimit, keys.gactive, keys.wake)
    calls = {
        "enqueue": ((keys.job(_FOREIGN), keys.pending), (_FOREIGN, "x")),
        "schedule": ((keys.job(_FOREIGN), keys.schedule), (_FOREIGN, "x", "in", 5)),
        "delay": ((keys.job(_FOREIGN), keys.active, keys.schedule), (_FOREIGN, 1, "in", 5)),
        "lane_enqueue": (
            (keys.job(_FOREIGN), keys.lane(GROUP), *lane),
            (_FOREIGN, "x", GROUP),
        ),
        "flow_hold": ((keys.job(_FOREIGN), keys.dependencies(_FOREIGN)), (_FOREIGN, "x", 1)),
        "flow_child": ((keys.job(_FOREIGN), keys.pending), (_FOREIGN, "x", q.id(), "")),
    }
    for name, (names, values) in calls.items():
        await refused(KindRefused, evaluate(q.wire, name, names, values), name, text=text)
    many = await evaluate(q.wire, "enqueue_many", (keys.pending,), (keys.base, _FOREIGN, "x"))
    same(many, [-1], "enqueue_many, a verdict in place")
    admitted = (keys.base, _FOREIGN, "x", "", "", "", "", "", "")
    same(await evaluate(q.wire, "admit_many", (keys.pending, keys.schedule), admitted), [-1], "admit_many, likewise")
    same(await q.state(tokens=True), {}, "the queue after the refusals")


async def order(bench: Bench) -> None:
    """Jobs are claimed in the order in which their ids were minted, whatever the order in which they arrived."""
    q = bench.queue()
    ids = [q.id() for _ in range(5)]
    for id in (ids[3], ids[0], ids[4], ids[2], ids[1]):
        await q.jobs.enqueue(q.name, b"x", id=id)
    same(await q.read("pending"), dict.fromkeys(ids, 0.0), "pending, all at score 0")
    claimed = [await q.jobs.claim(q.name, LEASE_MS) for _ in ids]
    same([one.id for one in claimed if one], ids, "the order of the claims")
    same(await q.jobs.claim(q.name, LEASE_MS), None, "a claim of an empty queue")


async def claim(bench: Bench) -> None:
    """A claim takes the oldest job from pending to active under a lease on the server's clock, attempts its token."""
    q = bench.queue()
    first, second = await q.add(b"one"), await q.add(b"two")
    before = await q.now_ms()
    taken = await q.jobs.claim(q.name, LEASE_MS)
    deadline = await q.lease_since(before)
    holds(taken is not None, "something was claimed")
    if taken is not None:
        same((taken.id, taken.payload, taken.token), (first, b"one", 1), "id, payload, token")
    same(
        await q.state(),
        {
            f"job:{first}": row("active", 1, "one"),
            f"job:{second}": row(payload="two"),
            "active": {first: deadline},
            "pending": {second: 0.0},
        },
        "the queue after the claim",
    )


async def stale(bench: Bench) -> None:
    """A verdict or an extension under a token that is not the row's is refused, EMQSTALE, and writes nothing."""
    q = bench.queue()
    id = await q.add()
    await q.jobs.claim(q.name, LEASE_MS)
    await q.lose_lease(id)
    await q.jobs.reap(q.name)
    await q.jobs.claim(q.name, LEASE_MS)
    before = await q.state()
    same(before.get(f"job:{id}"), row("active", 2), "the row under its second claim")
    jobs, name = q.jobs, q.name
    await refused(Stale, jobs.complete(name, id, 1), "complete", text="EMQSTALE complete token mismatch")
    await refused(Stale, jobs.retry(name, id, 1), "retry", text="EMQSTALE retry token mismatch")
    await refused(Stale, jobs.delay(name, id, 1, 5), "delay", text="EMQSTALE delay token mismatch")
    await refused(Stale, jobs.extend_lock(name, id, 1, 60_000), "extend_lock", text="EMQSTALE extend token mismatch")
    same(await jobs.extend_locks(name, 60_000, [(id, 1)]), [id], "extend_locks names it as lost")
    await refused(Stale, jobs.complete(name, id, "02"), "complete compares the token as a string")
    same(await q.state(), before, "the queue after the refusals")
    hands, twin = Hands(q), await q.add()
    (old,) = (await hands.claim()).jobs
    await jobs.complete(name, twin, 1)
    await jobs.enqueue(name, b"x", id=twin)
    await hands.claim()
    before = await q.state()
    await refused(
        Stale, jobs.complete(name, twin, old.held), "complete of an id that lives again, its old claim's token"
    )
    same((await hands.settle(done(old)), await hands.keep(old)), (["stale"], {twin: "stale"}), "settle and keep of it")
    same(await q.state(), before, "the queue, unchanged")
    absent = q.id()
    await refused(Gone, jobs.retry(name, absent, 1), "retry of a row that is gone", text="EMQSTALE job gone")
    await refused(Gone, jobs.delay(name, absent, 1, 5), "delay of a row that is gone", text="EMQSTALE job gone")
    await refused(ScriptContract, evaluate(q.wire, "complete", (q.keys.active,), (id,)), "a call that lacks a key")


async def complete(bench: Bench) -> None:
    """A completed job leaves no key behind and counts once; a row that is gone answers 0."""
    q = bench.queue()
    id = await q.add()
    await q.jobs.add_log(q.name, id, "a line")
    await q.jobs.claim(q.name, LEASE_MS)
    same(await q.jobs.extend_lock(q.name, id, 1, LEASE_MS), "extended", "the lease with its lock marker")
    same(
        sorted(await q.state()),
        sorted(["active", f"job:{id}", f"job:{id}:lock", f"job:{id}:logs"]),
        "the keys before the completion",
    )
    same(await q.jobs.complete(q.name, id, 1), True, "complete")
    same(await q.state(), {"metrics:completed": {"count": "1"}}, "the queue after the completion")
    same(await q.jobs.complete(q.name, id, 1), False, "complete again")
    await q.put("active", "ZADD", 1, id)
    same(await q.jobs.complete(q.name, id, 1), False, "complete of an id whose row is gone but whose lease is not")
    same(await q.state(), {"metrics:completed": {"count": "1"}}, "active is cleaned all the same")


async def retry(bench: Bench) -> None:
    """A failed run counts as a failure with its error and is scheduled at now + delay; the next claim counts on."""
    q = bench.queue()
    id = await q.add()
    await q.jobs.claim(q.name, LEASE_MS)
    before = await q.now_ms()
    answer = await q.jobs.retry(q.name, id, 1, delay_ms=5_000, max_attempts=3, error="boom")
    due = Between(before + 5_000, await q.now_ms() + 5_000)
    same(answer, "scheduled", "the answer")
    failed = row("scheduled", 1, failures=1, last_error="boom", settled="1:scheduled")
    same(await q.state(), {f"job:{id}": failed, "schedule": {id: due}}, "the queue after the failure")
    same(await q.jobs.promote(q.name), 0, "promote before it is due")
    await q.come_due(id)
    same(await q.jobs.promote(q.name), 1, "promote when it is due")
    taken = await q.jobs.claim(q.name, LEASE_MS)
    same(taken and taken.token, 2, "the token of the next claim")
    same(await q.jobs.retry(q.name, id, 2, delay_ms=0, error="again"), "scheduled", "the second failure")
    same((await q.state()).get(f"job:{id}", {}).get("failures"), "2", "failures")


async def dead(bench: Bench) -> None:
    """A job whose failures reach max_attempts is dead with its last error and counted once; nothing claims it."""
    q = bench.queue()
    id = await q.add()
    await q.jobs.claim(q.name, LEASE_MS)
    same(await q.jobs.retry(q.name, id, 1, max_attempts=1, error="the end"), "dead", "the answer")
    expected = {
        f"job:{id}": row("dead", 1, failures=1, last_error="the end", settled="1:dead"),
        "dead": {id: 0.0},
        "metrics:failed": {"count": "1"},
    }
    same(await q.state(), expected, "the queue after the death")
    same(await q.jobs.retry(q.name, id, 1, max_attempts=1, error="late"), "dead", "the same verdict again")
    same(await q.jobs.promote(q.name), 0, "promote")
    same(await q.jobs.reap(q.name), 0, "reap")
    same(await q.jobs.claim(q.name, LEASE_MS), None, "a claim")
    same(await q.state(), expected, "the queue, unchanged")


async def reap(bench: Bench) -> None:
    """A job whose lease ran out goes back to pending with its attempts; one whose lease runs is left alone."""
    q = bench.queue()
    lost, kept = await q.add(), await q.add()
    before = await q.now_ms()
    for _ in range(2):
        await q.jobs.claim(q.name, LEASE_MS)
    deadline = await q.lease_since(before)
    await q.lose_lease(lost)
    same(await q.jobs.reap(q.name), 1, "how many were reaped")
    expected = {
        f"job:{lost}": row("pending", 1),
        f"job:{kept}": row("active", 1),
        "active": {kept: deadline},
        "pending": {lost: 0.0},
    }
    same(await q.state(), expected, "the queue after the pass")
    same(await q.jobs.reap(q.name), 0, "a second pass")
    taken = await q.jobs.claim(q.name, LEASE_MS)
    same(taken and (taken.id, taken.token), (lost, 2), "the next claim and its token")
    grouped = await q.add_to_lane()
    await q.lanes.claim(q.name, LEASE_MS)
    same(await q.read("gactive"), {GROUP: "1"}, "the slot of a job of a lane")
    await q.lose_lease(grouped)
    same(await q.jobs.reap(q.name), 1, "it loses its lease too")
    state = await q.state()
    lane = (state.get(f"g:{GROUP}:pending"), state.get("ring"), state.get("gactive"))
    same(lane, ({grouped: 0.0}, [GROUP], None), "its lane, on the ring, and the slot")


SCENARIOS = (fence, mint, duplicate, kind, order, claim, stale, complete, retry, dead, reap)
