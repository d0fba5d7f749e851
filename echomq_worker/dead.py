"""Dead jobs, many at a time: requeue, delete and retention, as verbs of `Admin`.

Source: issue "Every control" (requeue and delete of many dead jobs by filter; maximum age and count of the dead set,
off by default, kept by the Pump). The scripts are those of a single job, many to a round trip, so that the server is
never held for long. When a job died is not recorded: its age is that of its id, by the producer's clock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from echomq_worker.connector import Wire
from echomq_worker.errors import InvalidArgument, Locked, StateRefused
from echomq_worker.guards import integer
from echomq_worker.identity import check_id, is_branded, minted_at_ms
from echomq_worker.keyspace import Keys
from echomq_worker.operate import removal, revival
from echomq_worker.rows import Progress, checked, now_ms
from echomq_worker.script import Call, evaluate_many

PAGE = 500
RETENTION_BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilter:
    """Which dead jobs: those that everything given fits, the oldest mint first, at most `limit`.

    `older_than_ms`: minted so long ago or longer. `error`: a part of `last_error`. `ids`: only these. Raises
    InvalidArgument, InvalidId.
    """

    older_than_ms: int | None = None
    error: str | None = None
    ids: Sequence[str] | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.older_than_ms is not None:
            integer("older_than_ms", self.older_than_ms, at_least=0)
        if self.limit is not None:
            integer("limit", self.limit, at_least=1)
        if self.error is not None and not isinstance(self.error, str):
            raise InvalidArgument(f"error of type {type(self.error).__name__}: expected a text")
        if self.error == "":
            # The empty text is part of every error: somebody whose variable is empty by mistake would requeue or delete
            # all.
            raise InvalidArgument("error is empty, expected a part of the last error")
        for id in self.ids or ():
            check_id(id)


@dataclass(frozen=True, slots=True)
class Handled:
    """What became of the jobs that a filter chose: how many were done, and of the others why not, by id."""

    done: int
    refused: dict[str, str]


class DeadJobs:
    """The verbs over the dead set. Every verb raises InvalidQueueName, and what `Connector.call` raises."""

    __slots__ = ()

    _wire: Wire

    async def count_dead(
        self, queue: str, chosen: DeadFilter | None = None, *, progress: Progress | None = None
    ) -> int:
        """How many dead jobs a filter chooses; all of them without one."""
        keys, count = Keys(queue), 0
        total = int(await self._wire.call("ZCARD", keys.dead))
        async for page in _chosen(self._wire, keys, chosen or DeadFilter()):
            count += len(page)
            if progress is not None:
                progress(count, max(total, count))
        return count

    async def requeue_dead(
        self, queue: str, chosen: DeadFilter | None = None, *, force: bool = False, progress: Progress | None = None
    ) -> Handled:
        """Give dead jobs a new life, each as `Jobs.reprocess` does. Refused: a parent whose children are still out."""
        keys = Keys(queue)
        return await self._each(keys, chosen, lambda id: revival(keys, id, force=force), progress)

    async def delete_dead(
        self, queue: str, chosen: DeadFilter | None = None, *, progress: Progress | None = None
    ) -> Handled:
        """Delete dead jobs. Refused: one that has got a new life meanwhile."""
        keys = Keys(queue)
        return await self._each(keys, chosen, lambda id: removal(keys, id, "dead"), progress)

    async def trim_dead(
        self,
        queue: str,
        *,
        max_age_ms: int | None = None,
        max_count: int | None = None,
        limit: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Delete the dead jobs minted more than `max_age_ms` ago, and the oldest above `max_count`; answers how many.

        At most `limit` in this call. Raises InvalidArgument where neither is given.
        """
        ids = await _trimmable(self._wire, Keys(queue), max_age_ms, max_count, limit)
        if not ids:
            return 0
        return (await self.delete_dead(queue, DeadFilter(ids=ids), progress=progress)).done

    async def _each(
        self, keys: Keys, chosen: DeadFilter | None, call: Callable[[str], Call], progress: Progress | None
    ) -> Handled:
        done, refused = 0, dict[str, str]()
        total = int(await self._wire.call("ZCARD", keys.dead))
        if chosen is not None and chosen.ids is not None:
            total = len(chosen.ids)
        async for ids in _chosen(self._wire, keys, chosen or DeadFilter()):
            replies = await evaluate_many(self._wire, [call(id) for id in ids])
            for id, reply in zip(ids, replies, strict=True):
                if isinstance(reply, StateRefused | Locked):
                    refused[id] = str(reply)
                    continue
                checked([reply])
                done += reply == 1
            if progress is not None:
                progress(done + len(refused), max(total, done + len(refused)))
        return Handled(done, refused)


class Retention:
    """Keeps a queue's dead set below an age, a count, or both; `beat()` is one bounded pass, for the Pump's tick."""

    __slots__ = ("_keys", "_max_age_ms", "_max_count", "_wire")

    def __init__(self, wire: Wire, keys: Keys, *, max_age_ms: int | None = None, max_count: int | None = None) -> None:
        self._wire = wire
        self._keys = keys
        self._max_age_ms = max_age_ms
        self._max_count = max_count

    async def beat(self) -> int:
        """Delete what is beyond, at most 500; answers how many. Raises WireError, ServerError."""
        ids = await _trimmable(self._wire, self._keys, self._max_age_ms, self._max_count, RETENTION_BATCH)
        if not ids:
            return 0
        replies = await evaluate_many(self._wire, [removal(self._keys, id, "dead") for id in ids])
        return sum(checked([reply])[0] == 1 for reply in replies if not isinstance(reply, StateRefused | Locked))


async def _pages(wire: Wire, keys: Keys) -> AsyncIterator[list[str]]:
    """The dead set, the oldest mint first; what was read is not read again, whatever was deleted meanwhile."""
    start = "-"
    while True:
        page = await wire.call("ZRANGE", keys.dead, start, "+", "BYLEX", "LIMIT", 0, PAGE)
        if not page:
            return
        start = b"(" + page[-1]
        # An id that is not branded is not ours to touch; the audit reports it.
        yield [text for id in page if is_branded(text := id.decode("utf-8", "replace"))]


async def _chosen(wire: Wire, keys: Keys, chosen: DeadFilter) -> AsyncIterator[list[str]]:
    left = chosen.limit
    until = None if chosen.older_than_ms is None else await now_ms(wire, keys) - chosen.older_than_ms
    async for page in _listed(wire, keys, chosen.ids) if chosen.ids is not None else _pages(wire, keys):
        ids = [id for id in page if until is None or minted_at_ms(id) <= until]
        if chosen.error is not None:
            errors = checked(await wire.pipeline([("HGET", keys.job(id), "last_error") for id in ids]))
            wanted = chosen.error.encode("utf-8", "replace")
            ids = [id for id, error in zip(ids, errors, strict=True) if wanted in (error or b"")]
        if left is not None:
            ids = ids[:left]
            left -= len(ids)
        if ids:
            yield ids
        if left == 0 or (until is not None and chosen.ids is None and page and minted_at_ms(page[-1]) > until):
            return


async def _listed(wire: Wire, keys: Keys, ids: Sequence[str]) -> AsyncIterator[list[str]]:
    """Those of the given ids that are dead."""
    unique = list(dict.fromkeys(ids))
    for first in range(0, len(unique), PAGE):
        page = unique[first : first + PAGE]
        scores = await wire.call("ZMSCORE", keys.dead, *page)
        yield [id for id, score in zip(page, scores, strict=True) if score is not None]


async def _trimmable(
    wire: Wire, keys: Keys, max_age_ms: int | None, max_count: int | None, limit: int | None
) -> list[str]:
    """The ids to delete, the oldest mint first."""
    if max_age_ms is None and max_count is None:
        raise InvalidArgument("max_age_ms and max_count: expected at least one of them")
    until, surplus = -1, 0
    if max_age_ms is not None:
        until = await now_ms(wire, keys) - integer("max_age_ms", max_age_ms, at_least=0)
    if max_count is not None:
        surplus = int(await wire.call("ZCARD", keys.dead)) - integer("max_count", max_count, at_least=0)
    limit = None if limit is None else integer("limit", limit, at_least=1)
    ids: list[str] = []
    async for page in _pages(wire, keys):
        for id in page:
            if (len(ids) >= surplus and minted_at_ms(id) > until) or len(ids) == limit:
                return ids
            ids.append(id)
    return ids
