"""A day of repeats and beats in fake time, on a real server, in seconds.

Source: issue "The five promises", user-needs section 3 (f). The Pump prices repeats on the host's clock, which is the
tests'; leases are the server's, so every beat of the consumer is a real one.
"""

from __future__ import annotations

import random
from collections import Counter

from redis.asyncio import Redis

from echomq_worker.identity import minted_at_ms
from echomq_worker.job import Job
from echomq_worker.repeat import Repeat
from tests.support.clock import ManualClock
from tests.support.stations import stand
from tests.support.waiting import wait_until

DAY_MS = 86_400_000
PERIOD_MS = 60_000
TICK_MS = 30_000
JITTER_MS = 14_000


async def test_a_day_of_a_minutely_repeat_is_1440_runs(url: str, raw: Redis) -> None:
    """At a fixed rate, each minute of the day has one occurrence, whose handler runs once: with even ticks until noon,
    then with ticks that come early and late. In the end nothing is left but the registration, and the next run is a day
    from the first.
    """
    clock, draw, runs = ManualClock(), random.Random(24), Counter[str]()
    start = clock.now_ms()

    async def handler(job: Job) -> None:
        runs[job.id] += 1

    async with stand(url, handler, clock=clock, pump=True, beat_ms=1_000, level="error", events=False) as made:
        pump = made.station.pump
        assert pump is not None
        await Repeat(made.connector, clock=clock).register("q", "minutely", PERIOD_MS, b"x", fixed_rate=True)
        fired = beats = 0
        while clock.now_ms() < start + DAY_MS:
            tick = await pump.beat()
            fired += tick.fired
            beats += 1
            if tick.fired:
                beat = await made.consumer.beat()
                assert beat.swept is not None, "recovery is due by then"
                assert beat.claimed is not None
            off_ms = JITTER_MS if clock.now_ms() > start + DAY_MS / 2 else 0
            clock.advance(TICK_MS + draw.randint(-off_ms, off_ms))
        await wait_until(lambda: runs.total() == fired, "all have run")
        await wait_until(lambda: made.counts.get("done") == fired, "all are settled")
        next_due = await raw.zscore("emq:{q}:repeat", "minutely")

    assert fired == DAY_MS // PERIOD_MS
    assert set(runs.values()) == {1}
    minutes = Counter((minted_at_ms(id) - start) // PERIOD_MS for id in runs)
    assert minutes == Counter(range(DAY_MS // PERIOD_MS))
    assert next_due == start + DAY_MS
    assert beats >= DAY_MS / (TICK_MS + JITTER_MS)
    assert await raw.zcard("emq:{q}:pending") == await raw.zcard("emq:{q}:active") == 0
