"""Nothing that a job needs has a time to live: a job waits as long as it has to."""

from __future__ import annotations

from redis.asyncio import Redis

from echomq_worker.connector import connect
from echomq_worker.jobs import Jobs, New
from echomq_worker.lanes import Lanes
from tests.support.keyspace import expiring_of, keyspace_of

FAR_MS = 90_000_000


async def test_no_key_of_a_job_expires(url: str, raw: Redis) -> None:
    """Waiting, in a lane, in hand, to be retried in 25 hours after two failures, scheduled, dead, with a log: no row
    and no set has a time to live. Only what may go has one, such as tokens that wake who waits.

    Report 46 (python-arq/arq#320).
    """
    async with connect(url) as connector:
        jobs, lanes = Jobs(connector), Lanes(connector)
        ids = {name: (await jobs.enqueue("a", name)).id for name in ("retried", "dead", "held", "waits")}
        for reason in ("first", "second"):
            claimed = await jobs.claim("a", 60_000)
            assert claimed is not None
            delay_ms = FAR_MS if reason == "second" else 0
            await jobs.retry("a", claimed.id, claimed.token, delay_ms=delay_ms, error=reason)
            await jobs.promote("a")
        claimed = await jobs.claim("a", 60_000)
        assert claimed is not None
        await jobs.retry("a", claimed.id, claimed.token, max_attempts=1, error="the last")
        await jobs.add_log("a", claimed.id, "a line")
        assert await jobs.claim("a", FAR_MS)
        await jobs.enqueue_many("a", [New(b"later", in_ms=FAR_MS), New(b"x", group=lanes.group_for("t"))])

    everything, expiring = await keyspace_of(raw), await expiring_of(raw)
    states = {value["state"] for key, value in everything.items() if ":job:" in key and isinstance(value, dict)}
    assert states == {"pending", "active", "scheduled", "dead"}
    row = everything[f"emq:{{a}}:job:{ids['retried']}"]
    assert isinstance(row, dict)
    assert (row["state"], row["failures"], row["last_error"]) == ("scheduled", "2", "second")
    assert set(expiring) <= {"emq:{a}:ready", "emq:{a}:wake"}
