"""Burst: whether a queue has anything left for a run that ends when everything is done.

Source: issue "A worker that runs jobs", Daemon and CLI (`--burst`); decision 0007 (the horizon).
"""

from __future__ import annotations

from echomq_worker.connector import Wire
from echomq_worker.keyspace import Keys
from echomq_worker.rows import checked


async def nothing_left(wire: Wire, keys: Keys, horizon_ms: int, *, delivers: bool) -> bool:
    """Whether nothing of the queue can be claimed, and nothing is due within `horizon_ms` on the server's clock.

    A paused queue has nothing to give. `delivers`: a report in the outbox will be delivered, and may release a job of
    another queue. What is in hand is not looked at. Raises WireError, ServerError.
    """
    paused, pending, ring, (seconds, _), reports = checked(
        await wire.pipeline(
            [
                ("HEXISTS", keys.meta, "paused"),
                ("ZCARD", keys.pending),
                ("LLEN", keys.ring),
                ("TIME",),
                ("LLEN", keys.outbox),
            ]
        )
    )
    if reports and delivers:
        return False
    due = await wire.call("ZCOUNT", keys.schedule, "-inf", int(seconds) * 1000 + horizon_ms)
    return bool(paused) or not (pending or ring or due)
