"""Operate: what an operator does to one job, as verbs of `Jobs`: payload, progress, log, removal, another life.

Source: the seed "Lifecycle controls" (the per-job verbs on Jobs), protocol section 4 (update_data, update_progress,
add_log, remove_job, reprocess).
"""

from __future__ import annotations

from echomq_worker.codec import encode
from echomq_worker.connector import Wire
from echomq_worker.errors import InvalidArgument
from echomq_worker.guards import integer, progress_text, utf8
from echomq_worker.keyspace import Keys
from echomq_worker.script import Call, evaluate


class Operator:
    """The per-job verbs over any wire. Each raises InvalidQueueName, InvalidId, and what `Connector.call` raises."""

    __slots__ = ()

    _wire: Wire

    async def update_data(self, queue: str, id: str, payload: object) -> bool:
        """Give a job another payload, wherever it is; False when it is gone. A claim that is out keeps what it has."""
        reply = await evaluate(self._wire, "update_data", (Keys(queue).job(id),), (encode(payload),))
        return bool(reply == 1)

    async def update_progress(self, queue: str, id: str, progress: object) -> bool:
        """Write a text, or what JSON can carry, as the job's progress, and publish it; False when it is gone.

        Raises InvalidArgument for a value without a JSON form.
        """
        keys = Keys(queue)
        values = (progress_text(progress), id, keys.base)
        return bool(await evaluate(self._wire, "update_progress", (keys.job(id),), values) == 1)

    async def add_log(self, queue: str, id: str, line: str, *, keep: int | None = None) -> int | None:
        """Append a line to the job's log and answer how many it has, or None when the job is gone.

        With `keep` (1 or more) only that many of the newest lines stay. Raises InvalidArgument.
        """
        keys = Keys(queue)
        if not isinstance(line, str):
            raise InvalidArgument(f"log line of type {type(line).__name__}: expected a text")
        kept = "" if keep is None else integer("keep", keep, at_least=1)
        count = await evaluate(self._wire, "add_log", (keys.job(id), keys.logs(id)), (utf8("log line", line), kept))
        return None if count == -1 else int(count)

    async def get_job_logs(self, queue: str, id: str, *, limit: int | None = None, offset: int = 0) -> list[str]:
        """The job's log lines, oldest first, from the one at `offset` on, at most `limit`; [] for a job without any."""
        first = integer("offset", offset, at_least=0)
        last = -1 if limit is None else first + integer("limit", limit, at_least=1) - 1
        lines = await self._wire.call("LRANGE", Keys(queue).logs(id), first, last)
        return [line.decode("utf-8", "replace") for line in lines]

    async def remove_job(self, queue: str, id: str, *, dedup: str | None = None, force: bool = False) -> bool:
        """Delete a job, its log and all that hangs on it, wherever it is; False when it is gone.

        The dedup key on its row is released, and `dedup` too where it holds this id. Raises Locked while a worker has
        the job in hand, StateRefused for a child of a flow that has not reported; `force` removes both, and such a
        child counts as dead by its policy.
        """
        call = removal(Keys(queue), id, "force" if force else "", dedup=dedup)
        return bool(await evaluate(self._wire, *call) == 1)

    async def reprocess(self, queue: str, id: str, *, force: bool = False) -> bool:
        """Give a dead job a new life: back to pending or its lane, nothing held against it; False when it is gone.

        Raises StateRefused when it is not dead, or is a parent whose children are still out (`force` takes that too).
        """
        return bool(await evaluate(self._wire, *revival(Keys(queue), id, force=force)) == 1)


def removal(keys: Keys, id: str, how: str = "", *, dedup: str | None = None) -> Call:
    """The script call that removes a job; `how`: `force`, `dead` (only a dead one), or '' (see remove_job.lua)."""
    sets = (keys.pending, keys.active, keys.schedule, keys.dead)
    return "remove_job", (keys.job(id), *sets, keys.dedup(dedup or "")), (id, dedup or "", how)


def revival(keys: Keys, id: str, *, force: bool = False) -> Call:
    """The script call that reprocesses a dead job."""
    return "reprocess", (keys.job(id), keys.dead, keys.pending), (id, "force" if force else "")
