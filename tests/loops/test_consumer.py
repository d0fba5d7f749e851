"""Consumer: one pass of recovery, promote and claim at a time, driven by hand on a real server."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redis.asyncio import Redis

from echomq_worker.errors import Unreachable
from echomq_worker.job import Job
from echomq_worker.options import Limits
from echomq_worker.recovery import Swept
from echomq_worker.settle import Settle
from tests.support.clock import ManualClock
from tests.support.plain import GROUP, QUEUE, Queue, job, row
from tests.support.proxy import Proxy
from tests.support.stations import BEAT_MS, Gate, Stand, counting, expired, parked, pending, stand
from tests.support.valkey import ValkeyServer
from tests.support.waiting import wait_until


def trips(made: Stand, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the pipelines that the connector sends from here on."""
    sizes: list[int] = []
    pipeline = made.connector.pipeline

    async def counted(commands: Any) -> list[Any]:
        sizes.append(len(commands))
        return await pipeline(commands)

    monkeypatch.setattr(made.connector, "pipeline", counted)
    return sizes


async def test_a_beat_is_recovery_promote_and_claim_in_one_round_trip(
    url: str, raw: Redis, server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was expired or due is claimed in the same beat. Between beats only claims are sent."""
    gate, clock = Gate(), ManualClock()
    async with stand(url, gate.handler, clock=clock) as made:
        # The server learns the scripts: what it does not know is sent again, behind what it knows.
        await made.consumer.beat()
        back = await expired(raw, 1)
        await Queue(raw).put({"schedule": {job(2): 1}, f"job:{job(2)}": row("scheduled")})
        (flat,) = await pending(raw, range(3, 4))
        clock.advance(BEAT_MS)
        sizes = trips(made, monkeypatch)
        with counting(server.admin) as calls:
            beat = await made.consumer.beat()
            assert (calls(), sizes) == (3, [3]), "reap, promote, claim"
            between = await made.consumer.beat()
            assert (calls(), sizes) == (4, [3]), "a claim, which is no pipeline"
        assert beat.swept == Swept(recovered=1, promoted=1)
        assert between.swept is None
        await wait_until(lambda: len(gate.began) == 3, "they run")
    assert gate.began == [back, job(2), flat]


async def test_the_first_beat_says_what_it_did(url: str, raw: Redis) -> None:
    """What was swept, and what was claimed."""
    await expired(raw, 1)
    await Queue(raw).put({"gactive": {GROUP: "2"}})
    ids = await pending(raw, range(2, 4))
    async with stand(url) as made:
        beat = await made.consumer.beat()
    assert beat.swept == Swept(recovered=1, promoted=0, corrected=1)
    assert beat.claimed is not None
    assert [one.id for one in beat.claimed.jobs if one.id in ids] == ids


async def test_a_claim_is_never_for_more_than_the_free_slots(url: str, raw: Redis) -> None:
    """Nothing is taken that cannot run at once; as one ends one is claimed.

    Report 109 (celery/celery#9863).
    """
    gate = Gate()
    await pending(raw, range(20))
    async with stand(url, gate.handler, concurrency=3) as made:
        for _ in range(3):
            await made.consumer.beat()
        await wait_until(lambda: len(gate.began) == 3, "three run")
        assert await raw.zcard("emq:{q}:pending") == 17
        gate.gate.set()
        await wait_until(lambda: made.counts.get("done") == 3, "they end")
        gate.gate.clear()
        await made.consumer.beat()
        await wait_until(lambda: len(gate.began) == 6, "three more run")
        assert await raw.zcard("emq:{q}:active") == 3


@pytest.mark.blocks(reason="a handler that blocks the event loop shows that the claim has left before")
async def test_the_server_claims_while_the_handlers_of_the_last_claim_run(
    url: str, raw: Redis, server: ValkeyServer
) -> None:
    """A claim fills half of the slots, and the next one leaves before the first of its handlers begins: seen from a
    handler that does not let the event loop go on.
    """
    seen: list[tuple[int, int]] = []
    stands: list[Stand] = []

    def active() -> int:
        return int(server.admin.zcard("emq:{q}:active"))

    async def handler(_job: Job) -> None:
        if not seen:
            until = time.monotonic() + 20
            while active() < 40 and time.monotonic() < until:
                pass
            seen.append((40 - stands[0].consumer.slots.free, active()))

    await pending(raw, range(50))
    async with stand(url, handler, concurrency=40) as made:
        stands.append(made)
        made.shared.tasks.start_soon(made.consumer.run)
        await wait_until(lambda: made.counts.get("done") == 50, "all are done")
    assert seen == [(20, 40)], "in hand here, and claimed on the server"


async def test_nothing_is_claimed_while_verdicts_cannot_be_delivered(url: str, raw: Redis) -> None:
    """Recovery goes on; a claim whose reply was lost waits as well. The first delivery ends it."""
    await expired(raw, 1)
    async with stand(url, settles=False) as made:
        made.station.settle._degraded.fail(Unreachable("x"))
        beat = await made.consumer.beat()
        assert (beat.swept, beat.claimed) == (Swept(recovered=1), None)
        assert await raw.zcard("emq:{q}:pending") == 1
        made.station.settle._degraded.good()
        beat = await made.consumer.beat()
        assert beat.claimed is not None
        assert len(beat.claimed.jobs) == 1


async def test_it_goes_on_as_soon_as_verdicts_are_delivered_again(
    url: str, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still for them, and does not wait for its beat."""
    gate, beat, fails = Gate(), Settle.beat, [True]
    gate.gate.set()

    async def failing(settle: Settle) -> int:
        if fails[0]:
            raise Unreachable("x")
        return await beat(settle)

    monkeypatch.setattr(Settle, "beat", failing)
    first, second = await pending(raw, range(2))
    async with stand(url, gate.handler, concurrency=1, beat_ms=500, limits=Limits(lease_ms=60_000)) as made:
        made.shared.tasks.start_soon(made.consumer.run)
        await wait_until(lambda: made.station.settle.stuck, "the verdict cannot be delivered")
        assert gate.began == [first]
        fails[0] = False
        await wait_until(lambda: made.counts.get("done") == 2, "both are done")
    assert gate.began == [first, second]


async def test_jobs_of_a_claim_whose_reply_was_lost_run_after_the_reconnect(
    url: str, raw: Redis, server: ValkeyServer
) -> None:
    """Without waiting for the lease, and once."""
    gate = Gate()
    gate.gate.set()
    ids = await pending(raw, range(5))
    async with (
        Proxy(server.port) as proxy,
        stand(proxy.url, gate.handler, limits=Limits(lease_ms=60_000), beat_ms=50) as made,
    ):
        lost = proxy.swallow_reply(b"claimed:test-0")
        made.shared.tasks.start_soon(made.consumer.run)
        await wait_until(lambda: made.counts.get("done") == 5, "all are done")
        assert lost.done
        assert made.lines.events.count("degraded") == made.lines.events.count("recovered") == 1
    assert gate.began == ids
    assert await raw.hget("emq:{q}:metrics:completed", "count") == b"5"


@pytest.mark.parametrize("token", ["ready", "wake"])
async def test_it_parks_until_a_token(url: str, raw: Redis, token: str) -> None:
    """Flat jobs and lanes have tokens of their own; either ends the wait, long before the beat."""
    gate = Gate()
    async with stand(url, gate.handler, beat_ms=60_000, limits=Limits(lease_ms=120_000)) as made:
        made.shared.tasks.start_soon(made.consumer.run)
        await parked(raw)
        if token == "ready":
            await pending(raw, range(1))
        else:
            await Queue(raw).put(
                {f"g:{GROUP}:pending": {job(0): 0}, f"job:{job(0)}": row(group=GROUP), "ring": [GROUP]}
            )
        await raw.lpush(f"emq:{{q}}:{token}", "1")
        await raw.pexpire(f"emq:{{q}}:{token}", 60_000)
        await wait_until(lambda: gate.began == [job(0)], "it runs")
        await parked(raw)


async def test_a_job_without_a_token_is_found_within_a_beat(url: str, raw: Redis) -> None:
    """A foreign producer pushes none."""
    gate = Gate()
    async with stand(url, gate.handler) as made:
        made.shared.tasks.start_soon(made.consumer.run)
        await parked(raw)
        await pending(raw, range(1))
        await wait_until(lambda: gate.began == [job(0)], "it runs")


async def test_a_paused_queue_is_left_alone_until_it_is_resumed(url: str, raw: Redis) -> None:
    """It parks; expired leases come back all the same."""
    gate = Gate()
    await raw.hset("emq:{q}:meta", "paused", "1")
    await pending(raw, range(1))
    await expired(raw, 1)
    async with stand(url, gate.handler) as made:
        beat = await made.consumer.beat()
        assert beat.claimed is not None
        assert (beat.swept and beat.swept.recovered, beat.claimed.why) == (1, "paused")
        made.shared.tasks.start_soon(made.consumer.run)
        await parked(raw)
        await raw.hdel("emq:{q}:meta", "paused")
        await wait_until(lambda: len(gate.began) == 2, "both run")


async def test_suspects_come_one_at_a_time_and_healthy_jobs_do_not_wait(url: str, raw: Redis) -> None:
    """The next suspect starts as soon as the one before it has ended, without waiting for the beat."""
    one, other = await pending(raw, range(2), attempts=1, held="1:x", crashes="1:1")
    (healthy,) = await pending(raw, range(2, 3))
    gate = Gate()
    async with stand(url, gate.handler, beat_ms=60_000, limits=Limits(lease_ms=120_000)) as made:
        made.shared.tasks.start_soon(made.consumer.run)
        await wait_until(lambda: len(gate.began) == 2, "two run")
        await parked(raw)
        assert gate.began == [one, healthy]
        gate.gate.set()
        await wait_until(lambda: made.counts.get("done") == 3, "all are done")
    assert gate.began == [one, healthy, other]


async def test_a_job_that_crashed_too_often_is_named_in_the_log(url: str, raw: Redis) -> None:
    """It is dead, and its line says why."""
    (id,) = await pending(raw, range(1), attempts=3, held="3:x", crashes="4:3")
    async with stand(url) as made:
        await made.consumer.beat()
    assert made.counts == {"buried": 1}
    assert made.lines.of("job dead") == [{"queue": QUEUE, "id": id, "error": "crashed: 5 claims in a row never ended"}]


async def test_a_full_consumer_still_sweeps_each_beat(url: str, raw: Redis) -> None:
    """Dead workers' jobs come back for others, though this one has no slot for them.

    Report 108 (python-arq/arq#408).
    """
    gate = Gate()
    await pending(raw, range(3))
    async with stand(url, gate.handler, concurrency=1) as made:
        made.shared.tasks.start_soon(made.consumer.run)
        await wait_until(lambda: gate.began, "its slot is taken")
        for number in (5, 6):
            id = await expired(raw, number)

            async def back(id: str = id) -> bool:
                return await raw.zscore("emq:{q}:pending", id) is not None

            await wait_until(back, "it is back")


async def test_a_freed_slot_is_filled_at_once(url: str, raw: Redis) -> None:
    """Not at the beat: as many jobs as there are go through one slot."""
    gate = Gate()
    gate.gate.set()
    ids = await pending(raw, range(10))
    async with stand(url, gate.handler, concurrency=1, beat_ms=60_000, limits=Limits(lease_ms=120_000)) as made:
        made.shared.tasks.start_soon(made.consumer.run)
        await wait_until(lambda: made.counts.get("done") == 10, "all are done")
    assert gate.began == ids
