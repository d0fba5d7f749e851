"""Hand-over: what a process that stops does with the jobs in hand."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from echomq_worker.errors import Unreachable
from echomq_worker.handover import CANCEL_MS, HandOver
from echomq_worker.job import Job
from echomq_worker.keyspace import Keys
from echomq_worker.options import Limits
from echomq_worker.script import evaluate
from echomq_worker.verdict import Complete, Retry
from tests.support.plain import GROUP, Queue, job, row
from tests.support.proxy import Proxy
from tests.support.stations import Gate, Stand, job_of, pending, stand
from tests.support.valkey import OwnServer, ValkeyServer
from tests.support.waiting import never_ends, wait_until

LONG = Limits(lease_ms=60_000)


def hand_over(*stands: Stand) -> HandOver:
    """Of these stations, which claim nothing any more."""
    for made in stands:
        made.station.stop()
    return HandOver(stands[0].connector, [made.station for made in stands], clock=stands[0].clock)


async def claimed(made: Stand, gate: Gate, count: int) -> None:
    """One claim, whose jobs run."""
    await made.consumer.beat()
    await wait_until(lambda: len(gate.began) == count, f"{count} run")


async def rows(raw: Redis, ids: list[str]) -> list[dict[str, str]]:
    """The rows of jobs."""
    state = await Queue(raw).state()
    return [state[f"job:{id}"] for id in ids]


UNTOUCHED = row("pending", 1)


async def test_what_was_never_started_is_released_before_the_grace(url: str, raw: Redis) -> None:
    """At once, in one call, with a token; no failure, no crash, the lane's slot is free."""
    ids = await pending(raw, range(2))
    lane = {f"g:{GROUP}:pending": {job(5): 0}, f"job:{job(5)}": row(group=GROUP), "ring": [GROUP]}
    await Queue(raw).put(lane)
    gate = Gate()
    async with stand(url, gate.handler, limits=LONG) as made:
        beat = await made.consumer.beat()
        assert beat.claimed is not None
        # Nobody has had a turn: the first waits in a slot, the others are as a claim after a stop leaves them.
        made.consumer.unstarted = made.consumer.slots.take_unstarted()[1:]
        made.consumer.slots.start(beat.claimed.jobs[:1])
        async with asyncio.timeout(20):
            await hand_over(made).run(60_000)
        assert made.shared.leases.held == 0
    assert gate.began == []
    assert made.counts == {"released": 3}
    assert [sorted(line["ids"]) for line in made.lines.of("jobs released")] == [[*ids, job(5)]]
    state = await Queue(raw).state()
    assert state["pending"] == dict.fromkeys(ids, 0)
    assert state[f"g:{GROUP}:pending"] == {job(5): 0}
    assert [state[f"job:{id}"] for id in ids] == [UNTOUCHED] * 2
    assert "active" not in state
    assert "gactive" not in state
    assert len(state["ready"]) == 2


async def test_running_jobs_get_the_grace_and_their_verdicts_are_sent(url: str, raw: Redis) -> None:
    """It is over as soon as the last is answered, not when the grace is."""
    await pending(raw, range(3))
    gate = Gate()
    async with stand(url, gate.handler, limits=LONG) as made:
        await claimed(made, gate, 3)
        running = asyncio.create_task(hand_over(made).run(60_000))
        await asyncio.sleep(0)
        assert gate.cancelled == []
        gate.gate.set()
        await asyncio.wait_for(running, 20)
    assert made.counts == {"done": 3}
    assert await Queue(raw).state() == {"metrics:completed": {"count": "3"}, "claimed:test-0": await receipt(raw)}


async def receipt(raw: Redis) -> str:
    """The receipt of the last claim; it runs out by itself."""
    value: Any = await raw.get("emq:{q}:claimed:test-0")
    return bytes(value).decode()


async def test_what_is_left_after_the_grace_is_cancelled_and_released(
    url: str, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Straight to pending: another worker need not wait for the lease; failures and crashes are untouched."""
    monkeypatch.setattr("echomq_worker.handover.CANCEL_MS", 60_000)
    ids = await pending(raw, range(4), failures="1")
    gate = Gate()
    async with stand(url, gate.handler, limits=LONG, consumers=2, concurrency=4) as made:
        for consumer in made.station.consumers:
            await consumer.beat()
        await wait_until(lambda: len(gate.began) == 4, "all run")
        started = time.monotonic()
        await hand_over(made).run(50)
        assert time.monotonic() - started < 20, "what ends at once is not waited for"
    assert sorted(gate.cancelled) == ids
    assert made.counts == {"released": 4}
    assert len(made.lines.of("jobs released")) == 1, "in one call, whichever consumer had them"
    assert await rows(raw, ids) == [row("pending", 1, failures=1)] * 4


async def test_what_a_cancelled_handler_says_counts(url: str, raw: Redis) -> None:
    """It steers, or ends its work after all: that is a verdict, and nothing to release."""
    ids = await pending(raw, range(2))
    began: list[str] = []

    async def handler(job: Job) -> None:
        began.append(job.id)
        try:
            await never_ends()
        except asyncio.CancelledError:
            if job.id == ids[0]:
                raise Retry(delay_ms=60_000) from None

    async with stand(url, handler, limits=LONG) as made:
        await made.consumer.beat()
        await wait_until(lambda: len(began) == 2, "both run")
        await hand_over(made).run(0)
    assert made.counts == {"scheduled": 1, "done": 1}


async def test_a_second_signal_ends_the_grace(url: str, raw: Redis) -> None:
    """Whether it comes during the grace or before it."""
    for early in (False, True):
        await raw.flushall()
        ids = await pending(raw, range(1))
        gate = Gate()
        async with stand(url, gate.handler, limits=LONG) as made:
            await claimed(made, gate, 1)
            handing = hand_over(made)
            if early:
                handing.hurry()
            running = asyncio.create_task(handing.run(60_000))
            await asyncio.sleep(0)
            handing.hurry()
            await asyncio.wait_for(running, 20)
        assert (gate.cancelled, made.counts) == (ids, {"released": 1})


async def test_a_plain_function_is_told_and_disowned(url: str, raw: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for: its job keeps its lease, so nobody starts it beside it, and leaving is no crash."""
    monkeypatch.setattr("echomq_worker.handover.CANCEL_MS", 60_000)
    ids = await pending(raw, range(1))
    gate, begun, told = threading.Event(), threading.Event(), list[bool]()

    def handler(job: Job) -> None:
        begun.set()
        gate.wait(60)
        told.append(job.cancelled)

    async with stand(url, handler, limits=LONG) as made:
        await made.consumer.beat()
        await wait_until(begun.is_set, "it runs")
        started = time.monotonic()
        await hand_over(made).run(50)
        assert time.monotonic() - started < 20
        assert made.shared.leases.held == 0
        score = await raw.zscore("emq:{q}:active", ids[0])
        assert score is not None
        assert score - await Queue(raw).now_ms() > 30_000
        assert made.counts == {"disowned": 1}
        assert await rows(raw, ids) == [row("active", 1)], "no held: the next claim counts no crash"
        gate.set()
        await wait_until(lambda: told == [True], "it was told")


async def test_a_handler_that_does_not_let_itself_be_cancelled_is_disowned(url: str, raw: Redis) -> None:
    """It gets a second to end; what it says later counts, if anybody still listens."""
    ids = await pending(raw, range(1))
    gate, began = asyncio.Event(), list[str]()

    async def handler(job: Job) -> None:
        began.append(job.id)
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    async with stand(url, handler, limits=LONG) as made:
        await made.consumer.beat()
        await wait_until(lambda: began, "it runs")
        started = time.monotonic()
        await hand_over(made).run(0)
        assert CANCEL_MS / 1000 <= time.monotonic() - started < CANCEL_MS / 1000 + 20
        assert made.counts == {"disowned": 1}
        assert await rows(raw, ids) == [row("active", 1)]
        gate.set()
        await wait_until(lambda: made.counts.get("done") == 1, "its end counts")


async def test_a_job_that_is_lost_already_is_not_handed_over(url: str, raw: Redis) -> None:
    """Its function may still run, but the job is somebody else's."""
    (id,) = await pending(raw, range(1))
    gate, begun = threading.Event(), threading.Event()

    def handler(job: Job) -> None:
        begun.set()
        gate.wait(10)

    async with stand(url, handler, limits=LONG) as made:
        await made.consumer.beat()
        await wait_until(begun.is_set, "it runs")
        await raw.hset(f"emq:{{q}}:job:{id}", mapping={"attempts": "2", "held": "2:other"})
        made.consumer._lost(made.station.running[0], "stale")
        await hand_over(made).run(0)
        gate.set()
    assert made.counts == {"lost": 1}
    assert await raw.hget(f"emq:{{q}}:job:{id}", "held") == b"2:other"


async def test_what_turns_out_not_to_be_ours_is_lost_and_not_left(url: str, raw: Redis) -> None:
    """Somebody else claimed it meanwhile: that is said, and nothing else is touched."""
    ids = await pending(raw, range(2))
    gate = Gate()
    async with stand(url, gate.handler, limits=LONG) as made:
        await claimed(made, gate, 2)
        await raw.hset(f"emq:{{q}}:job:{ids[0]}", mapping={"attempts": "2", "held": "2:other"})
        await hand_over(made).run(0)
    assert made.counts == {"lost": 1, "released": 1}
    assert made.lines.of("lease lost")[0]["reason"] == "stale"


async def test_the_receipt_of_a_claim_that_was_never_read_is_read_and_its_jobs_released(url: str, raw: Redis) -> None:
    """They were never started, so that is no crash; nothing new is taken."""
    ids = await pending(raw, range(3))
    gate = Gate()
    async with stand(url, gate.handler, limits=LONG, consumers=2, concurrency=4) as made:
        name, keys, values = made.station.consumers[1].claims.call(2)
        await evaluate(made.connector, name, keys, values)
        await hand_over(made).run(0)
        assert made.shared.suspects.reserve("anybody")
    assert made.counts == {"released": 2}
    state = await Queue(raw).state()
    assert state["pending"] == dict.fromkeys(ids, 0)
    assert [state[f"job:{id}"] for id in ids] == [UNTOUCHED, UNTOUCHED, row()]


async def test_after_a_crash_of_a_loop_nothing_healthy_counts_one(url: str, raw: Redis) -> None:
    """Every handler was cancelled with it: open verdicts are said, jobs go back, functions in threads are disowned."""
    ids = await pending(raw, range(3))
    gate, thread, begun = Gate(), threading.Event(), threading.Event()
    await Queue(raw, "plain").put({"pending": {job(7): 0}, f"job:{job(7)}": row()})

    def plain(job: Job) -> None:
        begun.set()
        thread.wait(10)

    async with (
        stand(url, gate.handler, limits=LONG, concurrency=2) as made,
        stand(url, plain, queue="plain", limits=LONG) as other,
    ):
        await claimed(made, gate, 2)
        await other.consumer.beat()
        await wait_until(begun.is_set, "the function runs")
        for one in (made, other):
            one.shared.tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await wait_until(lambda: len(gate.cancelled) == 2, "they are cancelled")
            made.station.settle.put(job_of(made.connector, ids[2], held="1:x"), Complete())
            await raw.hset(f"emq:{{q}}:job:{ids[2]}", mapping={"attempts": "1", "held": "1:x"})
            await hand_over(made, other).after_crash()
            thread.set()
    assert made.counts == {"released": 2, "done": 1}
    assert other.counts == {"disowned": 1}
    assert await rows(raw, ids[:2]) == [UNTOUCHED] * 2


# ------------------------------------------------------------------------------------------------ without a server


async def test_a_release_whose_reply_is_lost_is_said_again_and_counts_as_released(
    url: str, raw: Redis, server: ValkeyServer
) -> None:
    """The second time the job is not ours any more: that is no loss, and nobody's job is taken from him."""
    ids = await pending(raw, range(2))
    gate = Gate()
    async with Proxy(server.port) as proxy, stand(proxy.url, gate.handler, limits=LONG) as made:
        await claimed(made, gate, 2)
        await evaluate(made.connector, "release", (Keys("q").active, Keys("q").pending), ["emq:{q}:", job(9), "1:x"])
        lost = proxy.swallow_reply(ids[0].encode())
        await hand_over(made).run(0)
        assert lost.done
    assert made.counts == {"released": 2}
    assert await rows(raw, ids) == [UNTOUCHED] * 2


@pytest.mark.parametrize("way", ["refuses", "hangs"])
async def test_without_a_server_it_ends_in_bounded_time_and_names_what_it_leaves(
    url: str, raw: Redis, server: ValkeyServer, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it holds: an open verdict, cancelled jobs, a claim that was never read. One limit for all queues."""
    monkeypatch.setattr("echomq_worker.handover.LAST_WORDS_MS", 2_000)
    await pending(raw, range(3))
    await Queue(raw, "other").put({"pending": {job(7): 0}, f"job:{job(7)}": row()})
    gate, other = Gate(), Gate()
    async with Proxy(server.port) as proxy, AsyncExitStack() as stack:
        made = await stack.enter_async_context(
            stand(proxy.url, gate.handler, limits=LONG, concurrency=2, command_timeout_ms=800)
        )
        second = await stack.enter_async_context(
            stand(proxy.url, other.handler, queue="other", limits=LONG, command_timeout_ms=800)
        )
        await claimed(made, gate, 2)
        await claimed(second, other, 1)
        for one in (made, second):
            # As if its reply were lost.
            one.consumer.claims.call(1)
        if way == "refuses":
            await proxy.refuse()
            proxy.reset()
        else:
            proxy.stall()
        made.station.settle.put(made.station.running[0], Complete())
        started = time.monotonic()
        await hand_over(made, second).run(100)
        # What was never read, the grace, and what was cancelled, for all queues together; one by one takes 4 s more.
        assert time.monotonic() - started < 2 + 0.1 + 2 + 3.6
        proxy.flow()
    left = [id for line in made.lines.of("jobs left") for id in line["ids"]]
    assert sorted({*left}) == [job(0), job(1)]
    assert second.lines.of("jobs left") == [{"queue": "other", "ids": [job(7)]}]
    assert made.shared.leases.held == 0


async def test_a_server_that_is_back_within_the_grace_hears_it_all(
    own_server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verdicts are tried again soon, not on the degraded curve; what was never started is released at the end."""
    monkeypatch.setattr("echomq_worker.handover.LAST_WORDS_MS", 1_500)
    server = own_server(append_only=True)
    async with Redis.from_url(server.url) as raw:
        await pending(raw, range(3))
    gate = Gate()
    async with stand(server.url, gate.handler, limits=LONG, beat_ms=30_000) as made:
        await made.consumer.beat()
        first, *rest = made.consumer.slots.take_unstarted()
        made.consumer.unstarted = rest
        made.consumer.slots.start([first])
        await wait_until(lambda: gate.began, "one runs")
        await asyncio.to_thread(server.kill)
        gate.gate.set()
        await wait_until(lambda: made.station.settle.stuck, "its verdict cannot be delivered")
        with pytest.raises(Unreachable):
            await made.connector.call("PING")
        running = asyncio.create_task(hand_over(made).run(60_000))
        await wait_until(lambda: not made.consumer.unstarted, "it hands over")
        deadline = time.monotonic() + 1.7
        await wait_until(lambda: time.monotonic() > deadline, "the first try is over")
        # The last one has the time that a server takes which is just there again.
        monkeypatch.setattr("echomq_worker.handover.LAST_WORDS_MS", 20_000)
        await asyncio.to_thread(server.start)
        await asyncio.wait_for(running, 25)
    assert made.counts == {"done": 1, "released": 2}
    assert [line["ids"] for line in made.lines.of("jobs left")] == []
    assert await asyncio.to_thread(server.admin.zcard, "emq:{q}:pending") == 2
