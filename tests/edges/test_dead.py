"""The dead set: requeue and delete of many by filter, and its retention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from echomq_worker.admin import Admin
from echomq_worker.connector import Connector
from echomq_worker.dead import PAGE, DeadFilter, Handled, Retention
from echomq_worker.errors import EchoMQError, InvalidArgument, InvalidId, InvalidQueueName
from echomq_worker.identity import encode
from echomq_worker.keyspace import Keys
from echomq_worker.worker import Worker
from tests.support.own import flat, merged
from tests.support.plain import QUEUE, Queue, State, job, row
from tests.support.running import running
from tests.support.waiting import wait_until

EPOCH_MS = 1_704_067_200_000
HOUR_MS = 3_600_000


@pytest.fixture
def admin(wire: Connector) -> Admin:
    """Admin over a connector."""
    return Admin(wire)


def dead(ids: Sequence[str], **fields: Any) -> State:
    """Dead jobs."""
    rows = {f"job:{id}": row("dead", 3, last_error=fields.get("last_error", "boom")) for id in ids}
    return {**rows, "dead": dict.fromkeys(ids, 0)}


async def aged(queue: Queue, *hours: int) -> list[str]:
    """Ids that were minted so many hours ago."""
    now = await queue.now_ms()
    return [encode("JOB", ((now - age * HOUR_MS - EPOCH_MS) << 22) + number) for number, age in enumerate(hours)]


async def left(queue: Queue) -> set[str]:
    """The ids that are dead; each has its row and no other is left."""
    state = await queue.state()
    ids = set(state.get("dead", {}))
    assert ids <= {name.removeprefix("job:") for name in state if name.startswith("job:")}
    return ids


async def test_requeue_all(admin: Admin, queue: Queue) -> None:
    """More than a page of them, each with a new life; progress is told up to the end."""
    ids = [job(n) for n in range(PAGE + 10)]
    await queue.put(dead(ids))
    told: list[tuple[int, int]] = []

    handled = await admin.requeue_dead(QUEUE, progress=lambda done, total: told.append((done, total)))

    assert handled == Handled(PAGE + 10, {})
    state = await queue.state()
    assert set(state["pending"]) == set(ids)
    assert "dead" not in state
    assert state[f"job:{ids[0]}"] == row("pending", 3)
    assert told == [(PAGE, PAGE + 10), (PAGE + 10, PAGE + 10)]


async def test_delete_all(admin: Admin, queue: Queue) -> None:
    """With rows and logs; what is not dead stays."""
    await queue.put(merged(dead([job(n) for n in range(PAGE + 10)]), {f"job:{job(1)}:logs": ["line"]}, flat(9_000)))

    assert await admin.delete_dead(QUEUE) == Handled(PAGE + 10, {})

    assert await queue.state() == flat(9_000)


async def test_filters(admin: Admin, queue: Queue) -> None:
    """By age of the id, by a part of the error, by ids, by count, the oldest first; what is given fits all together."""
    old, older, young = await aged(queue, 2, 3, 0)
    await queue.put(merged(dead([old, young], last_error="Timeout: 30 s"), dead([older], last_error="ValueError: zoë")))

    async def count(**chosen: Any) -> int:
        return await admin.count_dead(QUEUE, DeadFilter(**chosen))

    assert await admin.count_dead(QUEUE) == 3
    assert await count(older_than_ms=HOUR_MS) == 2
    assert await count(error="Timeout") == 2
    assert await count(error="zoë") == 1
    assert await count(error="timeout") == 0
    assert await count(older_than_ms=HOUR_MS, error="Timeout") == 1
    assert await count(ids=[young, young, job(7)]) == 1
    assert await count(ids=[young], older_than_ms=HOUR_MS) == 0
    assert await count(ids=[]) == 0
    assert await count(limit=2) == 2

    assert (await admin.delete_dead(QUEUE, DeadFilter(limit=1))).done == 1
    assert await left(queue) == {old, young}
    assert (await admin.requeue_dead(QUEUE, DeadFilter(older_than_ms=HOUR_MS))).done == 1

    assert await left(queue) == {young}


async def test_a_limit_spans_pages(admin: Admin, queue: Queue) -> None:
    """Page by page up to it, and not one more."""
    await queue.put(dead([job(n) for n in range(2 * PAGE)]))

    assert (await admin.delete_dead(QUEUE, DeadFilter(limit=PAGE + 3))).done == PAGE + 3

    assert await left(queue) == {job(n) for n in range(PAGE + 3, 2 * PAGE)}


async def test_what_is_refused_is_named(admin: Admin, queue: Queue) -> None:
    """A parent whose children are out stays dead, unless forced; the others are requeued."""
    await queue.put(merged(dead([job(1), job(2)]), {f"job:{job(1)}:dependencies": "1"}))

    handled = await admin.requeue_dead(QUEUE)

    assert handled == Handled(1, {job(1): "EMQSTATE children still out"})
    assert await left(queue) == {job(1)}
    assert await admin.requeue_dead(QUEUE, force=True) == Handled(1, {})


async def test_one_that_got_a_new_life_meanwhile_is_not_deleted(wire: Connector, queue: Queue) -> None:
    """Between the look and the removal somebody requeues it: it is refused, and lives."""
    await queue.put(dead([job(1), job(2)]))

    class Late:
        """A wire on which another operator is faster."""

        async def call(self, *args: Any) -> Any:
            return await wire.call(*args)

        async def pipeline(self, commands: Any) -> Any:
            await Admin(wire).requeue_dead(QUEUE, DeadFilter(ids=[job(1)]))
            return await wire.pipeline(commands)

    handled = await Admin(Late()).delete_dead(QUEUE)

    assert handled == Handled(1, {job(1): "EMQSTATE not dead"})
    assert (await queue.state())["pending"] == {job(1): 0}


async def test_what_is_no_job_of_ours_is_left_alone(admin: Admin, queue: Queue) -> None:
    """A member that is no branded id, and one without a row."""
    await queue.put({"dead": {"job-7": 0, job(1): 0}})

    assert await admin.delete_dead(QUEUE) == Handled(0, {})
    assert await admin.trim_dead(QUEUE, max_count=0) == 0

    assert await queue.state() == {"dead": {"job-7": 0, job(1): 0}}


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"max_age_ms": 90 * 60_000}, [0, 1]),
        ({"max_count": 2}, [0, 1]),
        ({"max_count": 0}, []),
        ({"max_age_ms": 0}, []),
        ({"max_age_ms": 90 * 60_000, "max_count": 1}, [0]),
        ({"max_age_ms": 90 * 60_000, "max_count": 3}, [0, 1]),
        ({"max_age_ms": 10 * HOUR_MS, "max_count": 9}, [0, 1, 2, 3]),
    ],
)
async def test_trim(admin: Admin, queue: Queue, limits: dict[str, Any], kept: list[int]) -> None:
    """Beyond the age, beyond the count, or either of both; the youngest stay."""
    ids = await aged(queue, 0, 1, 2, 3)
    await queue.put(dead(ids))

    assert await admin.trim_dead(QUEUE, **limits) == 4 - len(kept)

    assert await left(queue) == {ids[n] for n in kept}


async def test_trim_is_bounded_on_request(admin: Admin, queue: Queue) -> None:
    """At most `limit`, the oldest first."""
    await queue.put(dead([job(n) for n in range(5)]))

    assert await admin.trim_dead(QUEUE, max_count=1, limit=2) == 2

    assert await left(queue) == {job(2), job(3), job(4)}


async def test_retention_takes_five_hundred_a_beat(wire: Connector, queue: Queue) -> None:
    """Until it is below; then a beat does nothing."""
    await queue.put(dead([job(n) for n in range(1_100)]))
    retention = Retention(wire, Keys(QUEUE), max_count=50)

    assert [await retention.beat() for _ in range(4)] == [500, 500, 50, 0]

    assert await left(queue) == {job(n) for n in range(1_050, 1_100)}


async def test_the_pump_keeps_it_where_that_is_set(url: str, queue: Queue) -> None:
    """`dead_max_count` and `dead_max_age_ms`: a worker's Pump trims; the two youngest of less than an hour are left.

    Report 86 (hibiken/asynq#910).
    """
    ids = await aged(queue, 0, 0, 0, 2)
    await queue.put(dead(ids))
    worker = Worker()
    worker.handler(QUEUE)(_nothing)

    kept = set(sorted(ids)[-2:])

    async def trimmed() -> bool:
        # Not `left`: a state that is read while the Pump trims is of no one moment.
        return set((await queue.state()).get("dead", {})) == kept

    async with running(worker, url, dead_max_count=2, dead_max_age_ms=HOUR_MS):
        await wait_until(trimmed, "the Pump has trimmed the dead set")
    assert await left(queue) == kept


async def test_without_a_setting_nothing_is_trimmed(url: str, queue: Queue) -> None:
    """Off by default: a worker runs, and a job that has been dead for years stays."""
    await queue.put(merged(dead([job(1)]), flat(2)))
    worker = Worker()
    worker.handler(QUEUE)(_nothing)

    async def done() -> bool:
        return "pending" not in await queue.state()

    async with running(worker, url):
        await wait_until(done, "the worker has worked")

    assert await left(queue) == {job(1)}


async def _nothing() -> None:
    """A handler."""


BAD: dict[str, tuple[Any, type[EchoMQError]]] = {
    "queue": (lambda admin: admin.requeue_dead("emq"), InvalidQueueName),
    "age": (lambda _: DeadFilter(older_than_ms=-1), InvalidArgument),
    "limit": (lambda _: DeadFilter(limit=0), InvalidArgument),
    "error": (lambda _: DeadFilter(error=5), InvalidArgument),  # type: ignore[arg-type]  # it is what is refused
    "ids": (lambda _: DeadFilter(ids=["JOB1"]), InvalidId),
    "trim without": (lambda admin: admin.trim_dead(QUEUE), InvalidArgument),
    "trim age": (lambda admin: admin.trim_dead(QUEUE, max_age_ms=-1), InvalidArgument),
    "trim count": (lambda admin: admin.trim_dead(QUEUE, max_count=True), InvalidArgument),
    "trim limit": (lambda admin: admin.trim_dead(QUEUE, max_count=1, limit=0), InvalidArgument),
}


@pytest.mark.parametrize("case", BAD)
async def test_guards(admin: Admin, queue: Queue, case: str) -> None:
    """Each with its class; nothing is deleted."""
    call, refused = BAD[case]
    await queue.put(dead([job(1), job(2)]))

    with pytest.raises(refused):
        await call(admin)

    assert len(await left(queue)) == 2
