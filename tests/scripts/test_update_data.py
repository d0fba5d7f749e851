"""update_data: another payload, wherever the job is."""

from __future__ import annotations

import pytest

from tests.support.control import Control
from tests.support.own import flat
from tests.support.plain import FAR_MS, Queue, State, job, row

ROW = f"job:{job(1)}"


@pytest.mark.parametrize(
    "state",
    [
        {ROW: row(), "pending": {job(1): 0}},
        {ROW: row("active", 1, held="1:ab"), "active": {job(1): FAR_MS}},
        {ROW: row("dead", 3, failures=3), "dead": {job(1): 0}},
        {ROW: row("awaiting_children")},
        {ROW: row(payload=None), "pending": {job(1): 0}},
    ],
)
async def test_only_the_payload_changes(control: Control, queue: Queue, state: State) -> None:
    """Whatever state the job is in, also without a payload so far; opaque bytes."""
    await queue.put(state)

    assert await control.update_data(job(1), b"\x00\xff") == 1

    assert await queue.state() == state | {ROW: state[ROW] | {"payload": "\x00\udcff"}}


async def test_the_next_claim_has_it(control: Control, queue: Queue) -> None:
    """A handler gets what stands on the row at its claim."""
    await queue.put(flat(1))
    await control.update_data(job(1), b"new")

    (taken,) = (await control.claim_many(1)).jobs

    assert taken.payload == "new"


async def test_a_job_that_is_gone_is_not_made_anew(control: Control, queue: Queue) -> None:
    """-1, and nothing is written."""
    assert await control.update_data(job(1), b"new") == -1

    assert await queue.state() == {}
