"""remove_job: one job is deleted wherever it is; a worker's hands, a lease and a flow protect it."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.errors import Locked, StateRefused
from tests.support.control import CHILD, PARENT, Control, child, waiting
from tests.support.own import lane, merged
from tests.support.plain import FAR_MS, GROUP, Queue, State, job, row

ROW = f"job:{CHILD}"
LANE = f"g:{GROUP}:pending"
BEHIND: State = {
    f"{ROW}:logs": ["line"],
    f"{ROW}:dependencies": "1",
    f"{ROW}:processed": {job(5): "1"},
    f"{ROW}:failed": {job(6): "e"},
    f"{ROW}:unsuccessful": {job(7): "e"},
}


@pytest.mark.parametrize(
    "state",
    [
        {ROW: row(), "pending": {CHILD: 0}},
        {ROW: row(group=GROUP), LANE: {CHILD: 0}, "ring": [GROUP]},
        {ROW: row("scheduled"), "schedule": {CHILD: FAR_MS}},
        {ROW: row("dead", last_error="boom"), "dead": {CHILD: 0}},
        {ROW: row("awaiting_children")},
        {ROW: row("active", 1, held="1:ab"), "active": {CHILD: 1}},
        {ROW: row("active", 1, group=GROUP), "active": {CHILD: 1}, "gactive": {GROUP: "1"}},
        {
            ROW: row("active", 1),
            "active": {CHILD: 1},
            "pending": {CHILD: 0},
            "schedule": {CHILD: 5},
            "dead": {CHILD: 0},
        },
    ],
    ids=["flat", "lane", "scheduled", "dead", "parent", "lease over", "lease over in a lane", "everywhere"],
)
async def test_it_is_gone_from_everywhere(control: Control, queue: Queue, state: State) -> None:
    """Out of every set with its row and all that hangs on it; its slot is free. Once more it is gone."""
    await queue.put(state | BEHIND)

    assert await control.remove_job(CHILD) == 1
    assert await queue.state() == {}
    assert await control.remove_job(CHILD) == -1

    assert await queue.state() == {}


async def test_others_of_its_lane_stay_served(control: Control, queue: Queue) -> None:
    """A slot that is freed puts a full lane back on the ring, with a token."""
    await queue.put(merged(lane(2, on_ring=False), {ROW: row("active", 1, group=GROUP), "active": {CHILD: 1}}))
    await queue.put({"gactive": {GROUP: "1"}, "glimit": {GROUP: "1"}})

    await control.remove_job(CHILD)

    assert await queue.state() == lane(2) | {"glimit": {GROUP: "1"}, "wake": ["1"]}


LOCKS: dict[str, State] = {
    "lock": {f"{ROW}:lock": "1"},
    "lock on the row": {ROW: row("active", 1, lock="w")},
    "lease": {"active": {CHILD: FAR_MS}},
}


@pytest.mark.parametrize("lock", LOCKS)
async def test_a_job_in_hand_is_refused(control: Control, queue: Queue, lock: str) -> None:
    """A lock marker, a lock on the row, a lease that runs: EMQLOCK, and nothing is written. Forced it goes all the
    same.
    """
    state = {ROW: row("active", 1), "active": {CHILD: 1}} | LOCKS[lock]
    await queue.put(state)
    if lock == "lock":
        await queue.raw.expire(f"{queue.keys.base}{ROW}:lock", 60)

    with pytest.raises(Locked, match="EMQLOCK job is locked"):
        await control.remove_job(CHILD)
    assert await queue.state() == state
    assert await control.remove_job(CHILD, "force") == 1

    assert await queue.state() == {}


async def test_what_a_worker_keeps_is_locked(control: Control, queue: Queue) -> None:
    """The marker of the lease keeper protects a job whose lease a foreign client has taken out of active."""
    await queue.put({ROW: row("active", 1, held="1:ab"), "active": {CHILD: FAR_MS}})
    await control.keep(CHILD, "1:ab")
    await queue.raw.zrem(queue.keys.active, CHILD)

    with pytest.raises(Locked):
        await control.remove_job(CHILD)


@pytest.mark.parametrize(
    ("parked", "given", "left"),
    [
        ({"de:row": CHILD}, "", {}),
        ({"de:given": CHILD}, "given", {}),
        ({"de:row": CHILD, "de:given": CHILD}, "given", {}),
        ({"de:row": job(7), "de:given": job(7)}, "given", {"de:row": job(7), "de:given": job(7)}),
    ],
)
async def test_dedup_keys_are_released(control: Control, queue: Queue, parked: State, given: str, left: State) -> None:
    """The one on the row and the one that is named, each only where it holds this id."""
    await queue.put({ROW: row(dedup="row"), "pending": {CHILD: 0}} | parked)

    await control.remove_job(CHILD, dedup=given)

    assert await queue.state() == left


@pytest.mark.parametrize("state", ["pending", "active", "scheduled", "awaiting_children"])
async def test_a_child_that_has_not_reported_is_refused(control: Control, queue: Queue, state: str) -> None:
    """EMQSTATE, and nothing is written."""
    before = waiting(1) | {ROW: child(state=state)}
    await queue.put(before)

    with pytest.raises(StateRefused, match="child of a flow"):
        await control.remove_job(CHILD)

    assert await queue.state() == before


@pytest.mark.parametrize(
    ("policy", "after"),
    [
        (
            "fp",
            {
                f"job:{PARENT}": row("dead", last_error=f"child {CHILD} died: removed"),
                f"job:{PARENT}:dependencies": "1",
                f"job:{PARENT}:failed": {CHILD: "removed"},
                "dead": {PARENT: 0},
                "metrics:failed": {"count": "1"},
            },
        ),
        (
            "id",
            {
                f"job:{PARENT}": row("pending"),
                f"job:{PARENT}:dependencies": "0",
                f"job:{PARENT}:unsuccessful": {CHILD: "removed"},
                "pending": {PARENT: 0},
                "ready": ["1"],
            },
        ),
    ],
)
async def test_forced_a_child_counts_as_dead(control: Control, queue: Queue, policy: str, after: State) -> None:
    """By its policy."""
    await queue.put(waiting(1) | {ROW: child(policy), "pending": {CHILD: 0}})

    assert await control.remove_job(CHILD, "force") == 1

    assert await queue.state() == after


@pytest.mark.parametrize("how", [(), ("force",)])
async def test_a_child_that_is_dead_has_reported(control: Control, queue: Queue, how: tuple[str, ...]) -> None:
    """It goes unforced too, and its parent hears nothing more."""
    stays = waiting(1) | {f"job:{PARENT}:unsuccessful": {job(5): "e"}}
    await queue.put(stays | {ROW: child("id", state="dead"), "dead": {CHILD: 0}})

    assert await control.remove_job(CHILD, *how) == 1

    assert await queue.state() == stays


async def test_only_a_dead_one(control: Control, queue: Queue) -> None:
    """`dead`: one that has got a new life meanwhile is refused."""
    await queue.put({ROW: row("dead"), "dead": {CHILD: 0}})
    await control.reprocess(CHILD)
    before = await queue.state()

    with pytest.raises(StateRefused, match="EMQSTATE not dead"):
        await control.remove_job(CHILD, "dead")
    assert await queue.state() == before
    await queue.put({f"job:{job(2)}": row("dead"), "dead": {job(2): 0}})

    assert await control.remove_job(job(2), "dead") == 1

    assert await queue.state() == before


async def test_a_foreign_caller_gives_six_keys_and_two_values(control: Control, queue: Queue) -> None:
    """The protocol's own form: the last argument of ours may be missing."""
    await queue.put({ROW: row(), "pending": {CHILD: 0}})
    arguments: tuple[Any, ...] = (CHILD, "")
    keys = control.keys
    names = (keys.job(CHILD), keys.pending, keys.active, keys.schedule, keys.dead, f"{keys.base}de:")

    assert await control.run("remove_job", names, *arguments) == 1

    assert await queue.state() == {}
