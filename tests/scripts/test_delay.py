"""delay: a job in hand goes back to the schedule; the seeds' writes, and the claim is over."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_worker.errors import Gone, KindRefused, ServerError, Stale
from tests.support.native import SCRIPT_ALONE
from tests.support.plain import FAR_MS, GROUP, Plain, Queue, Within, job, row

LANE = f"g:{GROUP}:pending"
ROW = f"job:{job(1)}"
MISMATCH = r"^EMQSTALE delay token mismatch$"


def active(**fields: Any) -> dict[str, Any]:
    """Job 1 in hand with token 3."""
    return {ROW: row("active", 3, **fields), "active": {job(1): FAR_MS}}


async def test_in_is_priced_on_the_servers_clock(plain: Plain, queue: Queue) -> None:
    """Attempts, failures, stalled and payload stay; held, crashes and the lock are gone."""
    await queue.put(active(failures=1, stalled=1, held="3:ab", crashes="1:3") | {f"{ROW}:lock": "3"})
    before = await queue.now_ms()

    assert await plain.delay(job(1), "3:ab", mode="in", value=5_000) == 1

    due = Within(before + 5_000, await queue.now_ms() + 5_000)
    assert await queue.state() == {
        ROW: row("scheduled", 3, failures=1, stalled=1, settled="3:delayed"),
        "schedule": {job(1): due},
    }


@pytest.mark.parametrize(("mode", "value"), [("at", 77), ("at", -77), ("whenever", 5)])
async def test_any_other_mode_is_the_literal_value(plain: Plain, queue: Queue, mode: str, value: int) -> None:
    """An absolute run-at, a past and a negative one too."""
    await queue.put(active())

    assert await plain.delay(job(1), 3, mode=mode, value=value) == 1

    assert (await queue.state())["schedule"] == {job(1): value}


@SCRIPT_ALONE
async def test_a_holder_no_longer_in_active_schedules_all_the_same(plain: Plain, queue: Queue) -> None:
    """As in the seeds; beyond them the reaped job leaves pending, so that it is in one set."""
    await queue.put({ROW: row("pending", 3), "pending": {job(1): 0, job(2): 0}})

    assert await plain.delay(job(1), 3, mode="at", value=9) == 1

    assert await queue.state() == {
        ROW: row("scheduled", 3, settled="3:delayed"),
        "pending": {job(2): 0},
        "schedule": {job(1): 9},
    }


async def test_sent_three_times_counts_once(plain: Plain, queue: Queue) -> None:
    """A delay whose reply was lost answers 1 again, and neither moves nor writes the job, promoted or not."""
    await queue.put(active())
    assert await plain.delay(job(1), 3, mode="at", value=1) == 1
    before = await queue.state()
    assert await plain.delay(job(1), 3, mode="at", value=500) == 1
    assert await queue.state() == before

    await plain.promote()
    before = await queue.state()
    assert await plain.delay(job(1), 3, mode="at", value=500) == 1
    assert await queue.state() == before


@pytest.mark.parametrize(
    ("fields", "token"),
    [
        ({}, 2),
        ({}, "3.0"),
        ({"held": "3:new"}, "3:old"),
        ({"settled": "3:scheduled"}, 3),
        ({"settled": "3:dead"}, 3),
        ({"state": "dead"}, 3),
    ],
    ids=["another token", "another text", "another claim", "retried already", "buried by it", "dead row"],
)
async def test_a_stale_holder_writes_nothing(plain: Plain, queue: Queue, fields: dict[str, str], token: Any) -> None:
    """Another's token or claim, a claim that has ended otherwise, or a dead row, which takes only complete."""
    await queue.put({ROW: row("active", 3) | fields, "active": {job(1): FAR_MS}})
    before = await queue.state()

    with pytest.raises(Stale, match=MISMATCH):
        await plain.delay(job(1), token)

    assert await queue.state() == before


async def test_the_refusals_of_the_seeds(plain: Plain, queue: Queue) -> None:
    """A foreign id before anything else, then a missing row; nothing is written."""
    with pytest.raises(KindRefused, match=r"^EMQKIND job id must be JOB-namespaced$"):
        await plain.delay(job(1, "USR"), 1)
    with pytest.raises(Gone, match=r"^EMQSTALE job gone$"):
        await plain.delay(job(1), 1)

    assert await queue.state() == {}


async def test_a_grouped_job_frees_its_slot(plain: Plain, queue: Queue) -> None:
    """The slot is free, the lane is on the ring again with one token."""
    await queue.put(active(group=GROUP) | {LANE: {job(2): 0}, "gactive": {GROUP: "1"}, "glimit": {GROUP: "1"}})

    assert await plain.delay(job(1), 3, mode="at", value=9) == 1

    assert await queue.state() == {
        ROW: row("scheduled", 3, group=GROUP, settled="3:delayed"),
        LANE: {job(2): 0},
        "schedule": {job(1): 9},
        "glimit": {GROUP: "1"},
        "ring": [GROUP],
        "wake": ["1"],
    }


async def test_what_is_no_number_is_refused_before_anything_is_written(plain: Plain, queue: Queue) -> None:
    """A caller's mistake leaves the job in hand."""
    await queue.put(active())
    before = await queue.state()

    with pytest.raises(ServerError, match="delay value must be a number of milliseconds"):
        await plain.delay(job(1), 3, value="soon")

    assert await queue.state() == before
