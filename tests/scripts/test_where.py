"""where and mend: where one id stands, what is wrong with that, and its repair. recount's look at the lanes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.control import Control
from tests.support.own import flat, lane, merged
from tests.support.plain import FAR_MS, GROUP, OTHER_GROUP, Queue, State, job, row

ID = job(1)
ROW = f"job:{ID}"
LANE, OTHER_LANE = f"g:{GROUP}:pending", f"g:{OTHER_GROUP}:pending"
SLOT: State = {"gactive": {GROUP: "1"}}

WELL: dict[str, tuple[State, str, str]] = {
    "nothing": ({}, "", ""),
    "pending": (flat(1), "pending", "pending"),
    "lane": (lane(1), "lane", "pending"),
    "scheduled": ({ROW: row("scheduled"), "schedule": {ID: FAR_MS}}, "schedule", "scheduled"),
    "active": ({ROW: row("active", 1, group=GROUP), "active": {ID: 1}} | SLOT, "active", "active"),
    "dead": ({ROW: row("dead"), "dead": {ID: 0}, f"{ROW}:logs": ["line"]}, "dead", "dead"),
    "parent": ({ROW: row("awaiting_children"), f"{ROW}:dependencies": "1"}, "", "awaiting_children"),
    "flat pending of a grouped job": ({ROW: row(group=GROUP), "pending": {ID: 0}}, "pending", "pending"),
}


@pytest.mark.parametrize("case", WELL)
async def test_what_is_well_is_left_alone(control: Control, queue: Queue, case: str) -> None:
    """Its set and its state are told, there is no complaint, and nothing is mended."""
    state, place, said = WELL[case]
    await queue.put(state)

    assert await control.where(ID) == [place, said, ""]
    assert await control.mend(ID) == ""

    assert await queue.state() == state


RUNS: State = {ROW: row("pending", 1), "pending": {ID: 0}, "ready": ["1"]}
RUNS_IN_LANE: State = lane(1, attempts=1) | {"wake": ["1"]}

# What is there, the complaint, what is there afterwards.
ILL: dict[str, tuple[State, str, State]] = {
    "pending in no set": ({ROW: row("pending", 1)}, "row_in_no_set", RUNS),
    "active in no set": (
        {ROW: row("active", 1, held="1:ab")},
        "row_in_no_set",
        RUNS | {ROW: row("pending", 1, held="1:ab")},
    ),
    "scheduled in no set": ({ROW: row("scheduled", 1)}, "row_in_no_set", RUNS),
    "grouped in no set": ({ROW: row("active", 1, group=GROUP)}, "row_in_no_set", RUNS_IN_LANE),
    "dead in no set": ({ROW: row("dead", 1)}, "row_in_no_set", {ROW: row("dead", 1), "dead": {ID: 0}}),
    "without a state": (
        {ROW: {"progress": "5"}},
        "row_in_no_set",
        {ROW: {"progress": "5", "state": "pending"}, "pending": {ID: 0}, "ready": ["1"]},
    ),
    "pending without row": ({"pending": {ID: 0}, f"{ROW}:logs": ["line"]}, "id_without_row", {}),
    "scheduled without row": ({"schedule": {ID: 0}, "dead": {ID: 0}}, "id_without_row", {}),
    "log without row": ({f"{ROW}:logs": ["line"], f"{ROW}:failed": {job(5): "e"}}, "subkeys_without_row", {}),
    "a lease that runs, and pending": (
        {ROW: row("pending", 1), "active": {ID: FAR_MS}, "pending": {ID: 0}, "schedule": {ID: 5}},
        "two_sets",
        {ROW: row("active", 1), "active": {ID: FAR_MS}},
    ),
    "a lease that is over, and its lane": (
        merged(lane(1, attempts=1), {"active": {ID: 1}}, SLOT),
        "two_sets",
        lane(1, attempts=1) | {"wake": ["1"]},
    ),
    "active by its row, the lease over": (
        {ROW: row("active", 1), "active": {ID: 1}, "schedule": {ID: FAR_MS}},
        "two_sets",
        {ROW: row("scheduled", 1), "schedule": {ID: FAR_MS}},
    ),
    "scheduled by its row": (
        {ROW: row("scheduled", 1), "pending": {ID: 0}, "schedule": {ID: FAR_MS}},
        "two_sets",
        {ROW: row("scheduled", 1), "schedule": {ID: FAR_MS}},
    ),
    "dead by its row": (
        {ROW: row("dead", 1), "pending": {ID: 0}, "dead": {ID: 0}},
        "two_sets",
        {ROW: row("dead", 1), "dead": {ID: 0}},
    ),
    "flat and in its lane": (
        lane(1, attempts=1) | {"pending": {ID: 0}},
        "two_sets",
        lane(1, attempts=1),
    ),
    "a parent that waits for nobody": (
        {ROW: row("awaiting_children", 1), f"{ROW}:dependencies": "0"},
        "nothing_out",
        RUNS | {f"{ROW}:dependencies": "0"},
    ),
    "a parent without a count": ({ROW: row("awaiting_children", 1, group=GROUP)}, "nothing_out", RUNS_IN_LANE),
}


@pytest.mark.parametrize("case", ILL)
async def test_what_is_ill_is_told_and_mended(control: Control, queue: Queue, case: str) -> None:
    """One complaint, one repair, and then none; a look writes nothing."""
    state, complaint, after = ILL[case]
    await queue.put(state)

    assert (await control.where(ID))[2] == complaint
    assert await queue.state() == state
    assert await control.mend(ID) == complaint
    assert await queue.state() == after
    assert [(await control.where(ID))[2], await control.mend(ID)] == ["", ""]

    assert await queue.state() == after


async def test_a_lane_that_the_row_does_not_name(control: Control, queue: Queue) -> None:
    """An id seen there is looked at there too: without a row it goes, with its place on the ring; a job stays where its
    row says.
    """
    await queue.put({OTHER_LANE: {ID: 0}, "ring": [OTHER_GROUP]})
    assert await control.where(ID) == ["", "", ""]
    assert await control.where(ID, OTHER_GROUP) == ["lane", "", "id_without_row"]
    assert await control.mend(ID, OTHER_GROUP) == "id_without_row"
    assert await queue.state() == {}
    await queue.put(merged(lane(1), {OTHER_LANE: {ID: 0}, "ring": [OTHER_GROUP]}))

    assert await control.mend(ID, OTHER_GROUP) == "two_sets"

    assert await queue.state() == lane(1)


@pytest.mark.parametrize(
    ("state", "said", "left"),
    [
        ({"de:k": ID}, "dedup_without_row", {}),
        ({"de:k": job(2)}, "", {"de:k": job(2)}),
        (flat(1) | {"de:k": ID}, "", flat(1) | {"de:k": ID}),
        ({"de:k": ID, "pending": {ID: 0}}, "id_without_row", {}),
    ],
    ids=["without a row", "another id", "with a row", "with an id without a row"],
)
async def test_a_dedup_key(control: Control, queue: Queue, state: State, said: str, left: State) -> None:
    """It goes where it still holds this id, and that has no row."""
    await queue.put(state)

    assert await control.mend(ID, "", "k") == said

    assert await queue.state() == left


LANES: dict[str, tuple[State, list[tuple[Any, ...]]]] = {
    "all agrees": (
        merged(lane(1), {f"job:{job(2)}": row("active", 1, group=GROUP), "active": {job(2): FAR_MS}}, SLOT),
        [],
    ),
    "never given back": (SLOT, [(GROUP, "gactive", "1", "0")]),
    "given back twice": (
        {ROW: row("active", 1, group=GROUP), "active": {ID: FAR_MS}},
        [(GROUP, "gactive", "0", "1")],
    ),
    "hollow": ({"ring": [GROUP]}, [(GROUP, "ring", "1", "0")]),
    "twice": (lane(1) | {"ring": [GROUP, GROUP]}, [(GROUP, "ring", "2", "1")]),
    "paused": (lane(1) | {"paused": {GROUP}}, [(GROUP, "ring", "1", "0")]),
    "not on the ring": (lane(1, on_ring=False) | {"glimit": {GROUP: "5"}}, [(GROUP, "ring", "0", "1")]),
}


@pytest.mark.parametrize("case", LANES)
async def test_recount_can_look_without_touching(control: Control, queue: Queue, case: str) -> None:
    """It tells what it would correct and writes nothing; then corrects just that, and there is nothing more to tell."""
    state, told = LANES[case]
    await queue.put(state)

    assert await control.look_at_lanes() == told
    assert await queue.state() == state
    assert await control.recount() == len(told)

    assert await control.look_at_lanes() == []


async def test_recount_looks_at_lanes_that_it_is_told(control: Control, queue: Queue) -> None:
    """A lane that nothing names, not even a counter, is found by who scans."""
    await queue.put(lane(1, on_ring=False))

    assert await control.look_at_lanes() == []
    assert await control.look_at_lanes(GROUP) == [(GROUP, "ring", "0", "1")]
    assert await control.run("recount", (control.keys.active,), control.keys.base, 1_000, "", GROUP) == 1

    assert await queue.state() == lane(1) | {"wake": ["1"]}
