"""reprocess: a dead job gets a new life, with nothing held against it."""

from __future__ import annotations

import pytest

from echomq_worker.errors import StateRefused
from tests.support.control import CHILD, Control, child, waiting
from tests.support.own import lane, merged, retry
from tests.support.plain import FAR_MS, GROUP, Queue, State, job, row

ROW = f"job:{CHILD}"
MARKS = {
    "last_error": "boom",
    "failures": "3",
    "stalled": "1",
    "crashes": "2:5",
    "held": "5:ab",
    "cancel": "why",
    "expires_at": "7",
    "dedup": "k",
}


def dead(fields: dict[str, str] | None = None) -> State:
    """One dead job."""
    return {ROW: row("dead", 5) | (fields or {}), "dead": {CHILD: 0}}


async def test_nothing_is_held_against_it(control: Control, queue: Queue) -> None:
    """Back in pending with a token; attempts, payload, progress, the log and `settled` stay."""
    stays = {"settled": "5:dead", "progress": "50"}
    await queue.put(dead(MARKS | stays) | {f"{ROW}:logs": ["line"]})

    assert await control.reprocess(CHILD) == 1

    assert await queue.state() == {
        ROW: row("pending", 5) | stays,
        f"{ROW}:logs": ["line"],
        "pending": {CHILD: 0},
        "ready": ["1"],
    }


@pytest.mark.parametrize("holder", [CHILD, job(2)])
async def test_the_dedup_key_goes_where_it_still_stands_for_it(control: Control, queue: Queue, holder: str) -> None:
    """A foreign burial leaves it: without the field on the row nobody would ever release it."""
    await queue.put(dead({"dedup": "k"}) | {"de:k": holder, f"job:{job(2)}": row("scheduled")})

    assert await control.reprocess(CHILD) == 1

    state = await queue.state()
    assert state[ROW] == row("pending", 5)
    assert state.get("de:k") == (None if holder == CHILD else holder)


async def test_a_grouped_job_returns_to_its_lane(control: Control, queue: Queue) -> None:
    """At its place in mint order, on the ring, with a token for lanes."""
    await queue.put(merged(dead({"group": GROUP}), lane(2, on_ring=False)))

    assert await control.reprocess(CHILD) == 1

    assert await queue.state() == lane(2) | {
        ROW: row("pending", 5, group=GROUP),
        f"g:{GROUP}:pending": {CHILD: 0, job(2): 0},
        "wake": ["1"],
    }


async def test_a_verdict_that_is_sent_again_is_still_known(control: Control, queue: Queue) -> None:
    """The retry that buried it, sent once more after a lost reply, gives its answer and counts nothing."""
    await queue.put({ROW: row("active", 5, held="5:ab"), "active": {CHILD: FAR_MS}})
    verdict = retry(CHILD, "5:ab", max_attempts=1)
    assert await control.settle(verdict) == ["dead"]
    await control.reprocess(CHILD)
    before = await queue.state()

    assert await control.settle(verdict) == ["dead"]

    assert await queue.state() == before


@pytest.mark.parametrize(
    "state",
    [
        {ROW: row(), "pending": {CHILD: 0}},
        {ROW: row("active", 1), "active": {CHILD: FAR_MS}},
        {ROW: row("scheduled"), "schedule": {CHILD: FAR_MS}},
        {ROW: row("awaiting_children")},
        {ROW: row("dead"), "pending": {CHILD: 0}},
        {ROW: row("pending"), "dead": {CHILD: 0}},
    ],
    ids=["pending", "active", "scheduled", "parent", "dead by its row only", "dead by its set only"],
)
async def test_what_is_not_dead_is_refused(control: Control, queue: Queue, state: State) -> None:
    """EMQSTATE not dead, and nothing is written."""
    await queue.put(state)

    with pytest.raises(StateRefused, match="EMQSTATE not dead"):
        await control.reprocess(CHILD)

    assert await queue.state() == state


async def test_gone(control: Control, queue: Queue) -> None:
    """-1, and no row is made."""
    assert await control.reprocess(CHILD) == -1

    assert await queue.state() == {}


async def test_a_child_of_a_flow_has_reported(control: Control, queue: Queue) -> None:
    """Its parent heard of its death: the child runs on its own from now on, its second end tells nobody."""
    stays = waiting(1)
    await queue.put(stays | {ROW: child("id", state="dead", parent_queue="other"), "dead": {CHILD: 0}})

    assert await control.reprocess(CHILD) == 1

    assert await queue.state() == stays | {ROW: row("pending"), "pending": {CHILD: 0}, "ready": ["1"]}


async def test_a_parent_whose_children_are_out_is_refused(control: Control, queue: Queue) -> None:
    """One has failed, two of three are out: not yet, unless forced; `:failed` is never cleared."""
    behind = {f"{ROW}:dependencies": "3", f"{ROW}:failed": {job(5): "e"}}
    await queue.put(dead() | behind)
    before = await queue.state()

    with pytest.raises(StateRefused, match="children still out"):
        await control.reprocess(CHILD)
    assert await queue.state() == before
    assert await control.reprocess(CHILD, "force") == 1

    assert await queue.state() == behind | {ROW: row("pending", 5), "pending": {CHILD: 0}, "ready": ["1"]}


async def test_a_parent_whose_children_have_all_ended(control: Control, queue: Queue) -> None:
    """All that are out by the count have failed: it runs."""
    await queue.put(dead() | {f"{ROW}:dependencies": "2", f"{ROW}:failed": {job(5): "e", job(6): "e"}})

    assert await control.reprocess(CHILD) == 1

    assert (await queue.state())["pending"] == {CHILD: 0}
