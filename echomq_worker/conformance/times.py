"""Control over time: the schedule, the backoff curve, recurrence.

Source: the seed "Scheduling & recurrence", protocol section 4 (promote).
"""

from __future__ import annotations

import asyncio

from echomq_worker.backoff import Exponential, Fixed, Jitter, delay_ms
from echomq_worker.conformance.bench import GROUP, LEASE_MS, Bench, SetClock, row
from echomq_worker.conformance.checks import Between, holds, same
from echomq_worker.jobs import New
from echomq_worker.repeat import Repeat
from echomq_worker.script import evaluate

_NAME = "report"
_RECORD = f"repeat:{_NAME}"
_EVERY_MS = 60_000


async def schedule(bench: Bench) -> None:
    """A scheduled job is fenced out of pending until its run-at; once it is due it stands there in mint order."""
    q = bench.queue()
    before = await q.now_ms()
    later = (await q.jobs.enqueue_in(q.name, b"x", 60_000)).id
    due = Between(before + 60_000, await q.now_ms() + 60_000)
    # By commands alone lanes are not served, and no run-at is negative.
    lanes = bench.spoken.has_scripts
    past_ms = -5 if lanes else 5
    past = (await q.jobs.enqueue_at(q.name, b"x", past_ms)).id
    expected = {
        f"job:{later}": row("scheduled"),
        f"job:{past}": row("scheduled"),
        "schedule": {later: due, past: float(past_ms)},
    }
    lane = ""
    if lanes:
        lane = (await q.jobs.enqueue_many(q.name, [New(b"x", group=GROUP, at_ms=7)]))[0].id
        expected |= {f"job:{lane}": row("scheduled", group=GROUP), "schedule": {later: due, past: -5.0, lane: 7.0}}
    new = await q.add()
    expected |= {f"job:{new}": row(), "pending": {new: 0.0}}
    same(await q.state(), expected, "the queue: `in` on the server's clock, `at` as it is given")
    same(await q.jobs.promote(q.name), 1 + lanes, "how many are due")
    state = await q.state()
    same(state.get("schedule"), {later: due}, "the schedule behind the pass")
    same(state.get("pending"), dict.fromkeys((past, new), 0.0), "flat pending")
    if lanes:
        same((state.get(f"g:{GROUP}:pending"), state.get("ring")), ({lane: 0.0}, [GROUP]), "the lane of a grouped job")
    same(state.get(f"job:{past}"), row(), "the row of a job that was released")
    same(await q.jobs.promote(q.name), 0, "a second pass")
    await q.come_due(later)
    same(await q.jobs.promote(q.name, 1), 1, "a batch of one")
    claimed = [await q.jobs.claim(q.name, LEASE_MS) for _ in range(3)]
    same([one and one.id for one in claimed], [later, past, new], "the order of the claims: by mint, not by release")


async def backoff(bench: Bench) -> None:
    """A backoff is an exact curve of policy and attempt; the wire carries its number, priced on the server's clock."""
    curve = Exponential(100, 10_000)
    points = {1: 100, 2: 200, 3: 400, 7: 6_400, 8: 10_000, 20: 10_000, 10**6: 10_000}
    same({attempt: delay_ms(curve, attempt) for attempt in points}, points, "the exponential curve")
    same([delay_ms(Fixed(1_000), attempt) for attempt in (1, 9)], [1_000, 1_000], "the fixed one")
    bounds: list[int] = []

    def draw(bound: int) -> int:
        bounds.append(bound)
        return bound // 2

    same(delay_ms(Jitter(curve), 3, draw), 200, "a draw")
    same(bounds, [400], "the bound of the draw is the inner delay")
    holds(all(0 <= delay_ms(Jitter(curve), 2) <= 200 for _ in range(50)), "a draw of its own is in 0..inner delay")
    q = bench.queue()
    id = await q.add()
    for failure in (1, 2, 3):
        taken = await q.jobs.claim(q.name, LEASE_MS)
        priced, before = delay_ms(curve, failure), await q.now_ms()
        await q.jobs.retry(q.name, id, taken.token if taken else 0, delay_ms=priced, max_attempts=9, error="boom")
        due = Between(before + priced, await q.now_ms() + priced)
        same(await q.read("schedule"), {id: due}, f"the run-at after failure {failure}")
        await q.come_due(id)
        same(await q.jobs.promote(q.name), 1, "promote")


async def repeat(bench: Bench) -> None:
    """A registration mints a job with its template for each occurrence and moves on by its period."""
    q, clock = bench.queue(), SetClock(1_000_000)
    q.owns(_RECORD)
    book, pump = Repeat(q.wire, clock=clock, mint=bench.mint), q.pump(clock)
    same(await book.register(q.name, _NAME, _EVERY_MS, b"tick", first_in_ms=500), "registered", "register")
    expected = {"repeat": {_NAME: 1_000_500.0}, _RECORD: {"every_ms": str(_EVERY_MS), "template": "tick"}}
    same(await q.state(), expected, "the registry: the first run on the host's clock")
    same(await book.register(q.name, _NAME, 5, b"other"), "exists", "the name again")
    same(await q.state(), expected, "the registry is left alone")
    same([await book.count(q.name), await book.due(q.name)], [1, []], "count, and what is due")
    same((await pump.beat()).fired, 0, "a tick before it is due")
    clock.at_ms = 1_000_700
    same([one.name for one in await book.due(q.name)], [_NAME], "what is due then")
    same((await pump.beat()).fired, 1, "a tick when it is due")
    id = bench.mint.minted[-1]
    expected |= {f"job:{id}": row(payload="tick"), "pending": {id: 0.0}, "repeat": {_NAME: 1_060_700.0}}
    same(await q.state(), expected, "the occurrence, and the next run: now + period")
    same((await pump.beat()).fired, 0, "the next tick")
    same(await book.advance(q.name, _NAME, 5), True, "advance")
    same(await q.read("repeat"), {_NAME: 1_000_705.0}, "the next run as advance has it")
    same(await book.cancel(q.name, _NAME), True, "cancel")
    same(await q.state(), {name: expected[name] for name in (f"job:{id}", "pending")}, "the queue without it")
    again = (await book.cancel(q.name, _NAME), await book.advance(q.name, _NAME, 5))
    same(again, (False, False), "cancel and advance of a name that is gone")


async def repeat_once_per_fleet(bench: Bench) -> None:
    """However many Pumps tick at the same moment, a due occurrence is enqueued once."""
    q, clock = bench.queue(), SetClock(1_000_000)
    names = [f"{_NAME} {number}" for number in range(5)]
    q.owns(*(f"repeat:{name}" for name in names))
    book = Repeat(q.wire, clock=clock, mint=bench.mint)
    for name in names:
        await book.register(q.name, name, _EVERY_MS, name.encode())
    pumps = [q.pump(clock) for _ in range(4)]
    for period in (1, 2, 3):
        ticks = await asyncio.gather(*(pump.beat() for pump in pumps))
        same(sum(tick.fired for tick in ticks), len(names), f"occurrences of period {period}, all Pumps together")
        state = await q.state()
        same(state.get("repeat"), dict.fromkeys(names, 1_000_000.0 + period * _EVERY_MS), "the next runs")
        pending = state.get("pending", {})
        payloads = sorted(state[f"job:{id}"]["payload"] for id in pending)
        same(payloads, sorted(names * period), "the jobs that have come of them")
        clock.at_ms += _EVERY_MS


async def repeat_by_calendar(bench: Bench) -> None:
    """A run of a calendar is enqueued once for the whole fleet, and a Pump that knows periods only never meets it."""
    q, record = bench.queue(), {"cron": "0 3 * * *", "tz": "UTC", "template": "tick"}
    q.owns(_RECORD)
    words, due, after = (record["cron"], record["tz"]), 1_000_000, 1_500_000
    registered = (_NAME, *words, b"tick", str(due))
    names = (q.keys.cron, q.keys.repeat_record(_NAME), q.keys.repeat)
    same(await evaluate(q.wire, "cron_register", names, registered), 1, "register")
    same(await evaluate(q.wire, "cron_register", names, registered), 0, "the name again")
    same(await q.state(), {"cron": {_NAME: due}, _RECORD: record}, "the registry of calendars, beside that of periods")
    same((await q.pump(SetClock(due - 1)).beat()).next_due_ms, due, "when a Pump is needed next")
    ids = [bench.mint.next() for _ in range(5)]

    async def fire(id: str) -> list[bytes]:
        told = (q.keys.base, str(due + 700), _NAME, id, str(due), str(after), *words)
        return list(await evaluate(q.wire, "cron_fire", (q.keys.cron, q.keys.pending), told))

    answers = sorted([await one for one in asyncio.as_completed([fire(id) for id in ids])])
    same(
        answers, [[b"fired", b"1500000"], *([b"not_due", b"1500000"] for _ in ids[1:])], "five hosts at the same moment"
    )
    state = await q.state()
    same(state.get("cron"), {_NAME: after}, "the next run as the host has computed it")
    same([state[f"job:{id}"]["payload"] for id in state["pending"]], ["tick"], "the one job that came of it")
    book = Repeat(q.wire, clock=SetClock(after), mint=bench.mint)
    same(await book.due(q.name), [], "what a Pump of periods would fire")
    same(await book.advance(q.name, _NAME, 5), False, "what it would move on")
    same(await book.cancel(q.name, _NAME), True, "cancel")
    same(
        sorted(await q.state()), sorted(("pending", *(f"job:{id}" for id in state["pending"]))), "the queue without it"
    )


SCENARIOS = (schedule, repeat, backoff, repeat_once_per_fleet, repeat_by_calendar)
