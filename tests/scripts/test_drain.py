"""drain and lane_drain: waiting jobs are deleted, whole; all that does not wait stays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.control import CHILD, PARENT, REPEATS, Control, child, waiting
from tests.support.own import flat, lane, merged
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, Queue, State, job, row

ROW = f"job:{CHILD}"
LANE = f"g:{GROUP}:pending"

Drain = Callable[[Control], Awaitable[Any]]
# How a job waits: its place, with the fields of its row, and the verb that takes it out there.
PLACES: dict[str, tuple[State, dict[str, str], Drain]] = {
    "flat": ({"pending": {CHILD: 0}}, {}, lambda control: control.drain()),
    "scheduled": ({"schedule": {CHILD: FAR_MS}}, {}, lambda control: control.drain(schedule=True)),
    "lane": ({LANE: {CHILD: 0}, "ring": [GROUP]}, {"group": GROUP}, lambda control: control.lane_drain()),
}
EVERYWHERE = pytest.mark.parametrize("place", PLACES)

STAYS: State = {
    f"job:{job(11)}": row("active", 1, held="1:ab"),
    "active": {job(11): FAR_MS},
    f"job:{job(12)}": row("dead", 1, last_error="boom"),
    "dead": {job(12): 0},
    f"job:{job(13)}": row("awaiting_children"),
    f"job:{job(13)}:dependencies": "1",
    "meta": {"concurrency": "5", "paused": "1"},
    "metrics:completed": {"count": "7"},
    "de:other": job(11),
    "claimed:c": "1 ab x 1",
} | REPEATS


async def expiring(queue: Queue, *names: str) -> None:
    """The protocol's table has these keys with a time to live."""
    for name in names:
        await queue.raw.expire(queue.keys.base + name, 60)


@EVERYWHERE
async def test_a_waiting_job_goes_whole(control: Control, queue: Queue, place: str) -> None:
    """Row, log, lock, subkeys and dedup key go with its place; what does not wait there stays as it stands."""
    where, fields, drain = PLACES[place]
    stays = merged(STAYS, lane(21, 22, group=OTHER_GROUP))
    if place != "scheduled":
        stays = merged(stays, {f"job:{job(23)}": row("scheduled"), "schedule": {job(23): 5}})
    if place == "lane":
        stays = merged(stays, flat(24))
    await queue.put(merged(where, stays) | {ROW: row(dedup="k") | fields, "de:k": CHILD})
    await queue.put({f"{ROW}:logs": ["line"], f"{ROW}:lock": "1", f"{ROW}:processed": {job(5): "1"}})
    await expiring(queue, f"{ROW}:lock", "claimed:c")

    assert await drain(control) == 1
    assert await queue.state() == stays
    assert await drain(control) == 0

    assert await queue.state() == stays


@EVERYWHERE
async def test_a_dedup_key_that_another_job_has_taken_stays(control: Control, queue: Queue, place: str) -> None:
    """It is released only where it holds this id."""
    where, fields, drain = PLACES[place]
    await queue.put(where | {ROW: row(dedup="k") | fields, "de:k": job(7)})

    await drain(control)

    assert await queue.state() == {"de:k": job(7)}


@EVERYWHERE
async def test_a_child_counts_as_dead(control: Control, queue: Queue, place: str) -> None:
    """Policy fp: its parent fails with it."""
    where, fields, drain = PLACES[place]
    await queue.put(merged(where, waiting(2)) | {ROW: child() | fields})

    assert await drain(control) == 1

    assert await queue.state() == {
        f"job:{PARENT}": row("dead", last_error=f"child {CHILD} died: drained"),
        f"job:{PARENT}:dependencies": "2",
        f"job:{PARENT}:failed": {CHILD: "drained"},
        "dead": {PARENT: 0},
        "metrics:failed": {"count": "1"},
    }


@EVERYWHERE
async def test_a_child_that_may_be_ignored_releases_its_parent(control: Control, queue: Queue, place: str) -> None:
    """Policy id: it counts as done, so the parent waits for nobody any more and runs."""
    where, fields, drain = PLACES[place]
    await queue.put(merged(where, waiting(1, group=OTHER_GROUP)) | {ROW: child("id") | fields})

    assert await drain(control) == 1

    assert await queue.state() == {
        f"job:{PARENT}": row("pending", group=OTHER_GROUP),
        f"job:{PARENT}:dependencies": "0",
        f"job:{PARENT}:unsuccessful": {CHILD: "drained"},
        f"g:{OTHER_GROUP}:pending": {PARENT: 0},
        "ring": [OTHER_GROUP],
        "wake": ["1"],
    }


@EVERYWHERE
async def test_a_parent_in_another_queue_hears_of_it(control: Control, queue: Queue, place: str) -> None:
    """By an entry in the outbox, in the same script."""
    where, fields, drain = PLACES[place]
    await queue.put(where | {ROW: child(queue="other") | fields})

    await drain(control)

    assert await queue.state() == {"flow:outbox": [f"\0fail\0other\0{PARENT}\0{CHILD}\0fp\0drained"]}


@EVERYWHERE
@pytest.mark.parametrize(
    "elsewhere",
    [
        {ROW: ("active", {"held": "1:ab"}), "active": {CHILD: FAR_MS}},
        {ROW: ("dead", {"last_error": "boom"}), "dead": {CHILD: 0}},
    ],
    ids=["held", "dead"],
)
async def test_what_is_elsewhere_too_only_leaves_the_place(
    control: Control, queue: Queue, place: str, elsewhere: dict[str, Any]
) -> None:
    """A foreign client has put back what is held under a lease that runs, or dead: it stays that, and nobody hears of
    a death.
    """
    where, fields, drain = PLACES[place]
    state, more = elsewhere[ROW]
    stays = waiting(2) | {name: value for name, value in elsewhere.items() if name != ROW}
    stays[ROW] = child(state=state) | fields | more
    await queue.put(where | stays)

    assert await drain(control) == 1

    left = await queue.state()
    # The ring entry of a lane that holds nothing any more is gone in any case.
    assert left == stays


async def test_an_expired_lease_does_not_protect(control: Control, queue: Queue) -> None:
    """Put back by a sweep but still in active: it waits, so it goes, and its slot is free."""
    await queue.put(lane(1) | {"active": {job(1): 1}, "gactive": {GROUP: "1"}})

    assert await control.lane_drain() == 1

    assert await queue.state() == {}


async def test_a_job_in_two_sets_dies_once(control: Control, queue: Queue) -> None:
    """In pending and in the schedule: one death, one entry."""
    await queue.put({"pending": {CHILD: 0}, "schedule": {CHILD: FAR_MS}, ROW: child(queue="other")})

    assert await control.drain(schedule=True) == 2

    assert len((await queue.state())["flow:outbox"]) == 1


async def test_an_id_without_a_row_goes(control: Control, queue: Queue) -> None:
    """A ghost of the schedule, and one of pending."""
    await queue.put({"pending": {job(1): 0}, "schedule": {job(2): 5}})

    assert await control.drain(schedule=True) == 2

    assert await queue.state() == {}


async def test_a_grouped_job_of_the_schedule_leaves_its_lane_alone(control: Control, queue: Queue) -> None:
    """Only that job goes."""
    await queue.put(merged(lane(1, 2), {f"job:{job(3)}": row("scheduled", group=GROUP), "schedule": {job(3): 5}}))

    assert await control.drain(schedule=True) == 1

    assert await queue.state() == lane(1, 2)


async def test_two_hundred_a_call(control: Control, queue: Queue) -> None:
    """The oldest first, over both sets together; a lane likewise."""
    await queue.put(flat(*range(250)))
    await queue.put({f"job:{job(n)}": row("scheduled") for n in range(250, 420)})
    await queue.put({"schedule": {job(n): n for n in range(250, 420)}})

    assert await control.drain(schedule=True) == 200
    state = await queue.state()
    assert (len(state["pending"]), len(state["schedule"])) == (50, 170)
    assert [await control.drain(schedule=True) for _ in range(3)] == [200, 20, 0]
    assert await queue.state() == {}
    await queue.put(lane(*range(300)))
    assert [await control.lane_drain() for _ in range(3)] == [200, 100, 0]

    assert await queue.state() == {}


async def test_an_empty_lane_leaves_the_ring(control: Control, queue: Queue) -> None:
    """A hollow entry goes, the other lane's stays."""
    await queue.put(merged({"ring": [GROUP]}, lane(1, group=OTHER_GROUP)))

    assert await control.lane_drain() == 0

    assert await queue.state() == lane(1, group=OTHER_GROUP)
