"""cancel: what does not run is removed for good, what runs is asked, on its row and on the channel.

Source: issue "Every control" (the worker in hand), protocol sections 4 (endings, dedup) and 6 (a child that is removed
counts as a death by its policy).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from echomq_worker.connector import connect
from tests.support.control import PARENT, Control, child, waiting
from tests.support.own import retry
from tests.support.plain import FAR_MS, GROUP, Plain, Queue, State, job, row
from tests.support.valkey import OwnServer, raw_client

ROW, LANE = f"job:{job(1)}", f"g:{GROUP}:pending"
OTHER: State = {f"job:{job(2)}": row(), "pending": {job(2): 0}}
LITTER: State = {f"{ROW}:logs": ["a line"], f"{ROW}:lock": "3"}


async def cancel(plain: Plain, id: str = job(1), reason: str = "why") -> Any:
    """removed, asked, ended, gone."""
    keys = plain.keys
    names = (plain.row_key(id), keys.pending, keys.active, keys.schedule)
    return await plain.run("cancel", names, id, reason, keys.base)


IDLE: dict[str, tuple[State, State]] = {
    "pending": (OTHER | LITTER | {ROW: row(), "pending": {job(1): 0, job(2): 0}}, OTHER),
    "scheduled": (OTHER | {ROW: row("scheduled"), "schedule": {job(1): 5}}, OTHER),
    "the last of a lane": (OTHER | {ROW: row(group=GROUP), LANE: {job(1): 0}, "ring": [GROUP]}, OTHER),
    "one of a lane": (
        {ROW: row(group=GROUP), f"job:{job(2)}": row(group=GROUP), LANE: {job(1): 0, job(2): 0}, "ring": [GROUP]},
        {f"job:{job(2)}": row(group=GROUP), LANE: {job(2): 0}, "ring": [GROUP]},
    ),
    "in two sets": (OTHER | {ROW: row(), "pending": {job(1): 0, job(2): 0}, "schedule": {job(1): 5}}, OTHER),
    "in no set": (OTHER | {ROW: row()}, OTHER),
    "a parent that waits": (OTHER | {ROW: row("awaiting_children"), f"{ROW}:dependencies": "2"}, OTHER),
    "with its dedup key": (OTHER | {ROW: row(dedup="k"), "pending": {job(1): 0, job(2): 0}, "de:k": job(1)}, OTHER),
    "whose dedup key is another's": (
        OTHER | {ROW: row(dedup="k"), "pending": {job(1): 0, job(2): 0}, "de:k": job(2)},
        OTHER | {"de:k": job(2)},
    ),
}


@pytest.mark.parametrize("case", IDLE)
async def test_what_does_not_run_is_removed(plain: Plain, queue: Queue, case: str) -> None:
    """The row, all that hangs on it, and its place in every set; nothing else changes."""
    before, after = IDLE[case]
    await queue.put(before)

    assert await cancel(plain) == "removed"

    assert await queue.state() == after


async def test_what_runs_is_asked(plain: Plain, queue: Queue) -> None:
    """The reason stands on its row and goes out on the channel, whatever is in it; nothing else changes."""
    state: State = {ROW: row("active", 3, held="3:ab"), "active": {job(1): FAR_MS}}
    await queue.put(state)
    why = 'said "no" {zoë}\\'
    async with queue.raw.pubsub() as heard:
        await heard.subscribe(queue.keys.cancel)
        await heard.get_message(timeout=60)

        assert await cancel(plain, reason=why) == "asked"

        message = await heard.get_message(timeout=60)

    assert json.loads(message["data"]) == {"id": job(1), "reason": why}
    assert await queue.state() == state | {ROW: row("active", 3, held="3:ab", cancel=why)}


async def test_asked_again_the_last_reason_stands(plain: Plain, queue: Queue) -> None:
    """On the row."""
    await queue.put({ROW: row("active", 3), "active": {job(1): FAR_MS}})

    assert [await cancel(plain, reason=why) for why in ("one", "two")] == ["asked", "asked"]

    assert (await queue.state())[ROW]["cancel"] == "two"


@pytest.mark.parametrize(("state", "answer"), [({ROW: row("dead"), "dead": {job(1): 0}}, "ended"), ({}, "gone")])
async def test_what_is_over_stays_as_it_is(plain: Plain, queue: Queue, state: State, answer: str) -> None:
    """A dead job and one without a row."""
    await queue.put(state | OTHER)

    assert await cancel(plain) == answer

    assert await queue.state() == state | OTHER


async def test_a_removed_child_counts_as_a_death(plain: Plain, queue: Queue) -> None:
    """Its parent fails with it, or goes on without it, by the child's policy."""
    await queue.put({ROW: child("fp"), "pending": {job(1): 0}} | waiting())

    assert await cancel(plain) == "removed"

    died = f"child {job(1)} died: cancelled: why"
    assert await queue.state() == {
        f"job:{PARENT}": row("dead", last_error=died),
        f"job:{PARENT}:dependencies": "1",
        f"job:{PARENT}:failed": {job(1): "cancelled: why"},
        "dead": {PARENT: 0},
        "metrics:failed": {"count": "1"},
    }


async def test_a_removed_child_whose_death_is_ignored(plain: Plain, queue: Queue) -> None:
    """The parent is released."""
    await queue.put({ROW: child("id"), "pending": {job(1): 0}} | waiting())

    assert await cancel(plain) == "removed"

    state = await queue.state()
    assert state["pending"] == {PARENT: 0}
    assert state[f"job:{PARENT}:unsuccessful"] == {job(1): "cancelled: why"}


async def test_a_failure_of_a_job_that_was_asked_is_its_end(control: Control, queue: Queue) -> None:
    """Not a retry: dead, with the reason of the request."""
    await queue.put({ROW: row("active", 3, held="3:ab"), "active": {job(1): FAR_MS}})
    await cancel(control)

    assert await control.settle(retry(job(1), "3:ab", error="boom")) == ["dead"]

    assert (await queue.state())[ROW]["last_error"] == "cancelled: why"


async def test_a_job_whose_worker_died_is_buried_by_the_next_claim(control: Control, queue: Queue) -> None:
    """It was asked, and nobody was there to hear it."""
    await queue.put({ROW: row("active", 3, held="3:ab"), "active": {job(1): 1}})
    await cancel(control)
    await control.reap()

    claim = await control.claim_many()

    assert (claim.jobs, claim.buried) == ([], {job(1): "cancelled: why"})


async def test_a_server_that_refuses_the_channel_takes_the_request(own_server: OwnServer) -> None:
    """It stands on the row, and arrives with the next extension."""
    server = own_server()
    server.admin.acl_setuser("mute", enabled=True, nopass=True, keys=["*"], categories=["+@all"], reset=True)
    async with raw_client(server.url) as raw, connect(f"redis://mute:x@127.0.0.1:{server.port}/0") as wire:
        await Queue(raw).put({ROW: row("active", 3, held="3:ab"), "active": {job(1): FAR_MS}})

        assert await cancel(Control(wire)) == "asked"

        assert await Control(wire).keep(job(1), "3:ab") == [job(1), "cancel:why"]
