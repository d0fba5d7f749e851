"""Settle: verdicts in batches, kept until they are answered, counted once however often they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from echomq_worker.clock import Clock, SystemClock
from echomq_worker.connector import Wire, connect
from echomq_worker.degraded import SCRIPT_ERRORS
from echomq_worker.errors import ConnectionLost, Unavailable, Unreachable
from echomq_worker.job import Job
from echomq_worker.keyspace import Keys
from echomq_worker.script import scripts
from echomq_worker.settle import BATCH, HURRIED_MS, UNKNOWN, Settle
from echomq_worker.verdict import Bury, Complete, DelayTo, RetryLater, Verdict
from tests.support.clock import ManualClock
from tests.support.plain import QUEUE, Queue, job, row
from tests.support.proxy import Proxy
from tests.support.stations import Lines, counting, degraded, job_of
from tests.support.valkey import OwnServer, ValkeyServer
from tests.support.waiting import wait_until


class Answers:
    """Receives what is settled."""

    def __init__(self) -> None:
        self.all: list[tuple[Job, Verdict, str]] = []
        self.batches: list[int] = []

    def __call__(self, settled: Any) -> None:
        """What settle calls."""
        self.all += settled
        self.batches.append(len(settled))

    @property
    def by_id(self) -> dict[str, str]:
        """Job id to answer."""
        return {job.id: answer for job, _, answer in self.all}


class Fake:
    """A wire whose replies are what it is given: lists are replies, exceptions are raised."""

    def __init__(self, *replies: list[bytes] | Exception) -> None:
        self.replies = list(replies)
        self.sent = 0

    async def call(self, *args: Any) -> Any:
        """The next one."""
        self.sent += 1
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def pipeline(self, commands: Any) -> list[Any]:
        """Nobody settles with it."""
        raise AssertionError(commands)


def settle_of(wire: Wire, answers: Answers, *, clock: Clock | None = None, lines: Lines | None = None) -> Settle:
    """Of the tests' queue, with a beat of 10 ms."""
    clock = clock or SystemClock()
    return Settle(
        wire,
        Keys(QUEUE),
        clock=clock,
        degraded=degraded("settle", clock=clock, lines=lines),
        on_settled=answers,
    )


@asynccontextmanager
async def settling(wire: Wire, answers: Answers, **options: Any) -> AsyncIterator[Settle]:
    """A settle that runs."""
    made = settle_of(wire, answers, **options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        yield made
        tasks.cancel_scope.cancel()


async def in_hand(raw: Redis, count: int, **fields: Any) -> list[Job]:
    """Active jobs of ours on the server, as a claim leaves them."""
    rows = {f"job:{job(n)}": row("active", 1, held="1:x", **fields) for n in range(count)}
    await Queue(raw).put({"active": {job(n): 4_000_000_000_000 for n in range(count)}, **rows})
    return [job_of(id=job(n), held="1:x") for n in range(count)]


async def test_what_is_told_of_a_death_is_what_its_row_says(url: str, raw: Redis) -> None:
    """A job whose end was asked for, unheard, and one that was dead before: not the handler's own word. One question
    for all of them; none where nothing died.
    """
    jobs, answers = await in_hand(raw, 5), Answers()
    base = Keys(QUEUE).base
    for n in (0, 1):
        await raw.hset(f"{base}job:{job(n)}", "cancel", "no longer wanted")
    await raw.hset(f"{base}job:{job(2)}", mapping={"state": "dead", "last_error": "stalled"})
    async with connect(url) as connector:
        settle = settle_of(connector, answers)
        own = RetryLater(5, "own")
        verdicts: list[Verdict] = [own, DelayTo("in", 5), own, Bury("own"), own]
        for one, verdict in zip(jobs, verdicts, strict=True):
            settle.put(one, verdict)
        await settle.beat()

    told = [(verdict, answer) for _, verdict, answer in answers.all]
    cancelled = (Bury("cancelled: no longer wanted"), "dead")
    assert told == [
        cancelled,
        cancelled,
        (Bury("stalled"), "dead"),
        (Bury("own"), "dead"),
        (own, "scheduled"),
    ]


async def test_a_row_that_cannot_be_asked_costs_no_answer() -> None:
    """The connection goes behind the answers: they count, with the handlers' own words."""

    class Going(Fake):
        async def pipeline(self, commands: Any) -> list[Any]:
            raise ConnectionLost("gone")

    answers = Answers()
    settle = settle_of(Going([b"dead"]), answers)
    settle.put(job_of(id=job(1), held="1:x"), Bury("own"))

    await settle.beat()

    assert [(verdict, answer) for _, verdict, answer in answers.all] == [(Bury("own"), "dead")]
    assert settle.open == []


async def test_verdicts_of_one_turn_go_out_in_one_call(url: str, raw: Redis, server: ValkeyServer) -> None:
    """A hundred jobs that end together cost one EVALSHA."""
    jobs, answers = await in_hand(raw, 100), Answers()
    async with connect(url) as connector, settling(connector, answers) as settle:
        settle.put(jobs[0], Complete())
        await wait_until(lambda: answers.all, "the script is loaded")
        with counting(server.admin) as calls:
            for one in jobs[1:]:
                settle.put(one, Complete())
            assert len(settle.open) == 99
            await wait_until(lambda: len(answers.all) == 100, "all are answered")
            assert calls() == 1
        assert settle.open == []
    assert set(answers.by_id.values()) == {"done"}
    assert await Queue(raw).state() == {"metrics:completed": {"count": "100"}}


async def test_one_verdict_is_sent_at_once(url: str, raw: Redis) -> None:
    """No timer: it is on the wire within the event loop's next turns, without any time having passed."""
    jobs, answers, clock = await in_hand(raw, 1), Answers(), ManualClock()
    async with connect(url) as connector, settling(connector, answers, clock=clock) as settle:
        await asyncio.sleep(0)
        settle.put(jobs[0], Complete())
        on_the_wire = list[int]()
        for _ in range(3):
            await asyncio.sleep(0)
            on_the_wire.append(connector.pending)
        assert 1 in on_the_wire or answers.all, "it may have been answered by now"
        await wait_until(lambda: answers.all, "it is answered")
        assert clock.monotonic_ms() == 0


async def test_each_kind_of_verdict_has_its_answer(url: str, raw: Redis) -> None:
    """Complete, retry, dead by number, dead at once, delay; what is not ours is stale, what has no row is gone."""
    jobs, answers = await in_hand(raw, 6), Answers()
    jobs[2].failures = 2
    await raw.hset("emq:{q}:job:" + job(2), "failures", "2")
    await raw.hset("emq:{q}:job:" + job(5), "attempts", "2")
    jobs.append(job_of(id=job(6), held="1:x"))
    verdicts: list[Verdict] = [
        Complete(),
        RetryLater(1_000, "E: one"),
        RetryLater(1_000, "E: two"),
        Bury("E: three"),
        DelayTo("at", 4_000_000_000_000),
        Complete(),
        Complete(),
    ]
    async with connect(url) as connector:
        settle = settle_of(connector, answers)
        for one, verdict in zip(jobs, verdicts, strict=True):
            settle.put(one, verdict)
        assert await settle.beat() == 7
        assert await settle.beat() == 0
    assert [answer for _, _, answer in answers.all] == ["done", "scheduled", "dead", "dead", "delayed", "stale", "gone"]
    assert [verdict for _, verdict, _ in answers.all] == verdicts
    reasons = [await raw.hget("emq:{q}:job:" + job(n), "last_error") for n in (1, 2, 3)]
    assert reasons == [b"E: one", b"E: two", b"E: three"]


async def test_a_call_is_bounded(url: str, raw: Redis) -> None:
    """More verdicts than a script takes go out in parts, in order."""
    jobs, answers = await in_hand(raw, BATCH + 3), Answers()
    async with connect(url) as connector, settling(connector, answers) as settle:
        for one in jobs:
            settle.put(one, Complete())
        await wait_until(lambda: len(answers.all) == BATCH + 3, "all are answered")
    assert answers.batches == [BATCH, 3]
    assert [one.id for one, _, _ in answers.all] == [one.id for one in jobs]


@pytest.mark.parametrize("verdict", [Complete(), RetryLater(60_000, "E"), DelayTo("in", 60_000), Bury("E")])
async def test_a_verdict_whose_reply_is_lost_is_sent_again_and_counts_once(
    url: str, raw: Redis, server: ValkeyServer, verdict: Verdict
) -> None:
    """It stays until it is answered, and has the answer of its first sending: a row that is gone was completed."""
    jobs, answers = await in_hand(raw, 2, failures=0), Answers()
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector, settling(connector, answers) as settle:
        await connector.call("SCRIPT", "LOAD", scripts()["settle"].source)
        # The first rule takes the first command, so the second has its first in the command after it.
        lost = [proxy.swallow_reply(b"EVALSHA") for _ in range(2)]
        for one in jobs:
            settle.put(one, verdict)
        await wait_until(lambda: answers.all, "they are answered")
        assert all(rule.done for rule in lost), "two replies were lost"
        assert not settle.stuck
    expected = {Complete: "done", RetryLater: "scheduled", DelayTo: "delayed", Bury: "dead"}[type(verdict)]
    assert set(answers.by_id.values()) == {expected}
    state = await Queue(raw).state()
    match verdict:
        case Complete():
            assert state == {"metrics:completed": {"count": "2"}}
        case DelayTo():
            assert [state[f"job:{one.id}"].get("failures") for one in jobs] == ["0", "0"]
        case _:
            assert [state[f"job:{one.id}"]["failures"] for one in jobs] == ["1", "1"]


async def test_a_row_that_is_gone_counts_as_done_only_for_a_completion_that_may_have_arrived() -> None:
    """A retry that finds no row was not completed by it, and what was never sent cannot have counted."""
    retried, answers = RetryLater(1, "E"), Answers()
    settle = settle_of(Fake(ConnectionLost("x"), [b"gone", b"gone"]), answers)
    settle.put(job_of(id=job(1)), Complete())
    settle.put(job_of(id=job(2)), retried)
    with pytest.raises(ConnectionLost):
        await settle.beat()
    await settle.beat()
    assert answers.by_id == {job(1): "done", job(2): "gone"}

    settle = settle_of(Fake(Unreachable("x"), Unavailable("LOADING x"), [b"gone"], [b"gone"]), answers)
    settle.put(job_of(id=job(3)), Complete())
    for error in (Unreachable, Unavailable):
        with pytest.raises(error):
            await settle.beat()
    await settle.beat()
    settle.put(job_of(id=job(4)), Complete())
    await settle.beat()
    assert answers.by_id == {job(1): "done", job(2): "gone", job(3): "gone", job(4): "gone"}


async def test_verdicts_survive_an_outage(own_server: OwnServer) -> None:
    """However long: nothing is dropped, new ones queue up behind, the outage has one line at its start and its end."""
    server = own_server(append_only=True)
    async with Redis.from_url(server.url) as raw:
        jobs = await in_hand(raw, 3)
    answers, lines = Answers(), Lines()
    async with connect(server.url) as connector, settling(connector, answers, lines=lines) as settle:
        await asyncio.to_thread(server.kill)
        settle.put(jobs[0], Complete())
        await wait_until(lambda: settle._degraded.streak >= 3, "it has tried three times")
        assert settle.stuck
        settle.put(jobs[1], Complete())
        settle.put(jobs[2], Complete())
        assert len(settle.open) == 3
        await asyncio.to_thread(server.start)
        await wait_until(lambda: len(answers.all) == 3, "all are answered")
        assert not settle.stuck
    assert set(answers.by_id.values()) == {"done"}
    assert lines.events == ["degraded", "recovered"]
    assert await asyncio.to_thread(server.admin.hget, "emq:{q}:metrics:completed", "count") == b"3"


async def test_it_waits_on_the_degraded_curve_and_not_for_new_verdicts() -> None:
    """A verdict that is filed during an outage does not make it send: 10, 20, 40 ms and so on."""
    clock, answers = ManualClock(), Answers()
    wire = Fake(*[Unreachable("x")] * 4, [b"done"], [b"done"] * 4)
    async with settling(wire, answers, clock=clock) as settle:
        settle.put(job_of(id=job(1)), Complete())
        for sent, wait_ms in enumerate([10, 20, 40, 80], 1):
            await wait_until(lambda: clock.sleepers == 1, "it waits")
            settle.put(job_of(id=job(2)), Complete())
            clock.advance(wait_ms - 1)
            for _ in range(5):
                await asyncio.sleep(0)
            assert wire.sent == sent
            clock.advance(1)
            await wait_until(lambda sent=sent: wire.sent > sent, "it sends again")  # type: ignore[misc]  # a default, no parameter
        await wait_until(lambda: len(answers.all) == 5, "all are answered")
    assert answers.batches == [1, 4]


async def test_in_a_hurry_it_tries_again_soon() -> None:
    """At the end of a process the curve would outlast it."""
    clock, answers = ManualClock(), Answers()
    wire = Fake(*[Unreachable("x")] * 12, [b"done"])
    async with settling(wire, answers, clock=clock) as settle:
        settle.put(job_of(), Complete())
        for _ in range(9):
            await wait_until(lambda: clock.sleepers == 1, "it waits")
            clock.advance(10_000)
        await wait_until(lambda: clock.sleepers == 1 and wire.sent == 10, "it waits for long")
        settle.hurry()
        await wait_until(lambda: wire.sent == 11, "it sends at once")
        await wait_until(lambda: clock.sleepers == 1, "it waits")
        clock.advance(HURRIED_MS)
        await wait_until(lambda: wire.sent == 12, "and again soon")
        await wait_until(lambda: clock.sleepers == 1, "it waits")
        clock.advance(HURRIED_MS)
        await wait_until(lambda: answers.all, "it is answered")


@pytest.mark.parametrize("poisoned", [0, 3, 8])
async def test_one_row_that_cannot_be_worked_on_does_not_hold_up_the_others(
    url: str, raw: Redis, poisoned: int
) -> None:
    """Nine rows and a key of another type: the nine count, the one is unknown, whichever of them it is."""
    jobs, answers = await in_hand(raw, 9), Answers()
    key = f"emq:{{q}}:job:{job(poisoned)}"
    await raw.delete(key)
    await raw.set(key, "not a row")
    async with connect(url) as connector, settling(connector, answers) as settle:
        for one in jobs:
            settle.put(one, Complete())
        await wait_until(lambda: len(answers.all) == 9, "all are answered")
        assert not settle.stuck
    assert [one.id for one, _, _ in answers.all] == [one.id for one in jobs], "in the order of the verdicts"
    assert answers.by_id.pop(job(poisoned)) == UNKNOWN
    assert await raw.hget("emq:{q}:metrics:completed", "count") == b"8"
    await raw.delete(key)


async def test_a_key_that_no_verdict_can_be_written_to_is_not_tried_for_ever(url: str, raw: Redis) -> None:
    """Each verdict is unknown after its own try; nothing is dropped in silence, nothing stands still."""
    jobs, answers = await in_hand(raw, 3), Answers()
    await raw.set("emq:{q}:schedule", "not a sorted set")
    async with connect(url) as connector, settling(connector, answers) as settle:
        for one in jobs * (SCRIPT_ERRORS // 2):
            settle.put(one, Complete())
        await wait_until(lambda: len(answers.all) == len(jobs) * (SCRIPT_ERRORS // 2), "all are answered")
    assert set(answers.by_id.values()) == {UNKNOWN}
    await raw.delete("emq:{q}:schedule")


async def test_close_ends_it_when_every_verdict_is_answered(url: str, raw: Redis) -> None:
    """What was filed before goes out first; a settle with nothing to send ends at once."""
    jobs, answers = await in_hand(raw, 2), Answers()
    async with connect(url) as connector:
        settle = settle_of(connector, answers)
        for one in jobs:
            settle.put(one, Complete())
        settle.close()
        await settle.run()
        assert len(answers.all) == 2
        async with anyio.create_task_group() as tasks:
            idle = settle_of(connector, answers)
            tasks.start_soon(idle.run)
            await asyncio.sleep(0)
            idle.close()


async def test_a_cancellation_waits_for_the_answer(url: str, raw: Redis, server: ValkeyServer) -> None:
    """What is on the wire may have happened: its answer is read before the task ends."""
    jobs, answers = await in_hand(raw, 1), Answers()
    async with Proxy(server.port) as proxy, connect(proxy.url) as connector:
        async with settling(connector, answers) as settle:
            proxy.delay(50)
            settle.put(jobs[0], Complete())
            await wait_until(lambda: proxy.count(b"EVALSHA"), "it is on the wire")
            assert answers.all == []
        assert answers.by_id == {jobs[0].id: "done"}


async def test_a_failing_listener_ends_it() -> None:
    """A bug in what is told of the answers is not swallowed."""

    def broken(settled: Any) -> None:
        raise RuntimeError("a bug")

    made = Settle(
        Fake([b"done"]),
        Keys(QUEUE),
        clock=SystemClock(),
        degraded=degraded(),
        on_settled=broken,
    )
    made.put(job_of(), Complete())
    with pytest.raises(RuntimeError, match="a bug"):
        await made.run()
